"""Thoughts of a real model, asked by the `openai` client: it is told to think, and does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import Server
from tests.e2e.test_tools import MODEL

pytestmark = pytest.mark.model
QUESTION: Any = {
    "role": "user",
    "content": "Is water wet? First think between <think> and </think>, like this: "
    "<think>some thought</think> and then the answer in one word.",
}
WET: dict[str, Any] = {
    "type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS: Any = [{"type": "function", "function": {"name": "answer", "parameters": WET}}]


@pytest.fixture(scope="module")
def client(start_server: Callable[..., Server], model_dir: Callable[[str], Path]) -> openai.OpenAI:
    server = start_server(
        str(model_dir(MODEL)), "--max-model-len", "1024", "--served-model-name", "m",
        "--reasoning-parser", "qwen3", "--structured-outputs-timeout", "60",
    )  # fmt: skip
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> tuple[dict[str, Any], str, int]:
    """The message, the finish_reason, the tokens of the thought; its stream joins to the same."""
    asked: Any = {"model": "m", "messages": [QUESTION], "temperature": 0, **fields}
    answer = client.chat.completions.create(**asked)
    message = answer.choices[0].message.to_dict()
    thought = content = arguments = ""
    for chunk in client.chat.completions.create(stream=True, **asked):
        delta = chunk.choices[0].delta.to_dict()
        thought += str(delta.get("reasoning", ""))
        content += str(delta.get("content", ""))
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += call.function.arguments or "" if call.function else ""
    assert thought == (message["reasoning"] or "")
    assert content == (message["content"] or "")
    calls: Any = message.get("tool_calls", [])
    assert arguments == "".join(call["function"]["arguments"] for call in calls)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    tokens = answer.usage.completion_tokens_details.reasoning_tokens
    assert tokens is not None
    return message, answer.choices[0].finish_reason, tokens


def test_constraint_holds_behind_the_thought(client: openai.OpenAI) -> None:
    body = {"structured_outputs": {"choice": ["yes", "no"]}}
    message, reason, tokens = ask(client, extra_body=body, max_tokens=200)
    assert message["reasoning"]
    assert tokens > 0
    assert reason == "stop"
    assert message["content"] in ("yes", "no")


def test_forced_call_comes_behind_the_thought(client: openai.OpenAI) -> None:
    message, reason, _ = ask(client, tools=TOOLS, tool_choice="required", max_tokens=200)
    assert reason == "tool_calls"
    assert message["reasoning"]
    [call] = message["tool_calls"]
    assert json.loads(call["function"]["arguments"])["wet"] in (True, False)


def test_forced_call_that_all_tokens_were_thought_away_for(client: openai.OpenAI) -> None:
    message, reason, _ = ask(client, tools=TOOLS, tool_choice="required", max_tokens=5)
    assert reason == "length"
    assert message["reasoning"]
    assert not message.get("tool_calls")
    assert not message["content"]


def test_thought_that_the_prompt_opens_takes_all_that_is_not_behind_it(
    client: openai.OpenAI,
) -> None:
    body = {"continue_final_message": True, "add_generation_prompt": False}
    begun: Any = {"role": "assistant", "content": "<think>Water is"}
    message, reason, tokens = ask(
        client, messages=[QUESTION, begun], max_tokens=6, stop=["</think>"], extra_body=body
    )
    assert message["reasoning"]
    assert not message["content"]
    assert tokens > 0
    assert reason in ("length", "stop")


def test_answer_without_a_thought_is_content(client: openai.OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Hi, who are you?"}]
    message, _, tokens = ask(client, messages=hello, max_tokens=12)
    assert message["reasoning"] is None
    assert message["content"]
    assert tokens == 0
