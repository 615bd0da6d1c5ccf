"""Runs jobs of peers.py on llama.cpp through the C functions that llama-cpp-python exposes.

The package's own class answers one prompt at a time. For a fair batch this does what llama.cpp's
own parallel example does: one batch a step with a token of each sequence, prompts together first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from runner_protocol import Limits, serve

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
CONTEXT_STEP = 256


class LlamaCppEngine:
    """A context with a sequence for each prompt."""

    def __init__(self, model: str, threads: int, limits: Limits, settings: dict[str, Any]) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        # With these, quantised files crash on machines that have AMX.
        options.use_extra_bufts = "amx_tile" not in Path("/proc/cpuinfo").read_text()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        context = llama_cpp.llama_context_default_params()
        per_sequence = -(-limits.max_len // CONTEXT_STEP) * CONTEXT_STEP
        context.n_ctx = limits.max_seqs * per_sequence
        context.n_seq_max = limits.max_seqs
        context.n_batch = BATCH_TOKENS
        context.n_ubatch = MICRO_BATCH_TOKENS
        context.n_threads = context.n_threads_batch = threads
        context.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        system = llama_cpp.llama_print_system_info().decode()
        self.facts = {"version": llama_cpp.__version__, "isa": system}

    def generate(self, prompts: list[list[int]], output_len: int) -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        last = self._prefill(prompts)
        lengths = [1] * len(prompts)
        for step in range(output_len - 1):
            for row, prompt in enumerate(prompts):
                self._put(row, int(last[row]), len(prompt) + step, row, needs_logits=True)
            last = self._decode(len(prompts), len(prompts))
            lengths = [length + 1 for length in lengths]
        return lengths

    def _prefill(self, prompts: list[list[int]]) -> npt.NDArray[np.int64]:
        """The first token of each answer; prompts fill batches to the brim."""
        firsts, filled, wanted = [], 0, 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                is_last = position == len(prompt) - 1
                self._put(filled, token, position, sequence, needs_logits=is_last)
                filled += 1
                wanted += is_last
                if filled == BATCH_TOKENS:
                    firsts.append(self._decode(filled, wanted))
                    filled = wanted = 0
        if filled:
            firsts.append(self._decode(filled, wanted))
        return np.concatenate(firsts)

    def _put(
        self, row: int, token: int, position: int, sequence: int, *, needs_logits: bool
    ) -> None:
        batch = self._batch
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = needs_logits

    def _decode(self, num_tokens: int, num_rows: int) -> npt.NDArray[np.int64]:
        """Compute the batch; the likeliest token of each row that asked for logits."""
        self._batch.n_tokens = num_tokens
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        if num_rows == 0:
            return np.empty(0, np.int64)
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, (num_rows, self._vocab_size))
        best: npt.NDArray[np.int64] = logits.argmax(axis=1)
        return best


if __name__ == "__main__":
    serve(LlamaCppEngine)
