"""GGUF files read, by code that shares nothing with the engine under test."""

from __future__ import annotations

import mmap
import struct
from typing import ClassVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from model_files.errors import Failed


class Gguf:
    """Metadata and raw tensors of a GGUF file."""

    SCALARS: ClassVar = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }

    def __init__(self, path):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        if self.map[:4] != b"GGUF" or self.map[4] not in (2, 3):
            raise Failed(f"{path}: not a GGUF v2 or v3 file")
        self.at = 8
        count, keys = self.scalar("Q"), self.scalar("Q")
        self.meta = {}
        for _ in range(keys):
            key = self.string()
            self.meta[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(count):
            name = self.string()
            shape = [self.scalar("Q") for _ in range(self.scalar("I"))]
            self.tensors[name] = (shape[::-1], self.scalar("I"), self.scalar("Q"))
        align = self.meta.get("general.alignment", 32)
        self.data = self.at + -self.at % align

    def scalar(self, code):
        (value,) = struct.unpack_from("<" + code, self.map, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        n = self.scalar("Q")
        self.at += n
        return self.map[self.at - n : self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            of = self.scalar("I")
            return [self.value(of) for _ in range(self.scalar("Q"))]
        return self.scalar(self.SCALARS[kind])

    def float_rows(self, name, first, last):
        """Rows first..last of a tensor (seen as rows of its innermost dimension)."""
        shape, kind, offset = self.tensors[name]
        kind = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row = shape[-1] // block * block_bytes
        raw = np.frombuffer(
            self.map, np.uint8, (last - first) * row, self.data + offset + first * row
        )
        return quants.dequantize(raw.reshape(last - first, row), kind).astype(np.float32)
