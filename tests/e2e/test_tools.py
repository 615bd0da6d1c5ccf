"""A real model calls tools, asked by the `openai` client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import Server

pytestmark = pytest.mark.model
MODEL = "qwen2.5-coder-0.5b-instruct-gguf"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TIME: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}


def tools(**fields: Any) -> Any:
    named = {
        "get_weather": "Get the current weather of a city",
        "get_time": "Get the time in a zone",
    }
    return [
        {
            "type": "function",
            "function": {"name": name, "description": text, "parameters": SCHEMAS[name], **fields},
        }
        for name, text in named.items()
    ]


@pytest.fixture(scope="module")
def client(start_server: Callable[..., Server], model_dir: Callable[[str], Path]) -> openai.OpenAI:
    options = ["--max-model-len", "2048", "--served-model-name", "m"]
    server = start_server(str(model_dir(MODEL)), *options, "--structured-outputs-timeout", "60")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, question: str, **fields: Any) -> tuple[Any, str]:
    """The message and the finish_reason; its stream has joined to the same."""
    messages: Any = [{"role": "user", "content": question}]
    asked: Any = {"model": "m", "messages": messages, "tools": tools(), "temperature": 0,
                  "max_tokens": 120, **fields}  # fmt: skip
    choice = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == choice.finish_reason
    assert (streamed.message.content or None) == (choice.message.content or None)
    assert calls_of(streamed.message) == calls_of(choice.message)
    return choice.message, choice.finish_reason


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


def test_model_calls_a_tool_by_its_own_choice_and_goes_on_with_its_result(
    client: openai.OpenAI,
) -> None:
    question = "What is the weather in Paris in celsius?"
    message, reason = ask(client, question)
    assert reason == "tool_calls"
    [(name, arguments)] = calls_of(message)
    assert name == "get_weather"
    assert json.loads(arguments) == {"city": "Paris", "unit": "celsius"}
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 17}'}
    messages: Any = [{"role": "user", "content": question}, message.to_dict(), result]
    answer = client.chat.completions.create(
        model="m", messages=messages, tools=tools(), temperature=0, max_tokens=60
    )
    assert "17" in (answer.choices[0].message.content or "")


def test_answer_without_a_call_is_text(client: openai.OpenAI) -> None:
    message, reason = ask(client, "Hi, who are you?")
    assert reason == "stop"
    assert message.content
    assert not message.tool_calls


@pytest.mark.parametrize(
    ("question", "temperature"), [("What is the weather in Paris?", 0), ("Hi, who are you?", 1.5)]
)
def test_forced_calls_fit_their_parameters(
    client: openai.OpenAI, question: str, temperature: float
) -> None:
    fields = {"temperature": temperature, "seed": 5, "parallel_tool_calls": False}
    message, reason = ask(client, question, tool_choice="required", **fields)
    assert reason == "tool_calls"
    [(name, arguments)] = calls_of(message)
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    for named in SCHEMAS:
        choice = {"type": "function", "function": {"name": named}}
        message, reason = ask(client, question, tool_choice=choice, **fields)
        assert reason == "stop"
        [(name, arguments)] = calls_of(message)
        assert name == named
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_strict_tools_are_held_to_their_parameters_when_the_model_chooses(
    client: openai.OpenAI,
) -> None:
    called = set()
    for question in ("What is the weather in Paris?", "What time is it in the zone CET?"):
        for temperature in (0, 1.2):
            message, _ = ask(
                client, question, tools=tools(strict=True), temperature=temperature, seed=3
            )
            for name, arguments in calls_of(message):
                jsonschema.validate(json.loads(arguments), SCHEMAS[name])
                called.add(name)
    assert called == set(SCHEMAS)
    message, reason = ask(client, "Hi, who are you?", tools=tools(strict=True))
    assert reason == "stop"
    assert message.content


FORCED_TEXTS = [
    '<tool_call>\n{"name": "get_time", "arguments": {"zone": "x"}}\n</tool_call>',
    "a < b <tool_call> and more",
    '<tool_call>{"name": "get_time", "arguments": {"zone": </tool_call> end',
    'Both: <tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n'
    '<tool_call>{"name": "get_weather", "arguments": {"city": "日本 👩‍👩‍👧"}}</tool_call>',
]


@pytest.mark.parametrize("text", FORCED_TEXTS)
def test_texts_given_by_a_constraint_are_read_alike_streamed_and_whole(
    client: openai.OpenAI, text: str
) -> None:
    body = {"structured_outputs": {"choice": [text]}}
    message, reason = ask(client, "Hi", extra_body=body, max_tokens=300)
    calls = calls_of(message)
    assert reason == ("tool_calls" if calls else "stop")
    assert calls or message.content == text
    assert len(calls) == (0 if "end" in text or "more" in text else text.count('"name"'))


def test_parameters_that_cannot_be_enforced_are_refused(client: openai.OpenAI) -> None:
    bad = tools()
    bad[0]["function"]["parameters"] = {"properties": {"a": {"type": "string", "pattern": "(a"}}}
    for fields in ({"tool_choice": "required"}, {"stream": True, "tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], tools=bad, **fields
            )
        assert "tools" in str(caught.value)
    assert ask(client, "Hi, who are you?")[1] == "stop"
