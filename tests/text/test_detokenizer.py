"""The text of an answer, token by token: equal however it is cut, exact about bytes and stops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer, load_tokenizer

KINDS = ("byte_level", "piece", "bare_piece")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def make(
    tokenizer: Tokenizer, stop: Sequence[str] = (), prompt: Sequence[int] | None = None, **more: Any
) -> IncrementalDetokenizer:
    options = {"include_stop_str_in_output": False, "skip_special_tokens": True, **more}
    prompt = tokenizer.encode("the") if prompt is None else prompt
    return IncrementalDetokenizer(tokenizer, prompt_token_ids=prompt, stop=list(stop), **options)


def stream(
    machine: IncrementalDetokenizer, chunks: Iterable[Sequence[int]]
) -> tuple[list[str], str | None]:
    """All deltas and the stop string, as a client would see them."""
    deltas = []
    for chunk in chunks:
        stop = machine.update(chunk, stop_terminated=False)
        deltas.append(machine.next_text(finished=stop is not None, delta=True))
        if stop is not None:
            return deltas, stop
    deltas.append(machine.next_text(finished=True, delta=True))
    return deltas, None


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def bytes_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte; both kinds of vocabulary hold all single bytes."""
    first = next(i for i in range(300) if tokenizer.token_bytes(i) == b"\0")
    return [first + byte for byte in text.encode()]


def random_cuts(ids: Sequence[int], rng: random.Random) -> list[Sequence[int]]:
    chunks, at = [], 0
    while at < len(ids):
        size = rng.randrange(1, 6)
        chunks.append(ids[at : at + size])
        at += size
    return chunks


@pytest.mark.parametrize("skip", [True, False])
def test_deltas_of_random_tokens_join_to_decode(tokenizer: Tokenizer, skip: bool) -> None:
    rng = random.Random(1)
    prompt = ids_of(tokenizer, "x")
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(1, 40))]
        machine = make(tokenizer, prompt=prompt, skip_special_tokens=skip)
        deltas, _ = stream(machine, random_cuts(ids, rng))
        whole = tokenizer.decode([*prompt, *ids], skip)
        assert tokenizer.decode(prompt) + "".join(deltas) == whole
        assert machine.text == "".join(deltas)
        assert machine.token_ids == ids
        at_once = make(tokenizer, prompt=prompt, skip_special_tokens=skip)
        at_once.update(ids, stop_terminated=False)
        assert at_once.next_text(finished=True, delta=False) == machine.text


@pytest.mark.parametrize("text", ["héé", "日本語", "👩‍👩‍👧‍👦!", "a👍b", "ß€𝄞", "שלום"])
def test_no_delta_holds_a_part_of_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = bytes_ids(tokenizer, text)
    deltas, _ = stream(make(tokenizer), [[token_id] for token_id in ids])
    assert "".join(deltas) == text
    assert not [delta for delta in deltas if "\ufffd" in delta]


def test_answer_cut_at_every_byte_ends_alike_streamed_and_whole(tokenizer: Tokenizer) -> None:
    ids = bytes_ids(tokenizer, "é日👍")
    for size in range(1, len(ids) + 1):
        machine = make(tokenizer)
        deltas, _ = stream(machine, [[token_id] for token_id in ids[:size]])
        whole = make(tokenizer)
        whole.update(ids[:size], stop_terminated=False)
        expected = "é日👍".encode()[:size].decode(errors="replace")
        assert "".join(deltas) == expected
        assert machine.text == expected
        assert whole.next_text(finished=True, delta=False) == expected
        assert machine.next_text(finished=True, delta=True) == ""


def test_bytes_that_are_no_utf8_are_replaced_and_what_follows_is_kept(tokenizer: Tokenizer) -> None:
    raw = [b"\xe6", b"\x97", b"a", b"\xff", b"\x80", b"b", b"\xed", b"\xa0", b"\x80", b"\xf0"]
    base = bytes_ids(tokenizer, "\0")[0]
    ids = [base + byte[0] for byte in raw]
    deltas, _ = stream(make(tokenizer), [[token_id] for token_id in ids])
    assert "".join(deltas) == b"".join(raw).decode(errors="replace") == tokenizer.decode(ids)


TEXT = "one STOP two é日 STO stop END"
STOPS = ["STOP", "S", "one", "é", "日 ", "END", "STO s", "absent", TEXT]


def expected_end(stops: Sequence[str]) -> tuple[str, str | None]:
    """The text and the stop, by looking at every beginning of the text."""
    for end in range(1, len(TEXT) + 1):
        found = [stop for stop in stops if TEXT[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return TEXT[: end - len(longest)], longest
    return TEXT, None


MANY_STOPS = [["two é", "P t"], ["é日", "日"], ["TOP two", "O"], STOPS]


@pytest.mark.parametrize("stops", [*([stop] for stop in STOPS), *MANY_STOPS])
def test_stop_strings_are_found_wherever_tokens_are_cut(
    tokenizer: Tokenizer, stops: list[str]
) -> None:
    rng = random.Random(2)
    ids = bytes_ids(tokenizer, TEXT)
    cuts: list[list[Sequence[int]]] = [[ids], [[token_id] for token_id in ids]]
    cuts += [[ids[:at], ids[at:]] for at in range(1, len(ids))]
    cuts += [random_cuts(ids, rng) for _ in range(20)]
    text, stop = expected_end(stops)
    for chunks in cuts:
        machine = make(tokenizer, stops)
        deltas, found = stream(machine, chunks)
        assert ("".join(deltas), machine.text, found) == (text, text, stop)
        assert tokenizer.decode(machine.token_ids).endswith(stop or TEXT)


def test_every_false_start_is_sent_later_unchanged(byte_level: Tokenizer) -> None:
    text = "ababac"
    for size in range(1, 6):
        stop = text[:size] + "!"
        deltas, found = stream(make(byte_level, [stop]), [[i] for i in bytes_ids(byte_level, text)])
        assert (found, "".join(deltas)) == (None, text)


def test_no_part_of_a_stop_string_is_ever_sent(byte_level: Tokenizer) -> None:
    machine = make(byte_level, ["<END>"])
    sent = ""
    for token_id in bytes_ids(byte_level, "text <EN <END>"):
        stop = machine.update([token_id], stop_terminated=False)
        sent += machine.next_text(finished=stop is not None, delta=True)
        assert "text <EN ".startswith(sent)
    assert sent == "text <EN "


def test_stop_string_stays_when_asked_for(byte_level: Tokenizer) -> None:
    machine = make(byte_level, ["the"], include_stop_str_in_output=True)
    ids = [*bytes_ids(byte_level, "a t"), *ids_of(byte_level, "he"), *bytes_ids(byte_level, " x")]
    deltas, stop = stream(machine, [ids])
    assert ("".join(deltas), stop) == ("a the", "the")
    assert machine.token_ids == ids[:4]  # tokens after the completing one are dropped


def test_rest_of_the_completing_token_is_dropped(byte_level: Tokenizer) -> None:
    (the,) = ids_of(byte_level, " the")
    for include, text in ((False, "a"), (True, "a t")):
        machine = make(byte_level, [" t"], include_stop_str_in_output=include)
        deltas, stop = stream(machine, [[*bytes_ids(byte_level, "a"), the, 0xC3]])
        assert ("".join(deltas), stop) == (text, " t")


def test_stop_before_min_tokens_does_not_count(byte_level: Tokenizer) -> None:
    ids = bytes_ids(byte_level, "xx-xx")
    machine = make(byte_level, ["xx"], min_tokens=2)
    deltas, stop = stream(machine, [[token_id] for token_id in ids])
    assert ("".join(deltas), stop, machine.token_ids) == ("xx-", "xx", ids)
    late = make(byte_level, ["x-"], min_tokens=2)  # completed by the third token
    assert stream(late, [ids]) == (["x"], "x-")


@pytest.mark.parametrize(
    ("include", "skip", "text"),
    [(False, True, "ab"), (False, False, "ab"), (True, True, "ab"), (True, False, "ab<end>")],
)
def test_text_of_a_stop_token_is_left_out_unless_asked_for(
    byte_level: Tokenizer, include: bool, skip: bool, text: str
) -> None:
    end = byte_level.eos_token_id
    assert end is not None
    machine = make(byte_level, include_stop_str_in_output=include, skip_special_tokens=skip)
    ids = [*bytes_ids(byte_level, "ab"), end]
    assert machine.update(ids, stop_terminated=True) is None
    assert machine.next_text(finished=True, delta=True) == text
    assert machine.token_ids == ids


def test_plain_stop_token_stays_only_when_asked_for(byte_level: Tokenizer) -> None:
    ids = bytes_ids(byte_level, "ab")
    for include, text in ((False, "a"), (True, "ab")):
        machine = make(byte_level, include_stop_str_in_output=include)
        machine.update(ids, stop_terminated=True)
        assert machine.next_text(finished=True, delta=False) == text


def test_special_token_between_bytes_of_a_character_does_not_part_them(
    byte_level: Tokenizer,
) -> None:
    end = byte_level.eos_token_id or 0
    deltas, _ = stream(make(byte_level), [[0xC3], [end], [0xA9]])
    assert "".join(deltas) == "é"


def test_leading_space_is_kept_after_text_and_dropped_at_the_beginning(piece: Tokenizer) -> None:
    ids = ids_of(piece, "the the")
    for prompt, text in ((piece.encode("x"), " the the"), ([1], "the the"), ([], "the the")):
        deltas, _ = stream(make(piece, prompt=prompt), [[token_id] for token_id in ids])
        assert "".join(deltas) == text


def test_character_begun_in_the_prompt_is_finished_in_the_answer(byte_level: Tokenizer) -> None:
    for prompt, answer, text in (
        ([0x61, 0xC3], [0xA9, 0x62], "éb"),
        ([0xF0, 0x9F, 0x91], [0x8D], "👍"),
        ([0x61, 0xC3], [0x62], "\ufffdb"),
        ([0x61, 0xFF], [0x62], "b"),
        ([0xC3, 0xA9], [0xA9], "\ufffd"),
    ):
        deltas, _ = stream(make(byte_level, prompt=prompt), [[i] for i in answer])
        assert "".join(deltas) == text


def test_cumulative_text_holds_back_like_deltas(byte_level: Tokenizer) -> None:
    machine = make(byte_level, ["STOP"])
    seen = []
    for token_id in bytes_ids(byte_level, "abcSTOx"):
        machine.update([token_id], stop_terminated=False)
        seen.append(machine.next_text(finished=False, delta=False))
    assert seen == ["", "", "", "a", "ab", "abc", "abcS"]
    assert machine.next_text(finished=True, delta=False) == "abcSTOx"


def test_ids_without_a_token_are_kept_without_text(byte_level: Tokenizer) -> None:
    machine = make(byte_level)
    ids = [0x61, byte_level.vocab_size + 5, 0x62]
    machine.update(ids, stop_terminated=False)
    assert machine.next_text(finished=True, delta=True) == "ab"
    assert machine.token_ids == ids


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m"])
def test_real_answers_stream_exactly(
    model_dir: Callable[[str], Path], expected: dict[str, Any], name: str
) -> None:
    (gguf,) = model_dir(f"{name}-gguf").glob("*.gguf")
    tokenizer = load_tokenizer(gguf)
    answers = [prompt["greedy_token_ids"] for prompt in expected[name]["prompts"]]
    answers += [ids_of(tokenizer, "Ein Käse 🧀 für 日本 — ναι, да! " * 5)]
    rng = random.Random(3)
    answers += [[rng.randrange(tokenizer.vocab_size) for _ in range(200)] for _ in range(50)]
    for ids in answers:
        deltas, _ = stream(make(tokenizer), [[token_id] for token_id in ids])
        assert "".join(deltas) == tokenizer.decode(ids)
