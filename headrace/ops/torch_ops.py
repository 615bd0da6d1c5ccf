"""The operations on PyTorch: any device it has, and the oracle of the native kernels in tests.

Computes at once and in float32, without regard to speed. Keeps the row-order rule only up to
rounding, because PyTorch's matrix product does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.ops.formats import (
    INT8_MAX,
    INT8_TINY,
    MAX_INT8_COLUMNS,
    StoredTensor,
    dequantize,
)
from headrace.ops.ops import (
    F32,
    I32,
    Activation,
    Array,
    GivenEmbeddings,
    HeadNorm,
    HeadShape,
    Quantization,
    StepInputs,
)

_CACHE_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
_MAX_FLOAT16 = 65504.0


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """A weight matrix [N, K] in float32, or int8 with scales [N]; gated ones hold gate over up."""

    weight: Any
    gated: bool
    scales: Any = None

    def product(self, x: Any) -> Any:
        """x @ weight.T. [rows, K] -> [rows, N]"""
        if self.scales is None:
            return torch.nn.functional.linear(x, self.weight)
        codes, x_scales = _quantize_rows(x)
        sums = codes.double() @ self.weight.double().T  # exact: below 2^31
        return sums.float() * (x_scales[:, None] * self.scales)


@dataclass(slots=True)
class TorchCache:
    """Keys and values of one layer, each [num_blocks, num_kv_heads, block_size, D]."""

    keys: Any
    values: Any


class TorchExecutable:
    """The model's own callables, run on the tensors of the current step."""

    def __init__(
        self, ops: TorchOps, forward: Callable[[], Array], logits: Callable[[Array], Array]
    ) -> None:
        self._ops = ops
        self._forward = forward
        self._logits = logits
        self._hidden: Any = None

    def forward(self, step: StepInputs) -> None:
        """Compute hidden states of all T tokens and write their keys and values."""
        with torch.inference_mode():
            self._ops.set_step(step)
            self._hidden = self._forward()

    def logits(self, rows: I32) -> F32:
        """Logits [L, vocab_size] of these rows of the last forward.

        Raises RuntimeError before the first forward.
        """
        if self._hidden is None:
            raise RuntimeError("logits: forward has not run yet")
        with torch.inference_mode():
            chosen = self._hidden[torch.from_numpy(rows.astype(np.int64)).to(self._hidden.device)]
            result: F32 = self._logits(chosen).cpu().numpy()
            return result


class TorchOps:
    """The operations of `ops.Ops` on one PyTorch device."""

    def __init__(self, device: str = "cpu", num_threads: int = 0) -> None:
        self.name = f"torch:{device}"
        self.weight_bytes = 0
        """Bytes of all prepared weights."""
        self._device = torch.device(device)
        torch.zeros(1, device=self._device)  # a device that is absent should fail here
        self._step: StepInputs | None = None
        if num_threads > 0:
            torch.set_num_threads(num_threads)

    @property
    def num_threads(self) -> int:
        """Threads PyTorch works with on the CPU."""
        return int(torch.get_num_threads())

    # -- at load ------------------------------------------------------------------------------

    def prepare_linear(
        self, parts: Sequence[StoredTensor], quantization: Quantization | None = None
    ) -> TorchLinear:
        """Matrices [N_i, K] as one matrix. Raises ValueError on differing K."""
        return self._prepare("prepare_linear", parts, quantization, gated=False)

    def prepare_gated(
        self, gate: StoredTensor, up: StoredTensor, quantization: Quantization | None = None
    ) -> TorchLinear:
        """Gate and up matrices [N, K]. Raises ValueError on differing shapes."""
        if gate.shape != up.shape:
            raise ValueError(f"prepare_gated: gate is {gate.shape}, up is {up.shape}")
        return self._prepare("prepare_gated", [gate, up], quantization, gated=True)

    def _prepare(
        self, op: str, parts: Sequence[StoredTensor], quantization: Quantization | None, *,
        gated: bool,
    ) -> TorchLinear:  # fmt: skip
        shapes = [part.shape for part in parts]
        if not shapes or any(len(s) != 2 or s[1] != shapes[0][1] for s in shapes):
            raise ValueError(f"{op}: parts must be matrices [N, K] of one K, got {shapes}")
        if quantization == "int8" and shapes[0][1] > MAX_INT8_COLUMNS:
            raise ValueError(
                f"{op}: sums over {shapes[0][1]} columns do not fit int8 products; "
                f"at most {MAX_INT8_COLUMNS} do"
            )
        weight = torch.cat([torch.from_numpy(dequantize(part)).to(self._device) for part in parts])
        scales = None
        if quantization == "int8":
            weight, scales = _quantize_rows(weight)
            self.weight_bytes += scales.numel() * scales.element_size()
        self.weight_bytes += weight.numel() * weight.element_size()
        return TorchLinear(weight, gated, scales)

    def prepare_table(self, table: StoredTensor) -> StoredTensor:
        """The table itself: rows are read, and sent to the device, as they are asked for."""
        if len(table.shape) != 2:
            raise ValueError(f"prepare_table: a table is [vocab_size, H], got {table.shape}")
        return table

    def make_kv_caches(
        self, num_layers: int, num_blocks: int, block_size: int, heads: HeadShape, dtype: str
    ) -> list[TorchCache]:
        """Zeroed caches of all layers. Raises ValueError on an unknown dtype."""
        if dtype not in _CACHE_DTYPES:
            raise ValueError(f"make_kv_caches: dtype is {dtype!r}, not one of {[*_CACHE_DTYPES]}")
        shape = (num_blocks, heads.num_kv_heads, block_size, heads.head_dim)
        kind = {"dtype": _CACHE_DTYPES[dtype], "device": self._device}
        return [
            TorchCache(torch.zeros(shape, **kind), torch.zeros(shape, **kind))
            for _ in range(num_layers)
        ]

    def release_kv_caches(self, caches: Sequence[TorchCache]) -> None:
        """Zero the caches. On a CPU new zeros take memory only once they are written to."""
        for cache in caches:
            cache.keys = torch.zeros_like(cache.keys)
            cache.values = torch.zeros_like(cache.values)

    def compile(
        self, forward: Callable[[], Array], logits: Callable[[Array], Array], *,
        hidden_size: int, vocab_size: int, max_num_tokens: int,
    ) -> TorchExecutable:  # fmt: skip
        """Keep the callables; PyTorch needs no sizes ahead."""
        return TorchExecutable(self, forward, logits)

    # -- in a forward -------------------------------------------------------------------------

    def set_step(self, step: StepInputs) -> None:
        """Make these the numbers the ops read until the next call."""
        self._step = step

    def _current(self) -> StepInputs:
        if self._step is None:
            raise RuntimeError("ops that read the step work only inside a forward")
        return self._step

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def embedding(self, table: StoredTensor, scale: float = 1.0) -> Array:
        """Rows of the table at input_ids, times scale, or those given. [T, H].

        Raises ValueError on ids outside the table, and on given rows that do not fit.
        """
        step = self._current()
        ids = step.input_ids
        num_rows, width = table.shape
        outside = ids[(ids < 0) | (ids >= num_rows)]
        if outside.size:
            raise ValueError(f"embedding: token id {outside[0]} is not in [0, {num_rows})")
        rows = replace(table, data=table.data[ids], shape=(len(ids), width))
        result = self._tensor(dequantize(rows)) * scale
        if step.given is not None:
            result[self._given_rows(step.given, result.shape)] = self._tensor(step.given.values)
        return result

    def _given_rows(self, given: GivenEmbeddings, shape: Sequence[int]) -> Any:
        num_tokens, width = shape
        if given.values.shape != (len(given.rows), width):
            raise ValueError(
                f"embedding: given rows are {given.values.shape}, not ({len(given.rows)}, {width})"
            )
        if any(not 0 <= row < num_tokens for row in given.rows):
            raise ValueError("embedding: a row is given for a token that is not in the step")
        return self._tensor(given.rows.astype(np.int64))

    def rms_norm(self, x: Array, weight: F32, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""
        if x.shape[-1] != weight.shape[0]:
            raise ValueError(f"rms_norm: x is {tuple(x.shape)}, weight {weight.shape}")
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self._tensor(weight)

    def linear(self, x: Array, weight: TorchLinear, bias: F32 | None = None) -> Array:
        """x @ weight.T + bias. [rows, K] -> [rows, N]"""
        if weight.gated:
            raise ValueError("linear: the weight was made by prepare_gated")
        self._check_product("linear", x, weight)
        if bias is not None and bias.shape != weight.weight.shape[:1]:
            raise ValueError(f"linear: {weight.weight.shape[0]} columns, bias {bias.shape}")
        product = weight.product(x)
        return product if bias is None else product + self._tensor(bias)

    def gated_linear(self, x: Array, gate_up: TorchLinear, activation: Activation) -> Array:
        """activation(x @ gate.T) * (x @ up.T). [rows, K] -> [rows, N]"""
        if not gate_up.gated:
            raise ValueError("gated_linear: the weight was not made by prepare_gated")
        self._check_product("gated_linear", x, gate_up)
        gate, up = gate_up.product(x).chunk(2, dim=-1)
        if activation == "silu":
            return torch.nn.functional.silu(gate) * up
        if activation == "gelu_tanh":
            return torch.nn.functional.gelu(gate, approximate="tanh") * up
        raise ValueError(f"gated_linear: unknown activation {activation!r}")

    def _check_product(self, op: str, x: Array, weight: TorchLinear) -> None:
        if x.shape[-1] != weight.weight.shape[1]:
            shapes = f"x is {tuple(x.shape)}, weight {tuple(weight.weight.shape)}"
            raise ValueError(f"{op}: {shapes}")

    def add(self, x: Array, y: Array) -> Array:
        """x + y, same shape."""
        if x.shape != y.shape:
            raise ValueError(f"add: x is {tuple(x.shape)}, y {tuple(y.shape)}")
        return x + y

    def rope(self, inv_freq: F32, scale: float = 1.0) -> Array:
        """cos and sin of position * inv_freq, times scale. [T, 2 * R]"""
        positions = self._tensor(self._current().positions).float()
        angles = positions[:, None] * self._tensor(inv_freq)[None, :]
        return torch.cat([angles.cos(), angles.sin()], dim=-1) * scale

    def rope_and_cache(
        self, qkv: Array, rope: Array, cache: TorchCache, heads: HeadShape,
        norm: HeadNorm | None = None,
    ) -> Array:  # fmt: skip
        """Norm and rotate queries and keys, write keys and values to the cache. -> queries"""
        dim, num_heads, num_kv_heads = heads.head_dim, heads.num_heads, heads.num_kv_heads
        if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * dim or rope.shape[1] > dim:
            shapes = f"qkv is {tuple(qkv.shape)}, rope {tuple(rope.shape)}, {heads}"
            raise ValueError(f"rope_and_cache: {shapes}")
        split = qkv.view(len(qkv), -1, dim)  # [T, num_heads + 2 * num_kv_heads, D]
        q, k, v = split.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        if norm is not None:
            q = self.rms_norm(q, norm.q_weight, norm.eps)
            k = self.rms_norm(k, norm.k_weight, norm.eps)
        slots = self._tensor(self._current().slot_mapping).long()
        block_size = cache.keys.shape[2]
        where = (slots // block_size, slice(None), slots % block_size)
        cache.keys[where] = _stored(_rotate(k, rope), cache.keys.dtype)
        cache.values[where] = _stored(v, cache.values.dtype)
        return _rotate(q, rope).reshape(len(qkv), num_heads * dim)

    def attention(
        self, q: Array, cache: TorchCache, heads: HeadShape, scale: float, window: int | None = None
    ) -> Array:
        """Causal attention of each token over its sequence in the cache, itself included."""
        if q.shape[1] != heads.num_heads * heads.head_dim:
            raise ValueError(f"attention: q is {tuple(q.shape)}, {heads}")
        step = self._current()
        result = torch.zeros_like(q)
        bounds = zip(step.query_start_loc[:-1], step.query_start_loc[1:], strict=True)
        for s, (start, end) in enumerate(bounds):
            if start < end:
                k, v = self._gather(cache, step.block_table[s], int(step.seq_lens[s]))
                result[start:end] = _attend(q[start:end], k, v, heads, scale, window)
        return result

    def _gather(self, cache: TorchCache, blocks: I32, num_tokens: int) -> tuple[Any, Any]:
        """Keys and values of one sequence in float32, each [num_kv_heads, num_tokens, D]."""
        block_size = cache.keys.shape[2]
        used = self._tensor(blocks[: -(-num_tokens // block_size)]).long()
        k, v = (
            part[used].transpose(0, 1).flatten(1, 2)[:, :num_tokens].float()
            for part in (cache.keys, cache.values)
        )
        return k, v


def _quantize_rows(x: Any) -> tuple[Any, Any]:
    """Rows [N, K] as int8 codes and scales [N]; see formats.INT8_MAX."""
    largest = x.abs().amax(-1)  # a NaN is the largest
    inverse = x.new_tensor(float(INT8_MAX)) / largest  # a number / tensor would round twice
    inverse[largest < INT8_TINY] = 0.0
    codes = (x * inverse[:, None]).round().nan_to_num()  # to nearest, ties to even
    return codes.to(torch.int8), largest / INT8_MAX


def _stored(x: Any, dtype: Any) -> Any:
    """Rounded for the cache; beyond float16's range its largest value."""
    if dtype is torch.float16:
        x = x.clamp(-_MAX_FLOAT16, _MAX_FLOAT16)
    return x.to(dtype)


def _rotate(x: Any, rope: Any) -> Any:
    """Turn pairs (i, i + R) of every head. x [T, heads, D], rope [T, 2 * R]."""
    half = rope.shape[1] // 2
    cos, sin = rope[:, None, :half], rope[:, None, half:]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _attend(q: Any, k: Any, v: Any, heads: HeadShape, scale: float, window: int | None) -> Any:
    """The last tokens of one sequence over all of it. q [n, num_heads * D] -> same."""
    num_queries, num_keys = len(q), k.shape[1]
    grouped = q.view(num_queries, heads.num_kv_heads, -1, heads.head_dim).permute(1, 2, 0, 3)
    scores = grouped @ k[:, None].transpose(2, 3) * scale  # [kv_heads, group, n, num_keys]
    key_at = torch.arange(num_keys, device=q.device)[None, :]
    query_at = torch.arange(num_keys - num_queries, num_keys, device=q.device)[:, None]
    seen = key_at <= query_at
    if window is not None:
        seen &= key_at > query_at - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ v[:, None]).permute(2, 0, 1, 3).reshape(num_queries, -1)
