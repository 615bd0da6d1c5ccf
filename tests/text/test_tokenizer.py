"""Tokenizers from folders and GGUF files: ids, bytes, marks, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from headrace.errors import ModelError, ValidationError
from headrace.text.score_merges import merges_from_scores
from headrace.text.tokenizer import Tokenizer, load_tokenizer
from tests.gguf_files import LITTLE_LLAMA, write_gguf
from tests.text.conftest import make_byte_level, make_piece

TEXTS = [
    "", "a", "Hello, world!", " leading and trailing ", "  two  spaces\n\n\n and tabs\t\t",
    "日本語のテキスト", "émigré e\u0301 \u212b", "👩‍👩‍👧‍👦 🏳️‍🌈", "1234567 3.14", "I'll WE'RE don't",
    "<|im_start|>user\nhi<|im_end|>", "<bos>x<eos>", "<0x41>", "\u0001\x00 \u200b", "한국어 각",
    "▁▁ x", "def f(x):\n    return x\n", "a" * 2000, "\r\n\r\n x", "مرحبا بالعالم",
]  # fmt: skip


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    ranges = [(32, 127), (32, 127), (0xA0, 0x250), (0x4E00, 0x9FFF), (0x1F300, 0x1F700), (9, 14)]
    return [
        "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 120)))
        for _ in range(count)
    ]


def test_byte_level_text_round_trips(byte_level: Tokenizer) -> None:
    for text in [*TEXTS, *random_texts(100, 1)]:
        ids = byte_level.encode(text)
        assert ids[0] == byte_level.bos_token_id
        if "<bos>" not in text:
            assert byte_level.decode(ids) == text
        assert byte_level.encode(text, add_special_tokens=False) == ids[1:]


def test_piece_text_round_trips(piece: Tokenizer, bare_piece: Tokenizer) -> None:
    for text in [*TEXTS, *random_texts(100, 2)]:
        if "<0x" in text or "▁" in text:
            continue  # these spell what the vocabulary uses for itself
        for tokenizer in (piece, bare_piece):
            ids = tokenizer.encode(text)
            assert ids[0] == 1
            assert tokenizer.decode(ids) == text


def test_marks_in_text_become_their_tokens(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("the<end> the<tool>", add_special_tokens=False)
    assert ids.count(byte_level.eos_token_id) == 1
    assert byte_level.decode(ids) == "the the<tool>"
    assert byte_level.decode(ids, skip_special_tokens=False) == "the<end> the<tool>"


def test_token_text_and_bytes_are_those_of_the_message(
    byte_level: Tokenizer, piece: Tokenizer
) -> None:
    (the,) = byte_level.encode(" the", add_special_tokens=False)
    assert byte_level.token_text(the) == " the"
    assert byte_level.token_bytes(the) == b" the"
    assert byte_level.token_bytes(0xC3) == b"\xc3"
    assert byte_level.token_text(0xC3) == "\ufffd"
    assert byte_level.token_text(byte_level.eos_token_id or 0) == "<end>"
    assert piece.token_text(3 + 0x41) == "A"
    assert piece.token_bytes(3 + 0xE2) == b"\xe2"
    assert [piece.token_text(i) for i in piece.encode("the", add_special_tokens=False)] == [" the"]
    text = "naïve 日本 the 👍"
    for tokenizer in (byte_level, piece):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip() == text


def test_ids_without_a_token_have_no_text(byte_level: Tokenizer) -> None:
    for token_id in (-1, byte_level.vocab_size, 2**40):
        assert byte_level.token_bytes(token_id) == b""
        assert byte_level.token_text(token_id) == ""


@pytest.mark.parametrize("bad", [-1, 264, 2**32, 2**64, True, 1.0, "a", None])
def test_decode_refuses_what_is_no_id(byte_level: Tokenizer, bad: Any) -> None:
    assert byte_level.vocab_size == 264
    with pytest.raises(ValidationError, match="is not a token id"):
        byte_level.decode([1, bad])
    assert byte_level.decode([]) == ""


def test_lone_surrogate_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(ValidationError, match="lone surrogate"):
        byte_level.encode("x\ud800y")
    assert byte_level.decode(byte_level.encode("\U0001f600")) == "\U0001f600"


def test_len_bound_is_never_above_the_number_of_tokens(
    byte_level: Tokenizer, piece: Tokenizer, bare_piece: Tokenizer
) -> None:
    for tokenizer in (byte_level, piece, bare_piece):
        for text in [*TEXTS, *random_texts(60, 3), "the " * 500, " the" * 500, "<end>" * 50]:
            assert tokenizer.len_bound(text) <= len(tokenizer.encode(text)), text
    assert byte_level.len_bound("x" * 60) == 10  # the longest token is <tool>


def test_facts_are_told(byte_level: Tokenizer, piece: Tokenizer) -> None:
    assert (byte_level.bos_token, byte_level.eos_token) == ("<bos>", "<end>")
    assert byte_level.eos_token_ids == [byte_level.eos_token_id]
    assert byte_level.is_special(byte_level.eos_token_id or 0)
    assert not byte_level.is_special(byte_level.vocab_size - 1)
    assert byte_level.chat_template is not None
    assert piece.unk_token == "<unk>"
    assert piece.chat_template is None
    assert (piece.pad_token, piece.pad_token_id) == (None, None)


def test_end_of_turn_ids_of_the_file_are_eos_ids(tmp_path: Path) -> None:
    tokenizer = make_byte_level(
        tmp_path / "x.gguf",
        **{"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.add_eos_token": True},
    )
    assert tokenizer.eos_token_ids == [tokenizer.eos_token_id, 1]
    assert tokenizer.encode("a")[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv' is not supported.*--tokenizer"),
        ({"tokenizer.ggml.pre": "martian"}, "pre-tokenizer 'martian' is not supported"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "not two tokens"),
        ({"tokenizer.ggml.merges": ["a q"]}, "merges holds 'q', which is no token"),
        ({"tokenizer.ggml.merges": ["b a"]}, "vocabulary and its merges do not fit"),
        ({"tokenizer.ggml.eos_token_id": 4}, "eos_token_id is 4, there are 4 tokens"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "3 entries for 4 tokens"),
        ({"tokenizer.ggml.tokens": 5}, "should be an array"),
    ],
)
def test_gguf_vocabulary_that_cannot_be_used_is_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "x.gguf", {**LITTLE_LLAMA, **more})
    with pytest.raises(ModelError, match=message):
        load_tokenizer(path)


def test_piece_vocabulary_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="2 entries for"):
        make_piece(tmp_path / "a", **{"tokenizer.ggml.scores": np.zeros(2, np.float32)})
    with pytest.raises(ModelError, match="twice"):
        make_piece(tmp_path / "b", pieces=["x"])
    with pytest.raises(ModelError, match="unknown_token_id is 9999"):
        make_piece(tmp_path / "c", **{"tokenizer.ggml.unknown_token_id": 9999})


@pytest.mark.parametrize("make", [make_byte_level, make_piece])
def test_random_changes_to_a_vocabulary_never_crash(
    tmp_path: Path, make: Callable[[Path], Tokenizer]
) -> None:
    make(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "changed.gguf"
    rng = random.Random(9)
    outcomes = set()
    messages = []
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 4))):
            changed[rng.randrange(len(content))] = rng.choice((0, 1, 32, 255, rng.randrange(256)))
        path.write_bytes(changed)
        try:
            tokenizer = load_tokenizer(path)
            tokenizer.decode(tokenizer.encode("the é 日 <end> x"))
            outcomes.add("read")
        except ModelError as error:
            outcomes.add("refused")
            messages.append(str(error))
    assert outcomes == {"read", "refused"}
    assert all(message.isprintable() for message in messages)


def test_merges_from_scores_are_all_splits_best_score_first() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc", "é", "éa", "x"]
    scores = np.array([0, 0, 0, -2, -1, -3, 0, -1, 0], np.float32)
    expected = [("b", "c"), ("é", "a"), ("a", "b"), ("ab", "c"), ("a", "bc")]
    assert merges_from_scores(tokens, scores) == expected


def test_merges_from_scores_equal_a_plain_search() -> None:
    rng = random.Random(11)
    tokens = sorted({"".join(rng.choices("abcé日", k=rng.randrange(1, 7))) for _ in range(3000)})
    scores = -np.array(rng.sample(range(len(tokens)), len(tokens)), np.float64)
    score_of = dict(zip(tokens, scores.tolist(), strict=True))
    plain = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in score_of and token[cut:] in score_of
    ]
    plain.sort(key=lambda pair: (-score_of[pair[0] + pair[1]], -len(pair[0])))
    assert len(plain) > 1000
    assert merges_from_scores(tokens, scores) == plain


def write_folder(folder: Path, **files: Any) -> Path:
    """A byte-level tokenizer folder with these further files (name with _ for the last dot)."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, [])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(["<think>"])
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    return folder


def test_folder_settings_are_read(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        tokenizer_config_json={
            "bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True,
            "chat_template": [{"name": "tool_use", "template": "t"},
                              {"name": "default", "template": "d"}],
            "additional_special_tokens": ["<think>"],
        },
        special_tokens_map_json={"pad_token": "</s>"},
    )  # fmt: skip
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == 259
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        256,
        257,
        257,
    )
    assert tokenizer.encode("a")[0] == 256
    assert tokenizer.chat_template == "d"
    assert tokenizer.is_special(258)
    write_folder(tmp_path, chat_template_jinja="own file")
    assert load_tokenizer(folder).chat_template == "own file"


def test_explicit_false_takes_bos_away(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer_config_json={"bos_token": "<s>"})
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    backend.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).encode("a")[0] == 256
    config = {"bos_token": "<s>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert len(load_tokenizer(folder).encode("a")) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_json": "{}"}, "not a usable tokenizer"),
        ({"tokenizer_config_json": "[]"}, "should hold a JSON object"),
        ({"tokenizer_config_json": {"chat_template": 5}}, "chat template is not a text"),
        ({"tokenizer_config_json": {"additional_special_tokens": 5}}, "should be a list"),
    ],
)
def test_folder_that_cannot_be_used_is_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    write_folder(tmp_path, **files)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path)


def test_ids_may_have_gaps(tmp_path: Path) -> None:
    file = write_folder(tmp_path) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["a"] = 700
    file.write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 701
    assert tokenizer.encode("a") == [700]


def test_folder_without_tokenizer_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*--skip-tokenizer-init"):
        load_tokenizer(tmp_path)


def test_decoder_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.decoder = tokenizers.decoders.CTC()
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="decoder CTC is not supported"):
        load_tokenizer(folder)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m",
                                  "qwen2.5-coder-0.5b-instruct"])  # fmt: skip
def test_real_tokenizers_agree_with_each_other_and_the_reference(
    model_dir: Callable[[str], Path], expected: dict[str, Any], name: str
) -> None:
    (gguf,) = model_dir(f"{name}-gguf").glob("*.gguf")
    from_gguf, from_folder = load_tokenizer(gguf), load_tokenizer(model_dir(name))
    reference = tokenizers.Tokenizer.from_file(str(model_dir(name) / "tokenizer.json"))
    for text in [*TEXTS, *random_texts(150, 4)]:
        ids = reference.encode(text).ids
        assert from_folder.encode(text) == ids
        assert from_gguf.encode(text) == ids
        assert from_gguf.len_bound(text) <= len(ids)
        for skip in (True, False):
            assert from_gguf.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    for prompt in expected[name]["prompts"]:
        if "prompt" in prompt:
            assert from_gguf.encode(prompt["prompt"]) == prompt["prompt_token_ids"]
    rng = random.Random(5)
    ids = [rng.randrange(from_folder.vocab_size) for _ in range(5000)]
    assert from_gguf.decode(ids) == from_folder.decode(ids) == reference.decode(ids)
    assert from_gguf.eos_token_id == from_folder.eos_token_id
    assert from_gguf.chat_template == from_folder.chat_template
