"""The op contract: what a model may ask for, with shapes, dtypes and errors.

Two homes implement it: `native_ops` (C++ kernels) and `torch_ops` (PyTorch, any device; the oracle
in tests). A model builds its layers once with `prepare_*`, then describes its computation with the
other methods. The native home records that description once into a program and replays it each step
without Python; the torch home computes at once. So model code must not look into an `Array`, branch
on its values, or depend on the number of tokens.

Letters: T tokens in the step, S sequences, L rows that need logits, H hidden size, D head size.
Activations are float32 [rows, cols]. Every op leaves its inputs unchanged.

Row-order rule: row r of every result depends, bit for bit, only on row r of the inputs (for
attention: on that row and the sequence's cached keys and values), never on how many other rows
there are or how tokens were grouped into steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.ops.formats import StoredTensor

Array: TypeAlias = Any
"""An activation of the home in use (a program slot, a torch tensor). Opaque to models."""
Linear: TypeAlias = Any
"""A prepared weight matrix [N, K] of the home in use."""
Table: TypeAlias = Any
"""A prepared embedding table [vocab_size, H] of the home in use."""
KVCache: TypeAlias = Any
"""Keys and values of one layer: two arrays [num_blocks, num_kv_heads, block_size, D]."""

Activation: TypeAlias = Literal["silu", "gelu_tanh"]
Quantization: TypeAlias = Literal["int8", "int8_activations"]
"""`int8`: every row of the weights becomes round(w / scale) with scale = max |w| / 127, and so does
every row of activations as it comes; products are summed exactly, then scaled.
The exact arithmetic stands at `formats.INT8_MAX`.
`int8_activations`: weights in blocks stay as stored; every 32 activations of a row become 8-bit
codes with a scale of their own, where the home multiplies such weights as integers; elsewhere
nothing."""
F32: TypeAlias = npt.NDArray[np.float32]
I32: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GivenEmbeddings:
    """Tokens of a step that come as embeddings: `embedding` gives these rows as they are."""

    rows: I32  # [E], tokens of the step
    values: F32  # [E, H]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's numbers, as numpy arrays owned by the caller (native order, C-contiguous).

    Sequence s has the tokens query_start_loc[s] .. query_start_loc[s+1]; after the step it has
    seq_lens[s] tokens in the cache. Token i lives in slot slot_mapping[i] =
    block_id * block_size + offset.
    """

    input_ids: I32  # [T]
    positions: I32  # [T]
    slot_mapping: I32  # [T]
    query_start_loc: I32  # [S + 1]
    seq_lens: I32  # [S]
    block_table: I32  # [S, max_blocks_per_seq]
    given: GivenEmbeddings | None = None


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm over each head of queries and keys (Gemma 3, Qwen 3): weights [D], float32."""

    q_weight: F32
    k_weight: F32
    eps: float


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How the columns of a fused projection split: q heads, then k heads, then v heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Executable(Protocol):
    """A model ready to run. `forward` first, then `logits` any number of times."""

    def forward(self, step: StepInputs) -> None:
        """Compute hidden states of all T tokens and write their keys and values."""
        ...

    def logits(self, rows: I32) -> F32:
        """Logits [L, vocab_size] of these rows of the last forward; valid until the next call.

        The array is the caller's to change until then.
        """
        ...


class Ops(Protocol):
    """One home of the operations."""

    name: str
    """For the log: `amx`, `avx512`, `avx2`, `portable`, `torch:cpu`, ..."""
    num_threads: int
    """Threads that compute."""
    weight_bytes: int
    """Bytes of all prepared weights so far."""

    # -- at load ------------------------------------------------------------------------------

    def prepare_linear(
        self, parts: Sequence[StoredTensor], quantization: Quantization | None = None
    ) -> Linear:
        """Repack matrices [N_i, K] (each in its own format) as one [sum N_i, K].

        Args:
            quantization: None keeps the values as stored.

        Raises:
            ValueError: K differs between parts, a part is not 2-D, or K is too large for int8 sums.
        """
        ...

    def prepare_gated(
        self, gate: StoredTensor, up: StoredTensor, quantization: Quantization | None = None
    ) -> Linear:
        """Repack the two matrices [N, K] of a gated feed-forward for `gated_linear`.

        Raises ValueError as `prepare_linear` does, and when the shapes differ.
        """
        ...

    def prepare_table(self, table: StoredTensor) -> Table:
        """Make rows of an embedding table [vocab_size, H] readable; nothing is copied."""
        ...

    def make_kv_caches(
        self, num_layers: int, num_blocks: int, block_size: int, heads: HeadShape, dtype: str
    ) -> list[KVCache]:
        """Reserve (zeroed) keys and values for all layers.

        dtype is `float16` (values beyond its range become its largest), `bfloat16` or `float32`.
        """
        ...

    def release_kv_caches(self, caches: Sequence[KVCache]) -> None:
        """Forget all keys and values; their memory goes back until blocks are written again.

        Not while a forward runs.
        """
        ...

    def compile(
        self, forward: Callable[[], Array], logits: Callable[[Array], Array], *,
        hidden_size: int, vocab_size: int, max_num_tokens: int,
    ) -> Executable:  # fmt: skip
        """Make a model runnable.

        Args:
            forward: describes the computation up to the last hidden states [T, H]; it reaches the
                step's numbers through the ops themselves.
            logits: describes the computation from chosen hidden rows [L, H] to logits [L, vocab].
        """
        ...

    # -- in a forward -------------------------------------------------------------------------

    def embedding(self, table: Table, scale: float = 1.0) -> Array:
        """Rows of the table at the step's input_ids, times scale. [T, H]

        Rows that the step gives itself replace these, unscaled.
        """
        ...

    def rms_norm(self, x: Array, weight: F32, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight, over each row. [rows, H]"""
        ...

    def linear(self, x: Array, weight: Linear, bias: F32 | None = None) -> Array:
        """x @ weight.T + bias. [rows, K] -> [rows, N]"""
        ...

    def gated_linear(self, x: Array, gate_up: Linear, activation: Activation) -> Array:
        """activation(x @ gate.T) * (x @ up.T). [rows, K] -> [rows, N]"""
        ...

    def add(self, x: Array, y: Array) -> Array:
        """x + y, same shape."""
        ...

    def rope(self, inv_freq: F32, scale: float = 1.0) -> Array:
        """cos and sin of position * inv_freq, times scale, at the step's positions. [T, 2 * R]

        inv_freq is [R] with 2 * R <= D; cosines in the first R columns, sines in the rest.
        """
        ...

    def rope_and_cache(
        self,
        qkv: Array,
        rope: Array,
        cache: KVCache,
        heads: HeadShape,
        norm: HeadNorm | None = None,
    ) -> Array:
        """Norm (if given) and rotate queries and keys, write keys and values to the cache.

        Rotary pairs are (i, i + R), the `rotate half` form; columns from 2 * R on are not rotated.
        [T, (num_heads + 2 * num_kv_heads) * D] -> queries [T, num_heads * D]
        """
        ...

    def attention(
        self, q: Array, cache: KVCache, heads: HeadShape, scale: float, window: int | None = None
    ) -> Array:
        """Causal attention of each token over its sequence in the cache, itself included.

        With a window only the last `window` positions (itself included) are seen.
        [T, num_heads * D] -> [T, num_heads * D]
        """
        ...
