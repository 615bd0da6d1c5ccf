"""The safetensors reader: single files, shards, and damage of every kind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.ops.formats import WeightFormat, dequantize
from headrace.weights.safetensors import read_safetensors, read_safetensors_file
from tests.gguf_files import write_safetensors, write_safetensors_header

MATRIX = np.arange(6, dtype="<f4").reshape(2, 3)


def f32(values: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", values.shape, values.astype("<f4").tobytes()


def test_tensors_of_every_dtype_are_views_of_the_file(tmp_path: Path) -> None:
    path = write_safetensors(
        tmp_path / "model.safetensors",
        {
            "m": f32(MATRIX),
            "h": ("F16", (3,), np.array([1, -2, 0.5], "<f2").tobytes()),
            "b": ("BF16", (2, 1), np.array([0x3F80, 0xC000], "<u2").tobytes()),
            "cube": f32(np.zeros((2, 2, 4), np.float32)),
            "scalar": f32(np.float32(5).reshape(())),
            "none": f32(np.zeros((0, 3), np.float32)),
        },
    )
    tensors = read_safetensors(tmp_path)
    assert tensors["m"].format is WeightFormat.F32
    assert tensors["m"].data.shape == (2, 12)
    assert tensors["m"].data.dtype == np.uint8
    assert not tensors["m"].data.flags.owndata
    assert not tensors["m"].data.flags.writeable
    assert tensors["m"].source == str(path)
    np.testing.assert_array_equal(dequantize(tensors["m"]), MATRIX)
    assert dequantize(tensors["h"]).tolist() == [1, -2, 0.5]
    assert dequantize(tensors["b"]).tolist() == [[1], [-2]]
    assert tensors["cube"].data.shape == (4, 16)
    assert tensors["scalar"].shape == ()
    assert tensors["none"].data.shape == (0, 12)


def test_only_file_of_another_name_is_taken(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", {"m": f32(MATRIX)})
    assert list(read_safetensors(tmp_path)) == ["m"]
    write_safetensors(tmp_path / "more.safetensors", {"m": f32(MATRIX)})
    with pytest.raises(ModelError, match="found 2"):
        read_safetensors(tmp_path)


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": f32(MATRIX)})
    write_safetensors(tmp_path / "b.safetensors", {"y": f32(MATRIX + 1), "z": f32(MATRIX + 2)})
    write_index(tmp_path, {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"})
    tensors = read_safetensors(tmp_path)
    assert sorted(tensors) == ["x", "y", "z"]
    np.testing.assert_array_equal(dequantize(tensors["z"]), MATRIX + 2)
    assert tensors["x"].source.endswith("a.safetensors")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "../a.safetensors"}, "not a file name"),
        ({"x": "/etc/passwd"}, "not a file name"),
        ({"x": 3}, "not a file name"),
        ({"x": "gone.safetensors"}, "gone.safetensors: cannot be read"),
        ({"x": "a.safetensors", "q": "a.safetensors"}, "tensor q is missing"),
        ({"x": "a.safetensors", "w": "b.safetensors"}, "x is in .*a.safetensors too"),
        (None, "not a JSON object with a weight_map"),
        ([1], "not a JSON object with a weight_map"),
    ],
)
def test_index_that_does_not_fit_raises(tmp_path: Path, weight_map: object, message: str) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": f32(MATRIX)})
    write_safetensors(tmp_path / "b.safetensors", {"w": f32(MATRIX), "x": f32(MATRIX)})
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=message):
        read_safetensors(tmp_path)


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"t": entry("I64", offsets=(0, 48))}, "tensor t has the dtype I64; supported: F32"),
        ({"t": entry("F8_E4M3")}, "dtype F8_E4M3"),
        ({"t": entry(None)}, "dtype None"),
        ({"t": entry(shape=(2, -3))}, "damaged shape"),
        ({"t": entry(shape=(2, 1.5))}, "damaged shape"),
        ({"t": entry(shape=[True, 6])}, "damaged shape"),
        ({"t": entry(shape="23")}, "damaged shape"),
        ({"t": entry(shape=[1] * 9)}, "damaged shape"),
        ({"t": entry(offsets=(0,))}, "damaged data_offsets"),
        ({"t": entry(offsets=(0, 25))}, "takes 24 bytes, but 25 are stored"),
        ({"t": entry(offsets=(24, 0))}, "lies at 24 to 0"),
        ({"t": entry(offsets=(40, 64))}, "lies at 40 to 64 of 48 bytes"),
        ({"t": entry(shape=(2**40, 2**40))}, "but 24 are stored"),
        ({"t": entry(), "u": entry(offsets=(20, 44))}, "tensors t and u overlap"),
        ({"t": 5}, "tensor t has a damaged shape"),
        ([], "not a JSON object"),
        ("x", "not a JSON object"),
    ],
)
def test_damaged_header_names_file_and_tensor(tmp_path: Path, header: Any, message: str) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors_header(path, json.dumps(header).encode(), bytes(48))
    with pytest.raises(ModelError, match=message) as caught:
        read_safetensors_file(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\1\2\3", "truncated: 3 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808 bytes"),
        ((3).to_bytes(8, "little") + b"{}", "a header of 3 bytes"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "damaged header"),
        ((60000).to_bytes(8, "little") + b"[" * 60000, "damaged header"),
        ((14).to_bytes(8, "little") + b'{"a":1,"a":22}', "a name appears twice"),
    ],
)
def test_damaged_start_raises(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_safetensors_file(path)


def test_truncation_and_random_changes_give_a_result_or_model_error(tmp_path: Path) -> None:
    whole = write_safetensors(
        tmp_path / "whole.safetensors", {"a": f32(MATRIX), "b": f32(MATRIX), "c": f32(MATRIX)}
    )
    content = whole.read_bytes()
    path = tmp_path / "x.safetensors"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError):
            read_safetensors_file(path)
    rng = random.Random(3)
    outcomes = set()
    for _ in range(1000):
        changed = bytearray(content)
        changed[rng.randrange(len(content) - 72)] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            for tensor in read_safetensors_file(path).values():
                tensor.data.sum()
            outcomes.add("read")
        except ModelError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
