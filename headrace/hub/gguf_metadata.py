"""Reads the header of a GGUF file: metadata and the list of tensors, never a weight.

The file is mapped; long arrays are only measured, and decoded when asked for. Every length is
checked against the file before it is used, so that a damaged file is a ModelError.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from array import array as PackedInts
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_NAME_BYTES = 1 << 16

STRING, ARRAY, BOOL = 8, 9, 7
NUMBER_TYPES = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "<u1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""GGUF value type -> numpy dtype of one element."""
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
MIN_VALUE_BYTES = 8 + 4 + 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in the file: where it is, not what is in it.

    For strings `ends[i]` is the end of string i, which begins 8 bytes after the end of the one
    before (the first at `start + 8`).
    """

    element_type: int
    count: int
    start: int
    end: int
    ends: PackedInts[int] | None = None


Value: TypeAlias = str | int | float | bool | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's entry in the header. `shape` is row-major: the innermost dimension comes last."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    """From the start of the tensor data."""


class GgufFile:
    """A mapped GGUF file with its header parsed.

    Attributes:
        path: the file.
        version: 2 or 3.
        tensors: entries in the order of the file, names unique.
        alignment: tensor offsets are multiples of it.
        data_start: where the tensor data begins in the file.
        mapping: the whole file, read-only.

    Raises:
        ModelError: not a GGUF file that can be read; names the file and what is wrong.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.mapping = _map_file(self.path)
        self._cursor = _Cursor(self.path, self.mapping)
        self.version = self._read_version()
        num_tensors = self._cursor.count("tensors", MIN_TENSOR_BYTES)
        num_values = self._cursor.count("metadata values", MIN_VALUE_BYTES)
        self._values: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._cursor.string("a metadata key", limit=MAX_NAME_BYTES)
            if key in self._values:
                raise self.fault(f"the metadata key {key!r} appears twice")
            self._values[key] = self._cursor.value(key)
        if self.integer("split.count", 1) > 1:
            raise self.fault(
                "one part of a model split over several files, which is not supported; "
                "join the parts into one .gguf file first"
            )
        self.alignment = self._read_alignment()
        self.tensors = [self._cursor.tensor() for _ in range(num_tensors)]
        if len({tensor.name for tensor in self.tensors}) != num_tensors:
            raise self.fault("a tensor name appears twice")
        self.data_start = self._cursor.at + -self._cursor.at % self.alignment

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def fault(self, what: str) -> ModelError:
        """An error that names this file."""
        return ModelError(f"{self.path}: {what}")

    # -- values: each raises ModelError when the key is missing (without default) or of another kind

    def string(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fault(f"{key} should be a string, found {_kind(value)}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(f"{key} should be an integer, found {_kind(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """An integer or a float, as a float."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(f"{key} should be a number, found {_kind(value)}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """A boolean."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} should be true or false, found {_kind(value)}")
        return value

    def numbers(self, key: str) -> npt.NDArray[np.generic]:
        """An array of numbers, a view of the file."""
        array = self._array(key)
        if array.element_type == STRING:
            raise self.fault(f"{key} should hold numbers, found strings")
        dtype = np.dtype(NUMBER_TYPES[array.element_type])
        return np.frombuffer(self.mapping, dtype, array.count, array.start)

    def strings(self, key: str) -> list[str]:
        """An array of strings, decoded now (about 0.4 microseconds each)."""
        array = self._array(key)
        if array.ends is None:
            raise self.fault(f"{key} should hold strings, found numbers")
        data, start = self.mapping[array.start : array.end], array.start
        begins = chain((start,), array.ends)
        try:
            return [
                data[begin - start + 8 : end - start].decode()
                for begin, end in zip(begins, array.ends, strict=False)
            ]
        except UnicodeDecodeError:
            raise self.fault(f"{key} holds a string that is not UTF-8") from None

    def index_of(self, key: str, text: str) -> int | None:
        """Position of the first string equal to `text` in an array of strings, without decoding."""
        array = self._array(key)
        if array.ends is None:
            raise self.fault(f"{key} should hold strings, found numbers")
        content = text.encode()
        entry = _U64.pack(len(content)) + content
        at = array.start
        while (at := self.mapping.find(entry, at, array.end)) >= 0:
            position = int(np.searchsorted(array.ends, at + len(entry)))
            begin = array.ends[position - 1] if position else array.start
            if at == begin:  # not bytes that only look like an entry, inside another string
                return position
            at += 1
        return None

    def _value(self, key: str, default: Value | None) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise self.fault(f"the metadata key {key} is missing")
        return value

    def _array(self, key: str) -> GgufArray:
        value = self._value(key, None)
        if not isinstance(value, GgufArray):
            raise self.fault(f"{key} should be an array, found {_kind(value)}")
        return value

    def _read_version(self) -> int:
        if self.mapping[:4] != MAGIC:
            raise self.fault("not a GGUF file")
        self._cursor.at = 4
        version = self._cursor.u32("the version")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise self.fault("a big-endian GGUF file, which is not supported")
            raise self.fault(f"GGUF version {version} is not supported, only 2 and 3")
        return version

    def _read_alignment(self) -> int:
        alignment = self.integer("general.alignment", DEFAULT_ALIGNMENT)
        if not 0 < alignment <= MAX_ALIGNMENT or alignment % 8:
            raise self.fault(f"general.alignment is {alignment}, not a positive multiple of 8")
        return alignment


class _Cursor:
    """Reads on from a position, and never past the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def fault(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}")

    def take(self, num_bytes: int, what: str) -> int:
        """Step over bytes that must be there; returns where they begin."""
        at = self.at
        if num_bytes > self.size - at:
            raise self.fault(
                f"truncated or damaged: {what} needs {num_bytes} bytes at offset {at}, "
                f"the file ends at {self.size}"
            )
        self.at = at + num_bytes
        return at

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, min_bytes: int) -> int:
        """A number of things that take at least `min_bytes` each in the rest of the file."""
        count = self.u64(f"the number of {what}")
        if count > (self.size - self.at) // min_bytes:
            raise self.fault(f"truncated or damaged: {count} {what} do not fit in the file")
        return count

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            raise self.fault(f"truncated or damaged: {what} of {length} bytes")
        start = self.take(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError:
            raise self.fault(f"truncated or damaged: {what} is not UTF-8") from None

    def value(self, key: str) -> Value:
        key = _shown(key)
        kind = self.u32(f"the type of {key}")
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY:
            return self.array(key)
        dtype = self.dtype(kind, key)
        start = self.take(dtype.itemsize, key)
        value = np.frombuffer(self.data, dtype, 1, start)[0]
        return bool(value) if kind == BOOL else value.item()

    def array(self, key: str) -> GgufArray:
        kind = self.u32(f"the element type of {key}")
        if kind == ARRAY:
            raise self.fault(f"{key} is an array of arrays, which is not supported")
        if kind == STRING:
            return self.string_array(key)
        itemsize = self.dtype(kind, key).itemsize
        count = self.count(f"elements of {key}", itemsize)
        start = self.take(count * itemsize, key)
        return GgufArray(kind, count, start, self.at)

    def string_array(self, key: str) -> GgufArray:
        count = self.count(f"strings of {key}", 8)
        start = at = self.at
        ends = PackedInts("Q")
        length_at, data = _U64.unpack_from, self.data
        try:
            for _ in range(count):  # the hot loop: one pass over up to a few 100,000 lengths
                at += 8 + length_at(data, at)[0]
                ends.append(at)
        except (struct.error, OverflowError):
            at = self.size + 1
        if at > self.size:  # positions only grow, so the last one tells about all of them
            raise self.fault(f"truncated or damaged: the strings of {key} run past the file's end")
        self.at = at
        return GgufArray(STRING, count, start, at, ends)

    def dtype(self, kind: int, key: str) -> np.dtype[np.generic]:
        if kind not in NUMBER_TYPES:
            raise self.fault(f"truncated or damaged: {key} has the unknown value type {kind}")
        return np.dtype(NUMBER_TYPES[kind])

    def tensor(self) -> GgufTensor:
        name = self.string("a tensor name", limit=MAX_NAME_BYTES)
        if not name.isprintable():
            raise self.fault(f"truncated or damaged: a tensor is called {_shown(name)}")
        num_dims = self.u32(f"the shape of {name}")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.fault(f"tensor {name} has {num_dims} dimensions, expected 1 to {MAX_DIMS}")
        dims = [self.u64(f"the shape of {name}") for _ in range(num_dims)]
        type_id = self.u32(f"the type of {name}")
        return GgufTensor(name, tuple(reversed(dims)), type_id, self.u64(f"the offset of {name}"))


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _shown(name: str) -> str:
    """A name as it may stand in a message of one line."""
    return name if name.isprintable() and len(name) < 100 else repr(name)[:100]


def _kind(value: object) -> str:
    return "an array" if isinstance(value, GgufArray) else repr(value)[:80]
