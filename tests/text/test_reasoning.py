"""Thoughts in text: whatever way it is cut, the same thought and content."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from headrace.text.answer_parser import AnswerParser
from headrace.text.reasoning import FORMATS, ReasoningCounter, ReasoningParser, format_of
from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import Content, Reasoning, ToolCall, joined
from headrace.text.tool_calls.table import FAMILIES


def parse(name: str, pieces: Iterable[str], *, is_open: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(FORMATS[name], is_open=is_open)
    parts = [*map(parser.feed, pieces), parser.finish()]
    return "".join(thought for thought, _ in parts), "".join(content for _, content in parts)


GRANITE_32 = "Here is my thought process:\n\nHm.\n\nHere is my response: Yes."
SAMPLES: list[tuple[str, bool, str, str, str]] = [
    ("qwen3", False, "<think>x</think>answer", "x", "answer"),
    ("qwen3", False, "<think>\nx\n\ny\n</think>\n\nanswer\n", "x\n\ny", "answer\n"),
    ("qwen3", False, "<think></think>answer", "", "answer"),
    ("qwen3", False, "<think>\n\n</think>\n\nanswer", "", "answer"),
    ("qwen3", False, "answer", "", "answer"),
    ("qwen3", False, "", "", ""),
    ("qwen3", False, " \n", "", " \n"),
    ("qwen3", False, " \n answer", "", " \n answer"),
    ("qwen3", False, "\n<think>x</think>y", "x", "y"),
    ("qwen3", False, "a <think>x</think>", "", "a <think>x</think>"),
    ("qwen3", False, "<thin air", "", "<thin air"),
    ("qwen3", False, "<", "", "<"),
    ("qwen3", False, "</think>answer", "", "</think>answer"),
    # cut in the thought
    ("qwen3", False, "<think>x\n", "x\n", ""),
    ("qwen3", False, "<think>x</thi", "x</thi", ""),
    ("qwen3", False, "<think>a < b </ c", "a < b </ c", ""),
    ("qwen3", False, "<think>", "", ""),
    ("qwen3", False, "<thi", "", "<thi"),
    # the thought was opened in the prompt
    ("deepseek_r1", True, "x\n</think>\n\nanswer", "x", "answer"),
    ("deepseek_r1", True, "<think>\nx</think>answer", "x", "answer"),
    ("deepseek_r1", True, "all of it", "all of it", ""),
    ("deepseek_r1", True, "", "", ""),
    ("deepseek_r1", False, "<think>日本 👩‍👩‍👧</think>é</think>", "日本 👩‍👩‍👧", "é</think>"),
    ("granite", False, "<think>x</think><response>y</response>", "x", "y"),
    ("granite", False, "<think>x</think>\n<response>y</response> z", "x", "y z"),
    ("granite", False, "<think>x</think>y</response>", "x", "y</response>"),
    ("granite", False, "<think>x</think><response>y</resp", "x", "y</resp"),
    ("granite", False, "<think>x</think><respo", "x", "<respo"),
    ("granite", False, GRANITE_32, "Hm.", " Yes."),
    ("granite", False, "Here's my thought process: a Here's my response:b", " a ", "b"),
    ("granite", False, "Here is my dog", "", "Here is my dog"),
    ("mistral", False, "[THINK]x[/THINK]y", "x", "y"),
    ("seed_oss", False, "<seed:think>x</seed:think>y", "x", "y"),
]


@pytest.mark.parametrize(("name", "is_open", "text", "thought", "content"), SAMPLES)
def test_thought_and_content_however_the_text_is_cut(
    name: str, is_open: bool, text: str, thought: str, content: str
) -> None:
    assert parse(name, [text], is_open=is_open) == (thought, content)
    assert parse(name, text, is_open=is_open) == (thought, content)
    for cut in range(len(text)):
        assert parse(name, [text[:cut], text[cut:]], is_open=is_open) == (thought, content)
    for end in range(len(text)):
        assert parse(name, text[:end], is_open=is_open) == parse(
            name, [text[:end]], is_open=is_open
        )


@pytest.mark.parametrize("name", FORMATS)
def test_random_markup_is_read_alike_however_it_is_cut(name: str) -> None:
    rng = random.Random(name)
    format = FORMATS[name]
    pieces = [*format.starts, *format.ends, *(format.answer_marks or ()), "\n", " ", "<", "</", "x"]
    for _ in range(500):
        text, is_open = "".join(rng.choices(pieces, k=rng.randrange(9))), rng.random() < 0.3
        whole = parse(name, [text], is_open=is_open)
        assert parse(name, text, is_open=is_open) == whole, text
        cut = rng.randrange(len(text) + 1)
        assert parse(name, [text[:cut], text[cut:]], is_open=is_open) == whole, text


def test_thoughts_come_before_calls_and_hold_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f"<think>\nI call {call}\n</think>\n\nNow:\n{call}"
    expected = [Reasoning(f"I call {call}"), Content("Now:"), ToolCall(0, "f", "{}")]
    for pieces in ([text], text, *([text[:i], text[i:]] for i in range(len(text)))):
        parser = AnswerParser(
            ReasoningParser(FORMATS["qwen3"], is_open=False),
            ToolCallParser(FAMILIES["hermes"], {"f": {}}),
        )
        events = list(itertools.chain.from_iterable(map(parser.feed, pieces))) + parser.finish()
        assert joined(events) == expected


@pytest.mark.parametrize(
    ("is_open", "tokens", "count"),
    [
        (False, ["<think>", "a", "b", "</think>", "c"], 2),
        (False, ["a", "<think>", "b"], 0),
        (True, ["a", "b", "c", "</think>", "d"], 3),
        (True, ["a", "b"], 2),
        (False, ["<think>", "é"[:1], "日", "\n", "</think>"], 3),
        (False, [], 0),
    ],
)
def test_tokens_of_thoughts_are_counted(is_open: bool, tokens: list[str], count: int) -> None:
    for pieces in ([range(len(tokens))], [[i] for i in range(len(tokens))]):
        counter = ReasoningCounter(
            ReasoningParser(FORMATS["qwen3"], is_open=is_open), lambda i: tokens[i].encode()
        )
        for piece in pieces:
            counter.add(piece)
        assert counter.num_tokens == count


def test_prompts_tell_whether_a_thought_is_open() -> None:
    format = FORMATS["qwen3"]
    assert format.is_opened("<|im_start|>assistant\n<think>\n")
    assert not format.is_opened("<think>\n\n</think>\n\n")
    assert not format.is_opened("What does <think> mean?<|im_start|>assistant\n")
    assert format.is_closed("<think>\n\n</think>\n\n")
    assert format.is_open_within("<think>a</think> <think> b")
    assert not format.is_open_within("<think>a</think> b")
    assert not format.is_open_within("b")


@pytest.mark.parametrize(
    ("template", "model_type", "name"),
    [
        ("{{ '<think>' }}", "qwen3", "qwen3"),
        ("{{ x.split('</think>') }}", "qwen2", "qwen3"),
        ("{{ x.split('</think>') }}", "deepseek_v3", "deepseek_r1"),
        ("<think> <response>", "granite", "granite"),
        ("</think> <response>", "granitemoehybrid", "granite"),
        ("Here is my thought process", "granite", "granite"),
        ("[THINK]", "mistral3", "mistral"),
        ("<seed:think>", "seed_oss", "seed_oss"),
        ("{{ messages }}", "qwen3", None),
        (None, "qwen3", None),
    ],
)
def test_format_is_found_in_the_template(
    template: str | None, model_type: str, name: str | None
) -> None:
    assert format_of(template, model_type) == name
