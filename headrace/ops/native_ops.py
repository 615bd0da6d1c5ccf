"""The operations on this machine's processor: recorded once, then replayed by the C++ kernels.

A method called inside `compile` appends to the program being recorded and returns a slot of it.
Shapes are checked there, by the recorder; nothing is computed in Python.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.ops.dispatch import chosen_isa
from headrace.ops.formats import StoredTensor
from headrace.ops.ops import (
    F32,
    I32,
    Activation,
    Array,
    HeadNorm,
    HeadShape,
    Quantization,
    StepInputs,
)


class NativeExecutable:
    """A recorded model. One call into C++ per step, without the interpreter lock."""

    def __init__(self, executable: _native.Executable) -> None:
        self._executable = executable
        self._inputs: StepInputs | None = None
        self._step: _native.Step | None = None

    def forward(self, step: StepInputs) -> None:
        """Compute hidden states of all T tokens and write their keys and values.

        Raises ValueError, before anything is written, on ids, slots or blocks out of range.
        """
        # Callers keep their arrays from step to step; six of them are costly to hand over.
        if step is not self._inputs or self._step is None:
            given = step.given
            self._step = _native.Step(
                step.input_ids,
                step.positions,
                step.slot_mapping,
                step.query_start_loc,
                step.seq_lens,
                step.block_table,
                None if given is None else given.rows,
                None if given is None else given.values,
            )
            self._inputs = step
        self._executable.forward(self._step)

    def logits(self, rows: I32) -> F32:
        """Logits [L, vocab_size] of these rows of the last forward; valid until the next call.

        Raises ValueError on rows that are not among the last forward's tokens.
        """
        return self._executable.logits(rows)


class NativeOps:
    """The operations of `ops.Ops` in C++, for one instruction set."""

    def __init__(
        self, num_threads: int = 0, isa: str | None = None, cpus: Sequence[int] = ()
    ) -> None:
        """
        Args:
            num_threads: 0 is one per core this process may use, or per processor in `cpus`.
            isa: one of `dispatch.available_isas()`; None is the chosen one.
            cpus: processors that the threads of this process that compute stay on, the thread that
                runs steps included.

        Raises ValueError when a processor cannot be had.
        """
        if cpus:
            _native.bind_threads(list(cpus))
        self._home = _native.Home(isa or chosen_isa(), num_threads or len(cpus))
        self._program: _native.Program | None = None
        self.name = self._home.isa

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self._home.weight_bytes

    @property
    def num_threads(self) -> int:
        """Threads that work on a step."""
        return self._home.num_threads

    # -- at load ------------------------------------------------------------------------------

    def prepare_linear(
        self, parts: Sequence[StoredTensor], quantization: Quantization | None = None
    ) -> _native.Linear:
        """Matrices [N_i, K] packed as one. Raises ValueError on differing K."""
        stored = [_stored("prepare_linear", part) for part in parts]
        return self._home.prepare_linear(stored, quantization)

    def prepare_gated(
        self, gate: StoredTensor, up: StoredTensor, quantization: Quantization | None = None
    ) -> _native.Linear:
        """Gate and up matrices [N, K]. Raises ValueError on differing shapes."""
        stored = (_stored("prepare_gated", gate), _stored("prepare_gated", up))
        return self._home.prepare_gated(*stored, quantization)

    def prepare_table(self, table: StoredTensor) -> _native.Table:
        """A table whose rows are read where they are stored."""
        return self._home.prepare_table(_stored("prepare_table", table))

    def make_kv_caches(
        self, num_layers: int, num_blocks: int, block_size: int, heads: HeadShape, dtype: str
    ) -> list[_native.KvCache]:
        """Zeroed caches of all layers; memory is taken as blocks are first written.

        Raises ValueError on an unknown dtype or a block size that is not a power of two.
        """
        shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        return [self._home.make_cache(*shape, dtype) for _ in range(num_layers)]

    def release_kv_caches(self, caches: Sequence[_native.KvCache]) -> None:
        """Zero the caches by giving their memory back."""
        for cache in caches:
            cache.release()

    def compile(
        self, forward: Callable[[], Array], logits: Callable[[Array], Array], *,
        hidden_size: int, vocab_size: int, max_num_tokens: int,
    ) -> NativeExecutable:  # fmt: skip
        """Record both computations. Raises ValueError, naming the op, on shapes that do not fit."""
        with self._recording() as forward_program:
            hidden = forward()
        with self._recording() as logits_program:
            chosen = logits_program.input(hidden_size)
            result = logits(chosen)
        executable = _native.Executable(
            self._home, forward_program, hidden, logits_program, chosen, result,
            hidden_size, vocab_size, max_num_tokens,
        )  # fmt: skip
        return NativeExecutable(executable)

    @contextmanager
    def _recording(self) -> Iterator[_native.Program]:
        if self._program is not None:
            raise RuntimeError("compile was called inside compile")
        self._program = _native.Program(self._home)
        try:
            yield self._program
        finally:
            self._program = None

    def _current(self) -> _native.Program:
        if self._program is None:
            raise RuntimeError("operations describe a computation; they work only inside compile")
        return self._program

    # -- in a forward -------------------------------------------------------------------------

    def embedding(self, table: _native.Table, scale: float = 1.0) -> Array:
        """Rows of the table at the step's input_ids, times scale, or given ones. [T, H]"""
        return self._current().embedding(table, scale)

    def rms_norm(self, x: Array, weight: F32, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight, over each row. [rows, H]"""
        return self._current().rms_norm(x, _vector(weight), eps)

    def linear(self, x: Array, weight: _native.Linear, bias: F32 | None = None) -> Array:
        """x @ weight.T + bias. [rows, K] -> [rows, N]"""
        return self._current().linear(x, weight, None if bias is None else _vector(bias))

    def gated_linear(self, x: Array, gate_up: _native.Linear, activation: Activation) -> Array:
        """activation(x @ gate.T) * (x @ up.T). [rows, K] -> [rows, N]"""
        return self._current().gated_linear(x, gate_up, activation)

    def add(self, x: Array, y: Array) -> Array:
        """x + y, same shape."""
        return self._current().add(x, y)

    def rope(self, inv_freq: F32, scale: float = 1.0) -> Array:
        """cos and sin of position * inv_freq, times scale. [T, 2 * R]"""
        return self._current().rope(_vector(inv_freq), scale)

    def rope_and_cache(
        self, qkv: Array, rope: Array, cache: _native.KvCache, heads: HeadShape,
        norm: HeadNorm | None = None,
    ) -> Array:  # fmt: skip
        """Norm and rotate queries and keys, write keys and values to the cache. -> queries"""
        shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
        if norm is None:
            return self._current().rope_and_cache(qkv, rope, cache, *shape, None, None, 0.0)
        weights = (_vector(norm.q_weight), _vector(norm.k_weight))
        return self._current().rope_and_cache(qkv, rope, cache, *shape, *weights, norm.eps)

    def attention(
        self, q: Array, cache: _native.KvCache, heads: HeadShape, scale: float,
        window: int | None = None,
    ) -> Array:  # fmt: skip
        """Causal attention of each token over its sequence in the cache, itself included."""
        shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
        return self._current().attention(q, cache, *shape, scale, window)


def _vector(values: npt.ArrayLike) -> F32:
    return np.ascontiguousarray(values, dtype=np.float32)


def _stored(op: str, tensor: StoredTensor) -> _native.StoredMatrix:
    if len(tensor.shape) != 2:
        raise ValueError(f"{op}: {tensor.name} is {tensor.shape}, not a matrix")
    rows, columns = tensor.shape
    data = np.ascontiguousarray(tensor.data)
    return _native.stored_matrix(tensor.format.label, rows, columns, data, _is_mapped(data))


def _is_mapped(array: npt.NDArray[np.uint8]) -> bool:
    """Whether the bytes belong to a mapped file, so that their pages can be let go."""
    owner: Any = array
    while owner is not None:
        if isinstance(owner, mmap.mmap):
            return True
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return False
