"""Thoughts over HTTP: a field of their own, streamed and whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.server.settings.server import ServerSettings
from headrace.structured_params import ThoughtMarks
from tests.server.conftest import frames_of
from tests.server.fakes import EOS, FakeEngine, say

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEMPLATE = "{# <think> </think> <tool_call> #}"
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
ClientOf = Callable[..., httpx.AsyncClient]


def engine_that_says(text: str, prompt_end: str = "") -> FakeEngine:
    engine = FakeEngine(say(text), chat_template=TEMPLATE)
    engine.renderer.generation_prompt = prompt_end
    return engine


async def both(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The choice of a whole answer, and that its stream joins to the same, with equal usage."""
    whole = (await client.post(URL, json={**HELLO, **fields})).json()
    [choice] = whole["choices"]
    options = {"include_usage": True}
    answer = await client.post(
        URL, json={**HELLO, **fields, "stream": True, "stream_options": options}
    )
    frames = frames_of(answer.text)
    deltas = [c["delta"] for f in frames[:-1] for c in f["choices"]]
    message = choice["message"]
    for name in ("content", "reasoning", "reasoning_content"):
        joined = "".join(delta.get(name, "") for delta in deltas)
        assert joined == (message.get(name) or "")
    reasons = [c["finish_reason"] for f in frames[:-1] for c in f["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + [choice["finish_reason"]]
    assert frames[-2]["usage"] == whole["usage"]
    return {
        "reasoning": message["reasoning"],
        "content": message["content"],
        "calls": len(message.get("tool_calls", [])),
        "reason": choice["finish_reason"],
        "tokens": whole["usage"]["completion_tokens_details"]["reasoning_tokens"],
    }


@pytest.mark.parametrize(
    ("text", "prompt_end", "fields", "expected"),
    [
        # text, end of the prompt, fields -> reasoning, content, calls, finish_reason
        ("<think>x</think>answer", "", {}, ("x", "answer", 0, "stop")),
        ("<think>\nx y\n</think>\n\nanswer", "", {}, ("x y", "answer", 0, "stop")),
        ("answer", "", {}, (None, "answer", 0, "stop")),
        ("", "", {}, (None, "", 0, "stop")),
        ("a < b", "", {}, (None, "a < b", 0, "stop")),
        ("<think>x é 日</think>y", "", {"max_tokens": 12}, ("x é ", None, 0, "length")),
        ("<think>x</think>y", "", {"max_tokens": 11}, ("x</t", None, 0, "length")),
        ("x</think>y", "<think>\n", {}, ("x", "y", 0, "stop")),
        ("all of it", "<think>\n", {}, ("all of it", None, 0, "stop")),
        ("answer", "<think>\n\n</think>\n\n", {}, (None, "answer", 0, "stop")),
        ("<think>x</think>" + CALL, "", {"tools": TOOLS}, ("x", None, 1, "tool_calls")),
        (f"<think>{CALL}</think>y", "", {"tools": TOOLS}, (CALL, "y", 0, "stop")),
        # forced, but all is spent on the thought
        (
            "<think>on and on", "", {"tools": TOOLS, "tool_choice": "required", "max_tokens": 12},
            ("on an", None, 0, "length"),
        ),
        (
            "on and on", "<think>",
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}},
             "max_tokens": 5},
            ("on an", None, 0, "length"),
        ),
    ],
)  # fmt: skip
async def test_thought_has_a_field_of_its_own_streamed_and_whole(
    client_of: ClientOf, text: str, prompt_end: str, fields: dict[str, Any],
    expected: tuple[Any, ...],
) -> None:  # fmt: skip
    answer = await both(client_of(engine_that_says(text, prompt_end)), **fields)
    tokens = answer.pop("tokens")
    assert tuple(answer.values()) == expected
    assert (tokens > 0) is bool(answer["reasoning"])


async def test_golden_stream_of_a_thought(client_of: ClientOf) -> None:
    client = client_of(engine_that_says("<think>\nx\n</think>\n\ny"))
    answer = await client.post(URL, json={**HELLO, "stream": True, "request_id": "r"})
    frames = frames_of(answer.text)
    created, fingerprint = frames[0]["created"], frames[-2]["system_fingerprint"]
    head = (f'{{"id":"chatcmpl-r","object":"chat.completion.chunk","created":{created},'
            '"model":"tiny","choices":[{"index":0,"delta":')  # fmt: skip
    assert answer.text == (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"reasoning":"x"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"y"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{}},"finish_reason":"stop","stop_reason":null}}],'
        f'"system_fingerprint":"{fingerprint}"}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_tokens_of_thoughts_are_counted_over_all_choices(client_of: ClientOf) -> None:
    texts = ["<think>abc</think>", "no", "<think>de</think>x"]
    engine = FakeEngine(lambda i: [*texts[i].encode(), EOS], chat_template=TEMPLATE)
    usage = (await client_of(engine).post(URL, json={**HELLO, "n": 3})).json()["usage"]
    # The closing mark is of eight tokens here, of which the last is none of the thought.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3 + 7 + 2 + 7}


async def test_usage_tells_of_thoughts_only_where_they_are_read(client_of: ClientOf) -> None:
    usage = (await client_of(FakeEngine()).post(URL, json=HELLO)).json()["usage"]
    assert "completion_tokens_details" not in usage


async def test_thoughts_can_be_left_out_and_their_tokens_with_them(client_of: ClientOf) -> None:
    client = client_of(engine_that_says("<think>x</think>y"))
    fields = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    answer = await both(client, **fields)
    assert (answer["reasoning"], answer["content"], answer["reason"]) == (None, "y", "stop")
    assert answer["tokens"] > 0
    [choice] = (await client.post(URL, json={**HELLO, **fields})).json()["choices"]
    assert choice["logprobs"] is None
    assert choice["token_ids"] is None
    frames = frames_of((await client.post(URL, json={**HELLO, **fields, "stream": True})).text)
    choices = [frame["choices"][0] for frame in frames[:-1]]
    assert [one["delta"] for one in choices] == [
        {"role": "assistant", "content": ""}, {"content": "y"}, {},
    ]  # fmt: skip
    assert not any("logprobs" in one or "token_ids" in one for one in choices)
    # where there can be no thought nothing is hidden
    plain = client_of(FakeEngine())
    [choice] = (await plain.post(URL, json={**HELLO, **fields})).json()["choices"]
    assert choice["token_ids"]


async def test_older_clients_get_the_same_under_the_older_name(client_of: ClientOf) -> None:
    client = client_of(engine_that_says("<think>x</think>y"), reasoning_content_alias=True)
    await both(client)
    message = (await client.post(URL, json=HELLO)).json()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "x"


async def test_parser_is_found_in_the_template_or_named_by_the_operator(
    client_of: ClientOf,
) -> None:
    text = "<think>x</think>y"
    for engine, settings, content in (
        (engine_that_says(text), {}, "y"),
        (engine_that_says(text), {"reasoning_parser": "none"}, text),
        (FakeEngine(say(text)), {}, text),
        (FakeEngine(say(text)), {"reasoning_parser": "deepseek_r1"}, "y"),
        (FakeEngine(say("[THINK]x[/THINK]y")), {"reasoning_parser": "mistral"}, "y"),
    ):
        answer = (await client_of(engine, **settings).post(URL, json=HELLO)).json()
        assert answer["choices"][0]["message"]["content"] == content
    with pytest.raises(ConfigError, match="reasoning_parser must be one of auto, none, qwen3"):
        ServerSettings(reasoning_parser="nonsense")


@pytest.mark.parametrize(
    ("prompt_end", "marks"),
    [
        ("", ThoughtMarks("<think>", "</think>")),
        ("<think>\n", ThoughtMarks("<think>", "</think>", is_open=True)),
        ("<think>\n\n</think>\n\n", None),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"structured_outputs": {"regex": "a+"}},
    ],
)
async def test_constraint_begins_behind_the_thought(
    client_of: ClientOf, prompt_end: str, marks: ThoughtMarks | None, fields: dict[str, Any]
) -> None:
    engine = engine_that_says("x", prompt_end)
    assert (await client_of(engine).post(URL, json={**HELLO, **fields})).status_code == 200
    constraint = engine.seen[0][2].structured_outputs
    assert constraint is not None
    assert constraint.behind_thought == marks


async def test_answer_that_is_continued_may_be_in_the_midst_of_a_thought(
    client_of: ClientOf,
) -> None:
    for begun, thought, content in (
        ("<think>a", "x", "y"),
        ("<think>a</think>b", None, "x</think>y"),
    ):
        messages = [*HELLO["messages"], {"role": "assistant", "content": begun}]
        answer = await both(
            client_of(engine_that_says("x</think>y")),
            messages=messages, continue_final_message=True,
        )  # fmt: skip
        assert (answer["reasoning"], answer["content"]) == (thought, content)


async def test_cut_prompt_still_tells_that_a_thought_is_open(client_of: ClientOf) -> None:
    client = client_of(engine_that_says("x</think>y", "<think>"))
    answer = await both(client, truncate_prompt_tokens=10)
    assert (answer["reasoning"], answer["content"]) == ("x", "y")
