"""Chat messages in every form clients send, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ValidationError
from headrace.text.messages import check_json, normalise_messages


def one(**message: Any) -> dict[str, Any]:
    (plain,) = normalise_messages([message])
    return plain


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
        **more,
    }


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
def test_parts_become_the_plain_string(role: str) -> None:
    parts = [{"type": "text", "text": "hello"}]
    assert one(role=role, content=parts) == one(role=role, content="hello")
    parts += [{"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "no"}]
    assert one(role=role, content=parts)["content"] == "hello\nb\nno"


@pytest.mark.parametrize("content", ["", None])
def test_empty_content_of_an_assistant_is_an_empty_string(content: str | None) -> None:
    assert one(role="assistant", content=content)["content"] == ""
    plain = one(role="assistant", content=content, tool_calls=[call("{}")])
    assert plain["content"] == ""
    assert one(role="assistant", tool_calls=[call("{}")])["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "plain"),
    [("", {}), (None, {}), ("{}", {}), ({}, {}), ('{"a": [1, "é"]}', {"a": [1, "é"]}),
     ({"a": 1}, {"a": 1})],
)  # fmt: skip
def test_arguments_of_a_call_become_an_object(arguments: Any, plain: dict[str, Any]) -> None:
    message = one(role="assistant", content=None, tool_calls=[call(arguments)])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": plain}
    assert message["tool_calls"][0]["id"] == "1"


@pytest.mark.parametrize(
    "arguments", ["{", "nope", "[1]", "5", "null", '{"a": NaN}', "[" * 99999, 5]
)
def test_arguments_that_are_no_object_name_the_message(arguments: Any) -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call("{}"), call(arguments)]},
    ]
    with pytest.raises(ValidationError, match=r"messages\[1\]\.tool_calls\[1\]") as caught:
        normalise_messages(messages)
    assert caught.value.param == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant"}, r"messages\[0\] has no content"),
        ({"role": "assistant", "tool_calls": []}, "has no content"),
        ({"role": "user"}, "has no content"),
        ({"role": "user", "content": None}, "must not be null"),
        ({"role": "system", "content": 5}, "a string or a list of parts"),
        ({"role": "wizard", "content": "x"}, "role must be one of system, .* got 'wizard'"),
        ({"role": ["user"], "content": "x"}, "role must be one of"),
        ({"content": "x"}, "role must be one of"),
        ("hello", "must be an object"),
        ({"role": "user", "content": "x", "name": 5}, "name must be a string"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
         r"content\[0\] has the type 'image_url'; supported: text, input_text, output_text"),
        ({"role": "user", "content": [{"text": "x"}]}, "has the type 'None'"),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\]\.text must be a string"),
        ({"role": "user", "content": [7]}, "must be an object with a type"),
        ({"role": "user", "content": "a\udc00"}, r"messages\[0\] holds a lone surrogate"),
        ({"role": "user", "content": "a", "name": "\ud800"}, "lone surrogate"),
        ({"role": "user", "content": "a", "more": b"x"}, "holds a bytes"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}], "content": ""},
         "name must be a non-empty string"),
        ({"role": "assistant", "tool_calls": ["f"], "content": ""}, "function must be an object"),
        ({"role": "assistant", "tool_calls": "f", "content": ""}, "tool_calls must be a list"),
        ({"role": "assistant", "content": "", "tool_calls": [call('{"a": "\\ud800"}')]},
         "lone surrogate"),
    ],
)  # fmt: skip
def test_message_that_is_not_allowed_is_named(message: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text) as caught:
        normalise_messages([message])
    assert str(caught.value.param).startswith("messages[0]")


@pytest.mark.parametrize("messages", [[], (), "hi", None, {"role": "user"}, 5])
def test_what_is_no_conversation_is_refused(messages: object) -> None:
    with pytest.raises(ValidationError, match=r"^messages must"):
        normalise_messages(messages)


def test_other_keys_stay_and_the_callers_messages_are_unchanged() -> None:
    given = {
        "role": "user",
        "content": [{"type": "text", "text": "x"}],
        "name": "bob",
        "extra": [1],
    }
    before = repr(given)
    assert one(**given) == {"role": "user", "content": "x", "name": "bob", "extra": [1]}
    assert repr(given) == before


def test_thought_is_known_under_both_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        plain = one(role="assistant", content="x", **{name: "hm"})
        assert (plain["reasoning"], plain["reasoning_content"]) == ("hm", "hm")


def test_very_deep_values_are_refused() -> None:
    value: Any = 1
    for _ in range(1000):
        value = [value]
    with pytest.raises(ValidationError, match=r"more than 64 deep"):
        check_json(value, "tools")
