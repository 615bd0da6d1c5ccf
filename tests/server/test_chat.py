"""POST /v1/chat/completions: whole and streamed answers, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace.errors import EngineDeadError, EngineGenerateError
from tests.server.conftest import check_error, frames_of
from tests.server.fakes import EOS, FakeEngine, say

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(URL, json={**HELLO, **fields})


def text_of(frames: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for frame in frames[:-1]
        for choice in frame["choices"]
        if choice["index"] == index
    )


async def test_whole_answer_has_the_shape_of_the_api(client: httpx.AsyncClient) -> None:
    answer = await ask(client)
    assert answer.status_code == 200
    body = answer.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 0
    assert body.pop("system_fingerprint").startswith("headrace-")
    assert body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant", "content": "Hello", "refusal": None, "annotations": None,
                    "audio": None, "function_call": None, "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }  # fmt: skip


async def test_stream_is_framed_as_the_api_says(client: httpx.AsyncClient) -> None:
    answer = await ask(client, stream=True, request_id="r1", max_tokens=2)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = frames_of(answer.text)
    for frame in frames[:-1]:
        assert frame.pop("created") > 0
    fingerprint = frames[2].pop("system_fingerprint")
    assert fingerprint.startswith("headrace-")
    head = {"id": "chatcmpl-r1", "object": "chat.completion.chunk", "model": "tiny"}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    last = {"index": 0, "delta": {"content": "e"}, "finish_reason": "length", "stop_reason": None}
    assert frames == [
        {**head, "choices": [first]},
        {**head, "choices": [{"index": 0, "delta": {"content": "H"}, "finish_reason": None}]},
        {**head, "choices": [last]},
        "[DONE]",
    ]


@pytest.mark.parametrize("text", ["Hello", "naïve 日本 👩‍👩‍👧", "", "\ufffd"])
async def test_streamed_text_equals_whole_text(
    client_of: Callable[..., httpx.AsyncClient], text: str
) -> None:
    client = client_of(FakeEngine(say(text)))
    whole = (await ask(client)).json()["choices"][0]["message"]["content"]
    frames = frames_of((await ask(client, stream=True)).text)
    assert whole == text == text_of(frames)
    finals = [f for f in frames[:-1] if f["choices"][0]["finish_reason"] is not None]
    assert finals == frames[-2:-1]


async def test_character_cut_by_max_tokens_is_equal_streamed_and_whole(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    client = client_of(FakeEngine(say("a日")))
    whole = (await ask(client, max_tokens=3)).json()["choices"][0]["message"]["content"]
    frames = frames_of((await ask(client, max_tokens=3, stream=True)).text)
    assert text_of(frames) == whole


async def test_three_choices_streamed_end_once_each_and_once_together(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    engine = FakeEngine(lambda index: [*b"abc"[index:], EOS])
    answer = await ask(client_of(engine), n=3, stream=True, stream_options={"include_usage": True})
    frames = frames_of(answer.text)
    assert frames.count("[DONE]") == 1
    assert [text_of(frames, i) for i in range(3)] == ["abc", "bc", "c"]
    choices = [choice for frame in frames[:-1] for choice in frame["choices"]]
    assert all("finish_reason" in choice for choice in choices)
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "stop"
        assert ["role" in choice["delta"] for choice in mine] == [True] + [False] * (len(mine) - 1)
        assert not any("tool_calls" in choice["delta"] for choice in mine)
    assert frames[-2]["choices"] == []
    assert frames[-2]["usage"] == {
        "prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19,
    }  # fmt: skip
    whole = (await ask(client_of(engine), n=3)).json()
    assert whole["usage"] == frames[-2]["usage"]


async def test_continuous_usage_stands_in_every_chunk(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    frames = frames_of((await ask(client, stream=True, stream_options=options)).text)
    counts = [frame["usage"]["completion_tokens"] for frame in frames[:-1]]
    assert counts == [1, 1, 2, 3, 4, 5, 6, 6]


async def test_usage_tells_cached_tokens_only_when_configured(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]
) -> None:
    usage = (await ask(client_of(engine))).json()["usage"]
    assert "prompt_tokens_details" not in usage
    client = client_of(engine, enable_prompt_tokens_details=True)
    usage = (await ask(client)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_refusals_call_the_length_of_an_answer_as_the_request_does(
    client: httpx.AsyncClient,
) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        error = check_error(await ask(client, **{name: 5}, min_tokens=6), 400, "min_tokens")
        assert error["message"] == f"min_tokens (6) must not exceed {name} (5)"


async def test_max_completion_tokens_wins_over_max_tokens(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, max_tokens=5, max_completion_tokens=2)
    await ask(client)
    assert [params.max_tokens for _, _, params, _ in engine.seen] == [2, None]


async def test_defaults_of_the_model_apply_below_the_request(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    engine = FakeEngine(
        override_generation_config={"temperature": 0.5, "top_k": 7, "max_new_tokens": 3}
    )
    await ask(client_of(engine), temperature=0.25)
    params = engine.seen[0][2]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 7, 3)


async def test_logprobs_bytes_join_to_the_text(client_of: Callable[..., httpx.AsyncClient]) -> None:
    client = client_of(FakeEngine(say("é!")))
    choice = (await ask(client, logprobs=True, top_logprobs=2)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in content) == "é!".encode()
    assert [one["token"] for one in content] == ["bytes:\\xc3", "bytes:\\xa9", "!", "</s>"]
    assert [len(one["top_logprobs"]) for one in content] == [2] * 4
    assert content[2]["top_logprobs"] == [
        {"token": "!", "logprob": -0.5, "bytes": [33]},
        {"token": '"', "logprob": -2.0, "bytes": [34]},
    ]
    frames = frames_of((await ask(client, logprobs=True, top_logprobs=2, stream=True)).text)
    streamed = [
        one
        for frame in frames[:-1]
        for one in frame["choices"][0].get("logprobs", {}).get("content", [])
    ]
    assert streamed == content


async def test_tokens_as_ids_when_asked(client: httpx.AsyncClient) -> None:
    answer = await ask(client, logprobs=True, return_tokens_as_token_ids=True, max_tokens=1)
    assert answer.json()["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"


async def test_token_ids_and_prompt_text_when_asked(client: httpx.AsyncClient) -> None:
    fields = {"return_token_ids": True, "max_tokens": 2}
    body = (await ask(client, return_prompt_text=True, **fields)).json()
    assert body["choices"][0]["token_ids"] == [72, 101]
    assert body["prompt_token_ids"][0] == 256
    assert body["prompt_text"] == "user: Hi\n"
    frames = frames_of((await ask(client, stream=True, **fields)).text)
    assert frames[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert [f["choices"][0].get("token_ids") for f in frames[:-1]] == [None, [72], [101]]


async def test_continue_final_message_wins_over_the_generation_prompt(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
    body = {"messages": messages, "continue_final_message": True, "echo": True}
    answer = (await client.post(URL, json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "HeHello"
    frames = frames_of((await client.post(URL, json={**body, "stream": True})).text)
    assert text_of(frames) == "HeHello"
    assert engine.renderer.calls[0]["add_generation_prompt"] is False
    assert engine.renderer.calls[0]["continue_final_message"] is True
    check_error(
        await client.post(URL, json={**body, "add_generation_prompt": True}),
        400,
        "continue_final_message",
    )


async def test_template_arguments_reach_the_renderer(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, reasoning_effort="none", chat_template_kwargs={"x": 1})
    await ask(client, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    kwargs = [call["chat_template_kwargs"] for call in engine.renderer.calls]
    assert kwargs == [
        {"reasoning_effort": "none", "enable_thinking": False, "thinking": False, "x": 1},
        {"reasoning_effort": "low", "enable_thinking": False, "thinking": True},
    ]


async def test_template_arguments_of_the_operator_stand_below_those_of_the_request(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]
) -> None:
    client = client_of(
        engine, default_chat_template_kwargs={"a": 1, "b": 1}, response_role="helper",
        chat_template_content_format="openai",
    )  # fmt: skip
    answer = await ask(client, chat_template_kwargs={"b": 2})
    assert answer.json()["choices"][0]["message"]["role"] == "helper"
    await client.post(
        "/tokenize",
        json={"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"a": 3}},
    )
    assert [call["chat_template_kwargs"] for call in engine.renderer.calls] == [
        {"a": 1, "b": 2}, {"a": 3, "b": 1},
    ]  # fmt: skip
    assert {call["content_format"] for call in engine.renderer.calls} == {"openai"}


async def test_words_for_logits_processors_and_chosen_logprobs_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, vllm_xargs={"favour": 3}, logprob_token_ids=[5, 6], session_id="s")
    [(_, _, params, _)] = engine.seen
    assert params.extra_args == {"favour": 3}
    assert (params.logprob_token_ids, params.logprobs) == ([5, 6], None)


async def test_tools_are_shown_but_not_called(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert (await ask(client, tools=[tool], tool_choice="none")).status_code == 200
    assert engine.renderer.calls[0]["tools"] == [tool]
    for choice in (None, "auto", "required", {"type": "function", "function": {"name": "f"}}):
        error = check_error(await ask(client, tools=[tool], tool_choice=choice), 400, "tool_choice")
        assert "--tool-call-parser" in error["message"]
    check_error(await ask(client, tools=[]), 400, "tools")
    check_error(await ask(client, tool_choice="required"), 400, "tool_choice")


REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "other"}, 404, "model"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "refused", "content": "x"}]}, 400, "messages.0.role"),
    ({"messages": "Hi"}, 400, "messages"),
    ({"messages": ["Hi"]}, 400, "messages.0"),
    ({"n": 0}, 400, "n"),
    ({"n": -1}, 400, "n"),
    ({"n": 4097}, 400, "n"),
    ({"n": 10**9}, 400, "n"),
    ({"n": True}, 400, "n"),
    ({"n": 1.5}, 400, "n"),
    ({"temperature": 3}, 400, "temperature"),
    ({"temperature": "0.5"}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 10**6}, 400, "max_tokens"),
    *(
        ({"max_completion_tokens": wrong}, 400, "max_completion_tokens")
        for wrong in (10**6, 0, -1, -(2**63))
    ),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
    ({"stop": [1]}, 400, "stop"),
    ({"stop": [""]}, 400, "stop"),
    ({"logit_bias": {"-1": 1}}, 400, "logit_bias.-1"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias.x"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias.5"),
    ({"logit_bias": {"5": "a"}}, 400, "logit_bias.5"),
    ({"seed": 2**63}, 400, "seed"),
    ({"top_logprobs": 2}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -2}, 400, "top_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
    ({"stream_options": {"include_usage": True}, "stream": False}, 400, "stream_options"),
    ({"priority": 1}, 400, "priority"),
    ({"cache_salt": ""}, 400, "cache_salt"),
    ({"cache_salt": 5}, 400, "cache_salt"),
    ({"cache_salt": "a/b"}, 400, "cache_salt"),
    ({"request_id": "a\nb"}, 400, "request_id"),
    ({"truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
    ({"chat_template": "{{ 1 }}"}, 400, "chat_template"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, 400, "chat_template"),
    ({"reasoning_effort": "huge"}, 400, "reasoning_effort"),
    ({"response_format": {"type": "yaml"}}, 400, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    ({"response_format": {}}, 400, "response_format.type"),
    ({"response_format": {"type": "structural_tag"}}, 400, "response_format"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        400,
        "structured_outputs",
    ),
    ({"structured_outputs": {}}, 400, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, 400, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "backend": "x"}}, 400, "structured_outputs.backend"),
    ({"structured_outputs": {"json": "", "regex": None}}, 400, "structured_outputs.json"),
    ({"guided_json": {"type": "object"}}, 400, "guided_json"),
    ({"early_stopping": True}, 400, "early_stopping"),
    ({"stop": "x" * 1025}, 400, "stop"),
    ({"bad_words": ["x" * 1025]}, 400, "bad_words"),
    ({"logit_bias": dict.fromkeys(map(str, range(16_385)), 1)}, 400, "logit_bias"),
    ({"stop_token_ids": [1] * 16_385}, 400, "stop_token_ids"),
    ({"allowed_token_ids": [1] * 16_385}, 400, "allowed_token_ids"),
    ({"length_penalty": 2.0}, 400, "length_penalty"),
    ({"logprobs": False, "logprob_token_ids": [1]}, 400, "logprobs"),
    ({"logprob_token_ids": [1, 2], "top_logprobs": 1}, 400, "logprob_token_ids"),
    ({"vllm_xargs": {"a": 2**64}}, 400, "vllm_xargs"),
    ({"functions": [{"name": "f"}]}, 400, "functions"),
    ({"modalities": ["audio"]}, 400, "modalities"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "prompt"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "param"), REFUSALS, ids=lambda v: str(v)[:40])
async def test_refused_before_the_first_byte_streamed_or_not(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], status: int, param: str,
    stream: bool,
) -> None:  # fmt: skip
    answer = await ask(client, **{"stream": stream, **fields})
    check_error(answer, status, param)
    assert not engine.live
    assert (await ask(client)).status_code == 200


async def test_older_fields_of_structured_output_are_refused_with_the_way_out(
    client: httpx.AsyncClient,
) -> None:
    answer = await ask(client, guided_regex="a+")
    check_error(answer, 400, "guided_regex")
    assert "use structured_outputs" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "modalities": ["text"]},
        {"use_beam_search": False, "length_penalty": 1.0, "structured_outputs": None},
        {"response_format": {"type": "text"}, "n": None, "stop": None, "logprobs": False},
        {"tool_choice": "none", "parallel_tool_calls": True, "store": None} | {"top_k": -1},
    ],
)
async def test_neutral_values_of_known_fields_are_accepted(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    fields.pop("store", None)
    answer = await ask(client, **fields)
    assert answer.status_code == 200
    assert "X-Headrace-Warnings" not in answer.headers


async def test_failure_of_a_whole_answer_is_a_500(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fail_after = 2
    error = check_error(await ask(client), 500)
    assert error["message"] == "scripted failure"
    assert not engine.live


@pytest.mark.parametrize("failure", [EngineGenerateError("broken"), EngineDeadError()])
async def test_failure_after_the_first_byte_is_one_error_frame_and_the_end(
    client: httpx.AsyncClient, engine: FakeEngine, failure: Exception
) -> None:
    engine.fail_after, engine.failure = 2, failure
    answer = await ask(client, stream=True)
    assert answer.status_code == 200
    frames = frames_of(answer.text)
    assert frames[-1] == "[DONE]"
    assert frames[-2] == {
        "error": {
            "message": str(failure), "type": "InternalServerError", "param": None, "code": 500,
        }
    }  # fmt: skip
    assert text_of([*frames[:-2], None]) == "He"
    assert all(f["choices"][0]["finish_reason"] is None for f in frames[:-2])
    assert not engine.live


async def test_equal_request_ids_each_get_their_own_answer(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    one = await ask(client, request_id="same")
    two = await client.post(URL, json=HELLO, headers={"X-Request-Id": "same"})
    assert one.json()["id"] == two.json()["id"] == "chatcmpl-same"
    assert one.json()["choices"] == two.json()["choices"]
    assert not engine.live
