"""Reads safetensors files, one or several, as mapped tensors. Checks every offset against the file.

Layout: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from headrace.errors import ModelError
from headrace.ops.formats import StoredTensor, WeightFormat

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8
DTYPES = {"F32": WeightFormat.F32, "F16": WeightFormat.F16, "BF16": WeightFormat.BF16}


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    format: WeightFormat
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model folder: of `model.safetensors`, or of the shards its index names.

    Raises:
        ModelError: a file that is missing, damaged or in a dtype headrace does not read.
    """
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    if (folder / SINGLE).is_file():
        return read_safetensors_file(folder / SINGLE)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ModelError(
            f"{folder}: expected {SINGLE}, {INDEX} or exactly one .safetensors file, "
            f"found {len(found)}"
        )
    return read_safetensors_file(found[0])


def read_safetensors_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises ModelError as `read_safetensors`."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    header, start = _read_header(path, data)
    size = len(data) - start
    entries = [
        _check_entry(path, name, entry, size)
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    _check_overlaps(path, entries)
    return {entry.name: _view(path, data, start, entry) for entry in entries}


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        items = dict(weight_map)
    except OSError as error:
        raise ModelError(f"{index}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ModelError(f"{index}: not a JSON object with a weight_map") from None
    for name, shard in items.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index}: tensor {name} is in {shard!r}, which is not a file name")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(items.values())):
        for name, tensor in read_safetensors_file(folder / shard).items():
            if name in tensors:
                raise ModelError(
                    f"{folder / shard}: tensor {name} is in {tensors[name].source} too"
                )
            tensors[name] = tensor
    for name, shard in items.items():
        if name not in tensors:
            raise ModelError(
                f"{folder / shard}: the tensor {name} is missing, though {INDEX} has it"
            )
    return tensors


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header and the offset at which the tensor data begins."""
    if len(data) < 8:
        raise ModelError(f"{path}: truncated: {len(data)} bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ModelError(
            f"{path}: truncated or damaged: a header of {length} bytes in a file of {len(data)}"
        )
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: damaged header: {error}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: damaged header: not a JSON object")
    return header, 8 + length


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a name appears twice")
    return unique


def _check_entry(path: Path, name: str, entry: object, size: int) -> _Entry:
    """One tensor's entry, when all of it makes sense for `size` bytes of data."""
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _are_sizes(shape) or len(shape) > MAX_DIMS:
        raise ModelError(f"{path}: tensor {name} has a damaged shape: {str(shape)[:80]}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ModelError(f"{path}: tensor {name} has damaged data_offsets: {str(offsets)[:80]}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelError(
            f"{path}: tensor {name} has the dtype {str(dtype)[:20]}; supported: {', '.join(DTYPES)}"
        )
    begin, end = offsets
    if not begin <= end <= size:
        raise ModelError(
            f"{path}: truncated or damaged: tensor {name} lies at {begin} to {end} "
            f"of {size} bytes of data"
        )
    expected = math.prod(shape) * DTYPES[dtype].block_bytes
    if end - begin != expected:
        raise ModelError(
            f"{path}: tensor {name} of shape {shape} in {dtype} takes {expected} bytes, "
            f"but {end - begin} are stored"
        )
    return _Entry(name, DTYPES[dtype], tuple(shape), begin, end)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _check_overlaps(path: Path, entries: list[_Entry]) -> None:
    last: _Entry | None = None
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if last is not None and entry.begin < last.end:
            raise ModelError(f"{path}: damaged: tensors {last.name} and {entry.name} overlap")
        last = entry


def _view(path: Path, data: mmap.mmap, start: int, entry: _Entry) -> StoredTensor:
    raw = np.frombuffer(data, np.uint8, entry.end - entry.begin, start + entry.begin)
    if len(entry.shape) > 1:
        rows = math.prod(entry.shape[:-1])
        raw = raw.reshape(rows, entry.format.row_bytes(entry.shape[-1]))
    return StoredTensor(entry.name, entry.format, entry.shape, raw, str(path))
