"""Files of a Hugging Face folder, written."""

from __future__ import annotations

import json
import struct


def write_json(path, value, indent=2):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=indent, ensure_ascii=False)
        f.write("\n")


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, function giving the bytes in pieces)."""
    width = {"BF16": 2, "F16": 2, "F32": 4}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        dtype, shape, _ = tensors[name]
        n = width[dtype]
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            start = f.tell()
            for piece in tensors[name][2]():
                f.write(piece)
            begin, end = header[name]["data_offsets"]
            assert f.tell() - start == end - begin, name
