"""Runs jobs of peers.py on vLLM for the CPU."""

from __future__ import annotations

import os
from typing import Any

from runner_protocol import Limits, serve

CACHE_GB = 4
MAX_BATCHED_TOKENS = 4096


class VllmEngine:
    """The offline class, without its prefix cache and its own measurements."""

    def __init__(self, model: str, threads: int, limits: Limits, settings: dict[str, Any]) -> None:
        # Read when the package is imported, hence the import below and not above.
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHE_GB)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(
            str(core) for core in sorted(os.sched_getaffinity(0))[:threads]
        )
        os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
        os.environ["HF_HUB_OFFLINE"] = "1"
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model,
            dtype="bfloat16",
            max_model_len=limits.max_len,
            max_num_seqs=limits.max_seqs,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            enable_prefix_caching=False,
            disable_log_stats=True,
            **settings,
        )
        self.facts = {"version": vllm.__version__}

    def generate(self, prompts: list[list[int]], output_len: int) -> list[int]:
        params = self._vllm.SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(VllmEngine)
