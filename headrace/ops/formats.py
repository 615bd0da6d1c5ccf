"""How stored weights are laid out in bytes, and a slow, plain way to read them.

The layouts are those of safetensors (F32, F16, BF16) and of GGUF's block formats. The numpy
functions here are the reference for the kernels; the engine itself never calls them on a hot path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
