"""Calls in text: whatever way it is cut, the same events; what is no call stays as it was."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import Content, Event, MoreArguments, ToolCall, joined
from headrace.text.tool_calls.table import FAMILIES, family_of
from tests.text.tool_call_samples import SAMPLES, TOOLS, Sample


def parse(family: str, pieces: Iterable[str], *, is_certain: bool = False) -> list[Event]:
    parser = ToolCallParser(FAMILIES[family], TOOLS, is_certain=is_certain)
    events = list(itertools.chain.from_iterable(map(parser.feed, pieces)))
    return joined(events + parser.finish())


def told(events: list[Event]) -> list[object]:
    """Texts as they are, calls as pairs."""
    return [e.text if isinstance(e, Content) else (e.name, e.arguments) for e in events]  # type: ignore[union-attr]


ids = [f"{sample.family}-{i}" for i, sample in enumerate(SAMPLES)]


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_sample_gives_its_events_however_it_is_cut(sample: Sample) -> None:
    family, text, expected = sample
    whole = parse(family, [text])
    assert told(whole) == expected
    assert parse(family, text) == whole
    for cut in range(len(text)):
        assert parse(family, [text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_calls_are_numbered_and_hold_json_objects(sample: Sample) -> None:
    calls = [e for e in parse(sample.family, [sample.text]) if isinstance(e, ToolCall)]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_sample_cut_short_loses_no_text(sample: Sample) -> None:
    """Calls that are whole stay; an unfinished one is text."""
    family, text, _ = sample
    for end in range(len(text)):
        events = parse(family, [text[:end]])
        assert parse(family, text[:end]) == events
        for event in events:
            if isinstance(event, Content):
                assert event.text in text
            else:
                assert isinstance(event, ToolCall)
                assert isinstance(json.loads(event.arguments), dict)
        if not any(isinstance(event, ToolCall) for event in events):
            assert "".join(map(str, told(events))) == text[:end]


PIECES = (
    "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
    "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[", "]", "(", ")", "{", "}", '"', "'", "\\", ":",
    ",", ";", "=", " ", "\n", '"name"', '"arguments"', '"parameters"', '"f"', "f", "name", "{}",
    "1", "-", "true", "é", "日", "```json", "```", "<", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>", '{"name": "f", "arguments": {}}', "f(a=1)",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_random_markup_is_read_alike_however_it_is_cut(family: str) -> None:
    rng = random.Random(family)
    for _ in range(400):
        text = "".join(rng.choices(PIECES, k=rng.randrange(12)))
        whole = parse(family, [text])
        assert parse(family, text) == whole, text
        cut = rng.randrange(len(text) + 1)
        assert parse(family, [text[:cut], text[cut:]]) == whole, text
        if all(isinstance(event, Content) for event in whole):
            assert "".join(map(str, told(whole))) == text


def work(family: str, text: str) -> int:
    """Function calls made for a text in pieces of four characters: a measure that is no timing."""
    num_calls = 0

    def count(_frame: object, _event: str, _arg: object) -> None:
        nonlocal num_calls
        num_calls += 1

    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(family, pieces)
        parse(family, [text])
    finally:
        sys.setprofile(before)
    return num_calls


def test_answer_in_json_is_streamed_once_it_can_be_no_call() -> None:
    for start in ('{"name": "Anna", ', '{"age": 5,', '```json\n{"age": 5,'):
        parser = ToolCallParser(FAMILIES["hermes"], TOOLS)
        events = [event for char in start for event in parser.feed(char)]
        assert joined(events) == [Content(start.rstrip())]


@pytest.mark.parametrize(
    "opener",
    [
        "<tool_call>",
        "[TOOL_CALLS][",
        "[TOOL_CALLS]f[ARGS]",
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        r'{"name": "\ud800", "arguments": {}}',
        r'{"name": "f", "\udc00": 1, "arguments": {}}',
        r'{"name": "f", "arguments": "{\"a\": \"\ud800\"}"}',
        '{"name": "f", "arguments": {"a": "\\ud800\n"}}',
        '{"name": "f", "arguments": {"a": "\\ud83d\\ude00\n"}}',
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_a_character_reaches_no_client(family: str, call: str, opener: str) -> None:
    text = opener + call + ("]" if opener.endswith("S][") else "")
    events = parse(family, [text])
    assert parse(family, text) == events
    for piece in told(events):
        for part in piece if isinstance(piece, tuple) else (piece,):
            str(part).encode()


@pytest.mark.parametrize(
    "schema",
    [
        *[{"type": kind} for kind in (None, 5, True, {"a": 1}, [{"x": 1}], [["a"]], [None], [])],
        *[{"enum": values} for values in (None, 5, {"a": 1}, "x", True)],
        {"anyOf": 5}, {"anyOf": [5, None]}, {"oneOf": {"a": 1}}, {"$ref": 5}, {"$ref": "#/nope/0"},
        {"$ref": ""}, 5, None, True, [], "string",
        {"anyOf": [{"$ref": "#/properties/a"}] * 5},
        {"anyOf": [{"anyOf": [{"$ref": "#/properties/a"}] * 5}] * 5},
    ],
)  # fmt: skip
def test_values_of_a_tool_with_an_odd_schema_are_texts(schema: Any) -> None:
    text = "<tool_call><function=f><parameter=a>\n1\n</parameter></function></tool_call>"
    parser = ToolCallParser(FAMILIES["qwen3_coder"], {"f": {"properties": {"a": schema}}})
    assert told(parser.feed(text) + parser.finish()) == [("f", '{"a": "1"}')]


@pytest.mark.parametrize(("family", "separator"), [("hermes", "\n"), ("llama3_json", "; ")])
@pytest.mark.parametrize("is_certain", [False, True])
def test_a_fence_may_hold_several_calls(family: str, separator: str, is_certain: bool) -> None:
    calls = [("f", '{"a": "x"}'), ("get_weather", "{}")]
    lines = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    text = f"```json\n{separator.join(lines)}\n```"
    for pieces in ([text], text):
        assert told(parse(family, pieces, is_certain=is_certain)) == calls
    assert told(parse(family, [text + " and more"])) == [text + " and more"]


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_only_tools_that_are_offered_are_called_where_only_these_may_be(sample: Sample) -> None:
    family, text, _ = sample
    for offered in ({}, {"f": TOOLS["f"]}):
        wholes = []
        for pieces in ([text], text):
            parser = ToolCallParser(FAMILIES[family], offered, only_offered=True)
            events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
            wholes.append(joined(events))
        assert wholes[0] == wholes[1]
        names = {event.name for event in wholes[0] if isinstance(event, ToolCall)}
        assert names <= set(offered)
        if not names:
            assert "".join(map(str, told(wholes[0]))) == text


OPENERS = (
    "", '<tool_call>{"name": "f", "arguments": {"a": ', "<function=f><parameter=a>", "[f(a=",
    '[f(a="', "[TOOL_CALLS][", '[TOOL_CALLS]f[ARGS]{"a": "', "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<|python_start|>[f(a=",
    '{"name": "f", "arguments": {"a": [',
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_work_is_linear_in_what_a_model_repeats(family: str) -> None:
    for opener, piece in itertools.product(OPENERS, [*PIECES, '{"a":', "[[", "((", "f(a=1), "]):
        once, twice = (work(family, opener + piece * (n // len(piece))) for n in (400, 800))
        assert twice < 2.3 * once, (opener, piece)


@pytest.mark.parametrize(
    ("template", "model_type", "family"),
    [
        ("..<tool_call>\n{..", "qwen2", "hermes"),
        ("..<tool_call>\n<function=..", "qwen3_moe", "qwen3_coder"),
        ("..[TOOL_CALLS]..", "mistral", "mistral"),
        ("..<｜tool▁sep｜>..```json", "deepseek_v3", "deepseek_v3"),
        ("..<｜tool▁sep｜>..", "deepseek_v3", "deepseek_v31"),
        ("..[func_name1(params_name1=..", "llama4", "pythonic"),
        ('..{"name": function name, "parameters": dictionary of..', "llama", "llama3_json"),
        ("{% for tool in tools %}", "llama", "llama3_json"),
        ("{% for tool in tools %}", "gemma3_text", None),
        ("{{ messages }}", "llama", None),
        ("", "qwen2", None),
        (None, "qwen2", None),
    ],
)
def test_family_is_found_in_the_template_and_the_type(
    template: str | None, model_type: str, family: str | None
) -> None:
    assert family_of(template, model_type) == family


def test_arguments_stream_while_they_come_where_a_grammar_holds_them() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"", "b": [1]}}\n</tool_call>'
    parser = ToolCallParser(FAMILIES["hermes"], TOOLS, is_certain=True)
    events = [event for char in text for event in parser.feed(char)] + parser.finish()
    assert events[0] == ToolCall(0, "f", "")
    assert all(isinstance(event, MoreArguments) for event in events[1:])
    assert joined(events) == [ToolCall(0, "f", '{"a": "}\\"", "b": [1]}')]
    assert len(events) > 10
    for end in range(len(text)):
        assert parse("hermes", text[:end], is_certain=True) == parse(
            "hermes", [text[:end]], is_certain=True
        )
