"""The field prompt_embeds of a request: base64 of a .npy or a safetensors file, to an array.

PyTorch's own format is a pickle, which may run code while it is read, and is refused.
"""

from __future__ import annotations

import ast
import base64
import json
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.errors import ValidationError

Floats: TypeAlias = npt.NDArray[Any]
NAME = "prompt_embeds"
NPY_MAGIC = b"\x93NUMPY"
NPY_DTYPES = ("<f4", "<f2", "<f8")
SAFETENSORS_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
PICKLES = (b"PK\x03\x04", b"\x80")
"""How torch.save begins: a zip file with a pickle in it, or, of old, a pickle."""
MAX_HEADER_BYTES = 4096
MAX_DIMS = 3


@dataclass(frozen=True, slots=True)
class EncodedEmbeds:
    """One value of the field, and what to call it in complaints."""

    text: str
    param: str

    def __len__(self) -> int:
        return len(self.text)


def parse_embeds(value: object, max_prompts: int) -> list[EncodedEmbeds]:
    """The values of the field: one text or a list of texts; none for null.

    Raises:
        ValidationError: another shape, or more than allowed.
    """
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, str) and one for one in values):
        raise ValidationError(f"{NAME} must be base64 text, or a list of such texts", param=NAME)
    if len(values) > max_prompts:
        raise ValidationError(
            f"a request may hold {max_prompts} prompts (--max-prompts), got {len(values)}",
            param=NAME,
        )
    is_list = values is value
    return [EncodedEmbeds(v, f"{NAME}.{i}" if is_list else NAME) for i, v in enumerate(values)]


def decode_embeds(encoded: EncodedEmbeds) -> Floats:
    """The array that a value holds. Its shape and numbers are the renderer's business.

    Raises:
        ValidationError: no base64, an unknown or an unsafe format, or a damaged file.
    """
    try:
        data = base64.b64decode(encoded.text, validate=True)
    except ValueError:
        raise ValidationError(f"{encoded.param} is not base64", param=encoded.param) from None
    try:
        if data.startswith(NPY_MAGIC):
            return _read_npy(data)
        if data[8:9] == b"{":
            return _read_safetensors(data)
        if data.startswith(PICKLES):
            raise _Unreadable(
                "is in PyTorch's own format, a pickle, which is never read here: send what "
                "numpy.save(file, tensor.float().numpy()) or safetensors.torch.save gives"
            )
        raise _Unreadable(
            "is neither a .npy file (numpy.save) nor a safetensors file, the formats read here"
        )
    except _Unreadable as fault:
        raise ValidationError(f"{encoded.param} {fault}", param=encoded.param) from None


class _Unreadable(Exception):
    """Says what is wrong, behind the name of the field."""


def _read_npy(data: bytes) -> Floats:
    """Layout: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"""
    num_bytes = 2 if data[6:7] == b"\x01" else 4  # of the length of the header
    start = 8 + num_bytes
    length = int.from_bytes(data[8:start], "little")
    try:
        if length > min(MAX_HEADER_BYTES, len(data) - start):
            raise ValueError
        header = ast.literal_eval(data[start : start + length].decode("latin-1").strip())
        descr, is_fortran, shape = (header[key] for key in ("descr", "fortran_order", "shape"))
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise _Unreadable("is not a readable .npy file") from None
    if descr not in NPY_DTYPES:
        raise _Unreadable(f"must hold floats ({', '.join(NPY_DTYPES)}), not {str(descr)[:40]!r}")
    numbers = _take(data, start + length, shape, np.dtype(descr))
    return numbers.reshape(shape, order="F" if is_fortran else "C")


def _read_safetensors(data: bytes) -> Floats:
    """Layout: https://huggingface.co/docs/safetensors/index#format"""
    length = int.from_bytes(data[:8], "little")
    try:
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError
        header = json.loads(data[8 : 8 + length])
        [entry] = [value for name, value in header.items() if name != "__metadata__"]
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise _Unreadable("is not a safetensors file with exactly one tensor") from None
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        known = ", ".join(SAFETENSORS_DTYPES)
        raise _Unreadable(f"must hold one of {known}, not {str(dtype)[:40]}")
    if (begin, end) != (0, len(data) - 8 - length):
        raise _Unreadable("is damaged: its offsets do not fit the file")
    numbers = _take(data, 8 + length, shape, np.dtype(SAFETENSORS_DTYPES[dtype]))
    if dtype == "BF16":
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.reshape(shape)


def _take(data: bytes, start: int, shape: Any, dtype: np.dtype[Any]) -> Floats:
    """All numbers from `start` on, when they are as many as the shape says."""
    sizes = list(shape) if isinstance(shape, (list, tuple)) else [-1]
    if len(sizes) > MAX_DIMS or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise _Unreadable("has no usable shape")
    if 0 in sizes:  # the others could be of any size: no array holds such a shape
        raise _Unreadable(f"holds no numbers: its shape is {sizes}")
    if math.prod(sizes) * dtype.itemsize != len(data) - start:
        raise _Unreadable(f"is damaged: the shape {sizes} does not fit {len(data) - start} bytes")
    return np.frombuffer(data, dtype, offset=start)
