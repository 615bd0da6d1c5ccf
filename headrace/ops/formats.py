"""How stored weights are laid out in bytes, and a slow, plain way to read them.

The layouts are those of safetensors (F32, F16, BF16) and of GGUF's block formats. The numpy
functions here are the reference for the kernels; the engine itself never calls them on a hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


class WeightFormat(Enum):
    """A storage format: (name, weights per block, bytes per block)."""

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q8_0 = ("Q8_0", 32, 34)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)

    def __init__(self, label: str, block_size: int, block_bytes: int) -> None:
        self.label = label
        self.block_size = block_size
        self.block_bytes = block_bytes

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of one row of this many weights (a multiple of block_size)."""
        return num_columns // self.block_size * self.block_bytes


INT8_MAX = 127
"""Of a row's int8 codes, either sign: code = round(x * (127 / max |x|)), ties to even, and
x = code * scale with scale = max |x| / 127, all in float32."""
INT8_TINY = 1e-30
"""A row whose largest magnitude is below this becomes zeros."""
MAX_INT8_COLUMNS = (2**31 - 1) // INT8_MAX**2
"""Longer sums of products of two codes could overflow 32 bits."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored: raw bytes (usually a view of a mapped file) and how to read them.

    `data` is uint8, [rows, row_bytes] for a matrix and [row_bytes] for a vector, C-contiguous.
    """

    name: str
    format: WeightFormat
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    source: str = ""
    """File it came from, for messages."""


def dequantize(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    """The tensor's values in float32, [*shape]: the reference every kernel is compared with.

    Works on any number of rows, so a few rows of a table can be read by slicing `data` first.
    """
    data = np.ascontiguousarray(tensor.data)
    blocks = data.reshape(-1, tensor.format.block_bytes)
    return _BLOCK_READERS[tensor.format](blocks).reshape(tensor.shape)


_Blocks: TypeAlias = npt.NDArray[np.uint8]
_Values: TypeAlias = npt.NDArray[np.float32]


def _read_f32(blocks: _Blocks) -> _Values:
    return blocks.view(np.float32).copy()


def _read_f16(blocks: _Blocks) -> _Values:
    return blocks.view(np.float16).astype(np.float32)


def _read_bf16(blocks: _Blocks) -> _Values:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _half(blocks: _Blocks, offset: int) -> _Values:
    """The float16 at this byte of every block, [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: _Blocks, group: int) -> _Blocks:
    """4-bit values: each group of bytes holds its low nibbles first, then its high ones."""
    grouped = packed.reshape(len(packed), -1, 1, group)
    halves = np.concatenate([grouped & 0xF, grouped >> 4], axis=2)
    return halves.reshape(len(packed), -1)


def _fifth_bits(packed: _Blocks) -> _Blocks:
    """32 single bits, lowest first, moved to bit 4. [num_blocks, 4] -> [num_blocks, 32]"""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _read_q8_0(blocks: _Blocks) -> _Values:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _read_q4_0(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 2:], 16).astype(np.float32)
    return _half(blocks, 0) * (quants - 8)


def _read_q4_1(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 4:], 16).astype(np.float32)
    return _half(blocks, 0) * quants + _half(blocks, 2)


def _read_q5_0(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (quants.astype(np.float32) - 16)


def _read_q5_1(blocks: _Blocks) -> _Values:
    quants = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * quants.astype(np.float32) + _half(blocks, 2)


def _k_scales(packed: _Blocks) -> tuple[_Values, _Values]:
    """The eight 6-bit scales and minimums in the 12 bytes of a Q4_K or Q5_K block, each [B, 8, 1].

    The first four of each fill the low six bits of bytes 0-3 and 4-7; the last four keep their low
    four bits in bytes 8-11 and their high two bits on top of bytes 0-3 and 4-7.
    """
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 0xF) | (low >> 6 << 4)], axis=1)
    minimums = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return scales[:, :, None].astype(np.float32), minimums[:, :, None].astype(np.float32)


def _scale_k(blocks: _Blocks, quants: _Blocks) -> _Values:
    """Scale the quants [B, 256] of a Q4_K or Q5_K block: eight groups of 32."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    grouped = quants.reshape(len(blocks), 8, 32).astype(np.float32)
    scaled = _half(blocks, 0)[:, :, None] * scales * grouped
    return scaled - _half(blocks, 2)[:, :, None] * minimums


def _read_q4_k(blocks: _Blocks) -> _Values:
    return _scale_k(blocks, _nibbles(blocks[:, 16:], 32))


def _read_q5_k(blocks: _Blocks) -> _Values:
    # Byte i of the 32 high bytes holds bit 4 of weight i of each of the eight groups.
    bits = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    high = (bits & np.uint8(1)) << np.uint8(4)
    return _scale_k(blocks, _nibbles(blocks[:, 48:], 32) | high.reshape(len(blocks), 256))


def _read_q6_k(blocks: _Blocks) -> _Values:
    low = _nibbles(blocks[:, :128], 64)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << np.uint8(4)
    quants = (low | high.reshape(len(blocks), 256)).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
    return _half(blocks, 208)[:, :, None] * scales * quants.reshape(len(blocks), 16, 16)


_BLOCK_READERS: dict[WeightFormat, Callable[[_Blocks], _Values]] = {
    WeightFormat.F32: _read_f32,
    WeightFormat.F16: _read_f16,
    WeightFormat.BF16: _read_bf16,
    WeightFormat.Q8_0: _read_q8_0,
    WeightFormat.Q4_0: _read_q4_0,
    WeightFormat.Q4_1: _read_q4_1,
    WeightFormat.Q5_0: _read_q5_0,
    WeightFormat.Q5_1: _read_q5_1,
    WeightFormat.Q4_K: _read_q4_k,
    WeightFormat.Q5_K: _read_q5_k,
    WeightFormat.Q6_K: _read_q6_k,
}
