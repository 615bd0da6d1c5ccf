"""The GGUF header reader: values, laziness, and damage of every kind."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.hub.gguf_config import generation_config_from_gguf, hf_config_from_gguf
from headrace.hub.gguf_metadata import GgufFile
from tests.gguf_files import LITTLE_LLAMA, write_gguf, write_little_llama


def test_values_of_every_kind_are_read_back(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "x.gguf",
        {"text": "grün", "count": 7, "share": 0.5, "yes": True, "no": False,
         "numbers": np.array([1, -2], np.int16), "words": ["", "ab", "\u20ac"], "none": []},
        {"w": np.ones((2, 3), np.float32)},
    )  # fmt: skip
    gguf = GgufFile(path)
    assert gguf.string("text") == "grün"
    assert gguf.integer("count") == 7
    assert gguf.number("share") == 0.5
    assert gguf.number("count") == 7.0
    assert gguf.boolean("yes") is True
    assert gguf.boolean("no") is False
    assert gguf.numbers("numbers").tolist() == [1, -2]
    assert gguf.strings("words") == ["", "ab", "\u20ac"]
    assert gguf.strings("none") == []
    assert gguf.integer("absent", 3) == 3
    assert "count" in gguf
    assert next(iter(gguf)) == "text"
    (tensor,) = gguf.tensors
    assert (tensor.name, tensor.shape, tensor.type_id, tensor.offset) == ("w", (2, 3), 0, 0)
    assert gguf.data_start % 32 == 0


def test_version_2_is_read(tmp_path: Path) -> None:
    assert GgufFile(write_gguf(tmp_path / "x.gguf", {"a": 1}, version=2)).version == 2


def test_index_of_finds_whole_entries_only(tmp_path: Path) -> None:
    inner = struct.pack("<Q", 2).decode() + "zz"
    words = ["abc", f"q{inner}", "ab", "zz", "ab"]
    gguf = GgufFile(write_gguf(tmp_path / "x.gguf", {"words": words}))
    assert gguf.index_of("words", "ab") == 2
    assert gguf.index_of("words", "zz") == 3
    assert gguf.index_of("words", "b") is None


@pytest.mark.parametrize("reader", ["string", "integer", "number", "boolean", "numbers", "strings"])
def test_missing_key_raises_and_names_it(tmp_path: Path, reader: str) -> None:
    gguf = GgufFile(write_gguf(tmp_path / "x.gguf", {"a": 1}))
    with pytest.raises(ModelError, match=r"x\.gguf.*some\.key is missing"):
        getattr(gguf, reader)("some.key")


@pytest.mark.parametrize(
    ("reader", "value"),
    [("string", 1), ("integer", "x"), ("integer", True), ("number", "x"), ("boolean", 1),
     ("numbers", ["x"]), ("strings", np.zeros(2, np.int32)), ("strings", 1), ("integer", ["x"])],
)  # fmt: skip
def test_value_of_another_kind_raises(tmp_path: Path, reader: str, value: object) -> None:
    gguf = GgufFile(write_gguf(tmp_path / "x.gguf", {"k": value}))
    with pytest.raises(ModelError, match="k should"):
        getattr(gguf, reader)("k")


def header(version: int = 3, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, values) + rest


def entry(key: bytes, kind: int, rest: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGU", "not a GGUF"),
        (b"GGUF", "truncated"),
        (b"PK\3\4" + b"\0" * 50, "not a GGUF"),
        (header(1), "version 1"),
        (header(4), "version 4"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (header(tensors=2**63), "do not fit"),
        (header(values=2**40), "do not fit"),
        (header(values=1, rest=struct.pack("<Q", 2**63) + b"x" * 99), "metadata key"),
        (header(values=1, rest=entry(b"k", 8, struct.pack("<Q", 2**62))), "truncated"),
        (header(values=1, rest=entry(b"k", 9, struct.pack("<IQ", 4, 2**61))), "do not fit"),
        (header(values=1, rest=entry(b"k", 9, struct.pack("<IQ", 8, 2**61))), "do not fit"),
        (header(values=1, rest=entry(b"k", 9, struct.pack("<IQQQ", 8, 2, 2**64 - 9, 0))), "past"),
        (header(values=1, rest=entry(b"k", 9, struct.pack("<IQ", 9, 1) + b"\0" * 9)), "arrays"),
        (header(values=1, rest=entry(b"k", 77, b"\0" * 9)), "value type 77"),
        (header(values=1, rest=entry(b"\xff", 0, b"\0" * 9)), "UTF-8"),
        (header(values=2, rest=entry(b"k", 0, b"\0") + entry(b"k", 0, b"\0")), "twice"),
        (header(values=1, rest=entry(b"split.count", 4, struct.pack("<I", 3))), "join the parts"),
        (header(values=1, rest=entry(b"general.alignment", 4, bytes(4))), "alignment"),
        (header(tensors=1, rest=struct.pack("<Q1sIQIQ", 1, b"w", 9, 1, 0, 0)), "9 dimensions"),
    ],
)
def test_damaged_file_raises_a_line_that_names_it(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        GgufFile(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_string_that_is_not_utf8_raises_when_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    rest = struct.pack("<IQ", 8, 1) + struct.pack("<Q", 1) + b"\xff"
    path.write_bytes(header(values=1, rest=entry(b"words", 9, rest)))
    with pytest.raises(ModelError, match="words holds a string that is not UTF-8"):
        GgufFile(path).strings("words")


def read_everything(path: Path) -> None:
    gguf = GgufFile(path)
    hf_config_from_gguf(gguf)
    generation_config_from_gguf(gguf)
    gguf.strings("tokenizer.ggml.tokens")
    gguf.numbers("tokenizer.ggml.token_type")


def test_truncation_anywhere_in_the_header_raises_model_error(tmp_path: Path) -> None:
    whole = write_little_llama(tmp_path / "whole.gguf")
    content, end = whole.read_bytes(), GgufFile(whole).data_start
    path = tmp_path / "cut.gguf"
    for size in range(0, end - 32, 3):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError):
            read_everything(path)


def test_random_byte_changes_give_a_result_or_model_error(tmp_path: Path) -> None:
    content = write_little_llama(tmp_path / "whole.gguf").read_bytes()
    end = GgufFile(tmp_path / "whole.gguf").data_start
    rng = random.Random(7)
    path = tmp_path / "changed.gguf"
    outcomes = set()
    messages = []
    for _ in range(1500):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(changed)
        try:
            read_everything(path)
            outcomes.add("read")
        except ModelError as error:
            outcomes.add("refused")
            messages.append(str(error))
    assert outcomes == {"read", "refused"}
    assert all(message.isprintable() for message in messages)


def test_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {**LITTLE_LLAMA, "general.architecture": "rwkv"})
    with pytest.raises(
        ModelError, match="'rwkv' is not supported; supported: llama, qwen2, gemma3"
    ):
        hf_config_from_gguf(GgufFile(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.expert_count", 8, "mixture-of-experts"),
        ("llama.block_count", 2**31, "more than there are tensors"),
        ("llama.embedding_length", 0, "expected a positive number"),
        ("llama.attention.head_count", "many", "should be an integer"),
        ("llama.attention.value_length", 8, "different lengths"),
    ],
)
def test_metadata_that_makes_no_sense_raises(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = write_little_llama(tmp_path / "x.gguf", {key: value})
    with pytest.raises(ModelError, match=message):
        hf_config_from_gguf(GgufFile(path))


def test_rope_scaling_is_told(tmp_path: Path) -> None:
    more = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    config = hf_config_from_gguf(GgufFile(write_little_llama(tmp_path / "x.gguf", more)))
    assert config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32
    }  # fmt: skip
    assert "partial_rotary_factor" not in config


def test_partly_rotated_heads_in_interleaved_rows_are_refused(tmp_path: Path) -> None:
    path = write_little_llama(tmp_path / "x.gguf", {"llama.rope.dimension_count": 8})
    with pytest.raises(ModelError, match="dimension_count"):
        hf_config_from_gguf(GgufFile(path))


def test_end_of_turn_token_of_the_chat_template_ends_answers(tmp_path: Path) -> None:
    more = {
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<end_of_turn>", "<end>"],
        "tokenizer.chat_template": "{{ messages[0].content }}<end_of_turn>",
        "tokenizer.ggml.eot_token_id": 3,
    }
    gguf = GgufFile(write_little_llama(tmp_path / "x.gguf", more))
    assert generation_config_from_gguf(gguf)["eos_token_id"] == [3, 2]
