"""Tools over HTTP: which calls come, streamed and whole, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.app import build_app
from headrace.server.settings.server import ServerSettings
from tests.server.conftest import check_error, frames_of
from tests.server.fakes import EOS, FakeEngine, make_config, say

URL = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ClientOf = Callable[..., httpx.AsyncClient]


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


NAMED = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
TWO = f"Both:\n{CALL}\n" + CALL.replace('"f"', '"g"').replace("x", "é")


def engine_that_says(text: str, **options: Any) -> FakeEngine:
    return FakeEngine(say(text), chat_template="{# <tool_call> #}", **options)


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(URL, json={**HELLO, "tools": [tool(), tool("g")], **fields})


async def both(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The choice of a whole answer, and that its stream joins to the same."""
    answer = await ask(client, **fields)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    streamed = join(frames_of((await ask(client, stream=True, **fields)).text))
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"])
             for c in message.get("tool_calls", [])]  # fmt: skip
    assert streamed["calls"] == calls
    assert streamed["content"] == (message["content"] or "")
    assert streamed["finish_reason"] == choice["finish_reason"]
    return {"calls": calls, "content": message["content"], "reason": choice["finish_reason"]}


def join(frames: list[Any]) -> dict[str, Any]:
    """What a client makes of a stream of one choice, with the rules of the stream checked."""
    assert frames[-1] == "[DONE]"
    content, calls, reasons = "", list[list[str]](), list[str | None]()
    ids: set[str] = set()
    for frame in frames[:-1]:
        for choice in frame["choices"]:
            assert not any(reasons), "nothing comes after the finish_reason"
            reasons.append(choice["finish_reason"])
            content += choice["delta"].get("content", "")
            for call in choice["delta"].get("tool_calls", []):
                function = call["function"]
                if "id" in call:
                    assert call["index"] == len(calls), "one call after the other"
                    assert call["type"] == "function"
                    ids.add(call["id"])
                    calls.append([function["name"], ""])
                else:
                    assert call["index"] == len(calls) - 1
                    assert "type" not in call
                    assert "name" not in function
                calls[-1][1] += function["arguments"]
    assert len(ids) == len(calls)
    assert all(ids)
    return {
        "content": content, "calls": [tuple(call) for call in calls], "finish_reason": reasons[-1],
    }  # fmt: skip


async def test_whole_answer_with_calls_has_the_shape_of_the_api(client_of: ClientOf) -> None:
    client = client_of(engine_that_says(TWO))
    [choice] = (await ask(client)).json()["choices"]
    ids = [call.pop("id") for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(one.startswith("call_") for one in ids)
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant", "content": "Both:", "refusal": None, "annotations": None,
            "audio": None, "function_call": None, "reasoning": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}},
                {"type": "function", "function": {"name": "g", "arguments": '{"a": "é"}'}},
            ],
        },
        "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None, "token_ids": None,
    }  # fmt: skip


async def test_golden_stream_of_a_call_that_the_model_chose(client_of: ClientOf) -> None:
    answer = await ask(client_of(engine_that_says(f"A\n{CALL}")), stream=True, request_id="r")
    frames = frames_of(answer.text)
    call_id = frames[2]["choices"][0]["delta"]["tool_calls"][0]["id"]
    created = frames[0]["created"]
    head = (f'{{"id":"chatcmpl-r","object":"chat.completion.chunk","created":{created},'
            '"model":"tiny","choices":[{"index":0,"delta":')  # fmt: skip
    fingerprint = frames[-2]["system_fingerprint"]
    assert answer.text == (
        f'data: {head}{{"role":"assistant","content":""}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"content":"A"}},"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"tool_calls":[{{"index":0,"id":"{call_id}","type":"function","function":'
        '{"name":"f","arguments":"{\\"a\\": \\"x\\"}"}}]},"finish_reason":null}]}\n\n'
        f'data: {head}{{}},"finish_reason":"tool_calls","stop_reason":null}}],'
        f'"system_fingerprint":"{fingerprint}"}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_golden_stream_of_a_named_call(client_of: ClientOf) -> None:
    """Held to its form by a grammar, its arguments come as they are written."""
    engine = engine_that_says(CALL.replace('"x"', '""'))
    frames = frames_of((await ask(client_of(engine), stream=True, tool_choice=NAMED)).text)
    deltas = [frame["choices"][0]["delta"] for frame in frames[:-1]]
    call_id = deltas[1]["tool_calls"][0].pop("id")
    assert call_id
    assert deltas == [
        {"role": "assistant", "content": ""},
        {
            "tool_calls": [
                {"index": 0, "type": "function", "function": {"name": "f", "arguments": "{"}},
            ]
        },
        *[
            {"tool_calls": [{"index": 0, "function": {"arguments": char}}]}
            for char in '"a": ""}'
        ],
        {},
    ]  # fmt: skip
    assert frames[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("text", "fields", "calls", "content", "reason"),
    [
        (CALL, {}, [("f", '{"a": "x"}')], None, "tool_calls"),
        (CALL, {"tool_choice": "auto"}, [("f", '{"a": "x"}')], None, "tool_calls"),
        (CALL, {"tool_choice": "required"}, [("f", '{"a": "x"}')], None, "tool_calls"),
        (CALL, {"tool_choice": NAMED}, [("f", '{"a": "x"}')], None, "stop"),
        (CALL, {"tool_choice": "none"}, [], CALL, "stop"),
        (CALL, {"tools": None}, [], CALL, "stop"),
        (TWO, {}, [("f", '{"a": "x"}'), ("g", '{"a": "é"}')], "Both:", "tool_calls"),
        (TWO, {"parallel_tool_calls": False}, [("f", '{"a": "x"}')], "Both:", "tool_calls"),
        ("Hello", {}, [], "Hello", "stop"),
        ("a < b", {}, [], "a < b", "stop"),
        ("", {}, [], "", "stop"),
        ("<tool_call>{broken}</tool_call>", {}, [], "<tool_call>{broken}</tool_call>", "stop"),
        (CALL + " and", {"max_tokens": len(CALL) + 1}, [("f", '{"a": "x"}')], None, "length"),
        (CALL, {"max_tokens": 40}, [], CALL[:40], "length"),
        (CALL, {"max_tokens": 45, "tool_choice": NAMED}, [("f", '{"a": ')], None, "length"),
        (CALL, {"max_tokens": 45, "tool_choice": "required"}, [("f", '{"a": ')], None, "length"),
        (CALL.replace('{"a": "x"}', "{}"), {}, [("f", "{}")], None, "tool_calls"),
    ],
)  # fmt: skip
async def test_answer_is_the_same_streamed_and_whole(
    client_of: ClientOf, text: str, fields: dict[str, Any], calls: list[tuple[str, str]],
    content: str | None, reason: str,
) -> None:  # fmt: skip
    answer = await both(client_of(engine_that_says(text)), **fields)
    assert answer == {"calls": calls, "content": content, "reason": reason}


async def test_each_choice_has_calls_of_its_own(client_of: ClientOf) -> None:
    texts = [CALL, "No call", TWO]
    engine = FakeEngine(lambda i: [*texts[i].encode(), EOS], chat_template="<tool_call>")
    choices = (await ask(client_of(engine), n=3)).json()["choices"]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == ["tool_calls", "stop", "tool_calls"]
    assert [len(c["message"].get("tool_calls", [])) for c in choices] == [1, 0, 2]
    frames = frames_of((await ask(client_of(engine), n=3, stream=True)).text)
    for index in range(3):
        mine = [
            {"choices": [c for c in frame["choices"] if c["index"] == index]}
            for frame in frames[:-1]
        ]
        joined = join([*mine, "[DONE]"])
        assert joined["finish_reason"] == reasons[index]
        assert len(joined["calls"]) == [1, 0, 2][index]


async def test_tokens_of_calls_are_told_like_all_others(client_of: ClientOf) -> None:
    client = client_of(engine_that_says(CALL))
    fields = {"logprobs": True, "return_token_ids": True}
    [choice] = (await ask(client, **fields)).json()["choices"]
    frames = frames_of((await ask(client, stream=True, **fields)).text)
    choices = [frame["choices"][0] for frame in frames[1:-1]]
    assert [i for one in choices for i in one["token_ids"]] == choice["token_ids"]
    assert [e for one in choices for e in one["logprobs"]["content"]] == (
        choice["logprobs"]["content"]
    )
    text = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert text.decode() == CALL


async def test_a_choice_that_must_be_a_call_is_held_to_it_by_a_grammar(
    client_of: ClientOf,
) -> None:
    engine = engine_that_says(CALL)
    client = client_of(engine)
    for choice in ("auto", "required", NAMED):
        await ask(client, tool_choice=choice)
    await ask(client, tools=[tool(strict=True), tool("g")])
    grammars = [params.structured_outputs for _, _, params, _ in engine.seen]
    assert grammars[0] is None
    for grammar, names in zip(grammars[1:], ["fg", "f", "fg"], strict=True):
        assert grammar is not None
        assert grammar.grammar is not None
        assert {n for n in "fg" if f'\\"name\\": \\"{n}\\"' in grammar.grammar} == set(names)


async def test_tools_are_shown_unless_nothing_is_to_be_called_and_the_operator_says_so(
    client_of: ClientOf,
) -> None:
    for settings, shown in ({}, True), ({"exclude_tools_when_tool_choice_none": True}, False):
        engine = engine_that_says("x")
        client = client_of(engine, **settings)
        await ask(client, tool_choice="none")
        await ask(client, tool_choice="auto")
        tools = [call["tools"] for call in engine.renderer.calls]
        assert tools == [[tool(), tool("g")] if shown else None, [tool(), tool("g")]]


async def test_parser_is_found_in_the_template_or_named_by_the_operator(
    client_of: ClientOf,
) -> None:
    for choice in ("auto", "required", NAMED):
        error = check_error(await ask(client_of(FakeEngine()), tool_choice=choice), 400)
        assert error["param"] == "tool_choice"
        assert "--tool-call-parser" in error["message"]
        client = client_of(engine_that_says(CALL), tool_call_parser="none")
        check_error(await ask(client, tool_choice=choice), 400, "tool_choice")
        client = client_of(FakeEngine(say(CALL)), tool_call_parser="hermes")
        assert (await both(client, tool_choice=choice))["calls"] == [("f", '{"a": "x"}')]
    client = client_of(engine_that_says(CALL), enable_auto_tool_choice=False)
    assert "auto" in check_error(await ask(client), 400, "tool_choice")["message"]
    assert (await ask(client, tool_choice="required")).status_code == 200


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"tools": []}, "tools"),
    ({"tools": [tool(str(i)) for i in range(129)]}, "tools"),
    ({"tools": [tool(description="x" * 300_000)]}, "tools"),
    ({"tools": ["f"]}, "tools.0"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [tool(), {"type": "function"}]}, "tools[1].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [tool("")]}, "tools[0].function.name"),
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("x" * 257)]}, "tools[0].function.name"),
    ({"tools": [tool('a"b')]}, "tools[0].function.name"),
    ({"tools": [tool(), tool()]}, "tools[1].function.name"),
    ({"tools": [tool(description=5)]}, "tools[0].function.description"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": None, "tool_choice": NAMED}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    (
        {"tool_choice": "required", "tools": [tool(parameters={"type": "strnig"})]},
        "tools[0].function.parameters.type",
    ),
    (
        {"tool_choice": NAMED, "tools": [tool(parameters={"properties": {"a": {"type": "x"}}})]},
        "tools[0].function.parameters",
    ),
    (
        {"tools": [tool("g"), tool(strict=True, parameters={"properties": {"a": {"not": {}}}})]},
        "tools[1].function.parameters",
    ),
    ({"detokenize": False}, "detokenize"),
    ({"detokenize": False, "tool_choice": "required"}, "detokenize"),
    ({"tool_choice": "required", "structured_outputs": {"regex": "a"}}, "structured_outputs"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), REFUSALS, ids=lambda v: str(v)[:50])
async def test_refused_before_the_first_byte_streamed_or_not(
    client_of: ClientOf, fields: dict[str, Any], param: str, stream: bool
) -> None:
    engine = engine_that_says("x")
    client = client_of(engine)
    check_error(await ask(client, stream=stream, **fields), 400, param)
    assert not engine.seen
    assert (await ask(client)).status_code == 200


async def test_bounds_on_tools_are_options(client_of: ClientOf) -> None:
    client = client_of(engine_that_says("x"), max_tools=1, max_tools_size=100)
    assert "--max-tools" in check_error(await ask(client), 400, "tools")["message"]
    error = check_error(await ask(client, tools=[tool()]), 400, "tools")
    assert "--max-tools-size" in error["message"]
    small = {"type": "function", "function": {"name": "f"}}
    assert (await ask(client, tools=[small])).status_code == 200


async def test_json_that_is_asked_for_may_be_an_answer_in_place_of_a_call(
    client_of: ClientOf,
) -> None:
    wanted = {"response_format": {"type": "json_object"}}
    for text, calls, reason in (
        (CALL, [("f", '{"a": "x"}')], "tool_calls"),
        ('{"name": "f", "arguments": {}}', [], "stop"),
    ):
        engine = engine_that_says(text)
        answer = await both(client_of(engine), **wanted)
        assert answer == {"calls": calls, "content": None if calls else text, "reason": reason}
        asked = engine.seen[0][2].structured_outputs
        assert asked is not None
        assert "tool_call" in (asked.grammar or "")
    bad = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
    answer = await ask(client_of(engine_that_says("x")), response_format=bad)
    check_error(answer, 400, "response_format.json_schema")


async def test_strict_tools_and_a_form_of_the_answer_that_cannot_both_be_kept(
    client_of: ClientOf,
) -> None:
    strict = {"tools": [tool(strict=True)]}
    json_object = {"type": "json_object"}
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
    llama = FakeEngine(say("x"), chat_template="<|python_tag|>")
    answer = await ask(client_of(llama), response_format=json_object, **strict)
    check_error(answer, 400, "response_format")
    hermes = engine_that_says("x")
    check_error(await ask(client_of(hermes), response_format=tag, **strict), 400, "response_format")
    for fields in ({"response_format": json_object}, {"response_format": {"type": "text"}}):
        assert (await ask(client_of(hermes), **strict, **fields)).status_code == 200
    # a call that must be made is no answer, and has no such form
    for engine in (llama, hermes):
        answer = await ask(
            client_of(engine), response_format=json_object, tool_choice="required", **strict
        )
        assert answer.status_code == 200


async def test_named_function_is_called_once(client_of: ClientOf) -> None:
    client = client_of(engine_that_says(f"{CALL}\n{CALL}"))
    assert len((await both(client, tool_choice="required"))["calls"]) == 2
    assert len((await both(client, tool_choice=NAMED))["calls"]) == 1


async def test_allowed_tools_narrow_the_choice(client_of: ClientOf) -> None:
    engine = engine_that_says(CALL)
    allowed: dict[str, Any] = {"mode": "required", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = await both(client_of(engine), tool_choice=choice)
    assert answer["reason"] == "tool_calls"
    grammar = engine.seen[0][2].structured_outputs
    assert grammar is not None
    assert '\\"g\\"' not in (grammar.grammar or "")
    allowed["tools"] = [NAMED] * 3
    assert (await both(client_of(engine), tool_choice=choice)) == answer
    assert engine.seen[-1][2].structured_outputs == grammar


async def test_call_of_a_tool_that_is_not_allowed_stays_text(client_of: ClientOf) -> None:
    other = CALL.replace('"f"', '"g"')
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    for text, calls, content, reason in (
        (CALL, 1, None, "tool_calls"),
        (other, 0, other, "stop"),
        (f"{other}\n{CALL}", 1, other, "tool_calls"),
        (other.replace('"g"', '"rm"'), 0, other.replace('"g"', '"rm"'), "stop"),
    ):
        client = client_of(engine_that_says(text))
        answer = await both(client, tool_choice=choice)
        assert answer["calls"] == [("f", '{"a": "x"}')] * calls
        assert (answer["content"], answer["reason"]) == (content, reason)


@pytest.mark.parametrize(
    ("end", "reason"),
    [('"x', "stop"), ('{"a": "x"', "stop"), ('"x"}', "tool_calls"), ('"x"}}\n', "tool_calls"),
     ('"arguments": ', "stop"), ("", "tool_calls")],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", f"{CALL}\n"])
async def test_call_that_a_stop_text_cut_is_not_told_to_be_whole(
    client_of: ClientOf, end: str, reason: str, before: str
) -> None:
    cut = CALL[: CALL.index(end) + len(end)] if end else CALL
    answer = await both(client_of(engine_that_says(before + cut)), tool_choice="required")
    if end == '"arguments": ' and before:
        reason = "tool_calls"  # nothing of the second call has come
    assert answer["reason"] == reason
    if reason == "tool_calls":
        assert all(json.loads(arguments) == {"a": "x"} for _, arguments in answer["calls"])


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_beginning_of_a_call_that_must_come_is_no_content(
    client_of: ClientOf, choice: Any
) -> None:
    for end in range(1, CALL.index('"arguments": ') + 12):
        answer = await both(client_of(engine_that_says(CALL[:end])), tool_choice=choice)
        assert (answer["content"] or "", answer["calls"]) == ("", [])


async def test_conversation_with_calls_goes_on(client_of: ClientOf) -> None:
    engine = engine_that_says("It is sunny.")
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": json.dumps({"a": 1})},
    ]
    answer = await both(client_of(engine), messages=messages)
    assert answer == {"calls": [], "content": "It is sunny.", "reason": "stop"}


async def test_family_whose_calls_are_no_json_writes_forced_ones_as_a_list(
    client_of: ClientOf,
) -> None:
    text = '[{"name": "f", "arguments": {"a": "x"}}]'
    engine = FakeEngine(say(text), chat_template="<|python_start|>")
    answer = await both(client_of(engine), tool_choice="required")
    assert answer == {"calls": [("f", '{"a": "x"}')], "content": None, "reason": "tool_calls"}
    assert engine.seen[0][2].structured_outputs is not None
    answer = await both(client_of(engine), tool_choice="auto")
    assert answer["content"] == text


@pytest.mark.parametrize(
    ("template", "call"),
    [
        ("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}]'),
        ("[TOOL_CALLS]", '[TOOL_CALLS]f[ARGS]{"a": "x"}'),
        ("<|python_start|>", "[f(a='x')]"),
        ("<|python_start|>", "<|python_start|>[f(a='x')]<|python_end|>"),
    ],
)
async def test_strict_tools_are_held_by_a_grammar_where_calling_is_up_to_the_model(
    client_of: ClientOf, template: str, call: str
) -> None:
    for text, told in ((call, [("f", '{"a": "x"}')]), ("Hello", [])):
        engine = FakeEngine(say(text), chat_template=template)
        answer = await both(client_of(engine), tools=[tool(strict=True), tool("g")])
        assert engine.seen[0][2].structured_outputs is not None
        assert answer["calls"] == told
        assert answer["content"] == (None if told else text)


async def test_mistral_gets_ids_that_its_templates_take(client_of: ClientOf) -> None:
    engine = FakeEngine(say('[TOOL_CALLS]f[ARGS]{"b": 1}'), chat_template="[TOOL_CALLS]")
    [choice] = (await ask(client_of(engine))).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    assert call["function"] == {"name": "f", "arguments": '{"b": 1}'}


async def test_marks_that_are_special_tokens_are_kept_in_the_text(client_of: ClientOf) -> None:
    engine = engine_that_says(CALL)
    engine.tokenizer.special["<tool_call>"] = 256
    await ask(client_of(engine))
    await ask(client_of(engine), tool_choice="none")
    assert [params.skip_special_tokens for _, _, params, _ in engine.seen] == [False, True]


def test_unknown_parser_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser must be one of auto, .*hermes"):
        ServerSettings(tool_call_parser="nonsense")


async def test_answers_read_for_calls_are_counted_by_what_was_found() -> None:
    metrics = PrometheusStatLogger(make_config())
    for text, stream in ((CALL, False), (CALL, True), ("Hello", True), (TWO, False)):
        app = build_app(engine_that_says(text), ServerSettings(), metrics)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await ask(client, stream=stream, n=2)).status_code == 200
            assert (await ask(client, stream=stream, tool_choice="none")).status_code == 200
    found = {
        (mode, outcome): metrics.registry.get_sample_value(
            "headrace:tool_call_parser_invocations_total",
            {"model_name": "tiny", "mode": mode, "outcome": outcome,
             "request_type": "chat_completions"},
        )
        for mode in ("streaming", "non_streaming")
        for outcome in ("tool_call", "no_tool_call")
    }  # fmt: skip
    assert found == {
        ("streaming", "tool_call"): 2, ("streaming", "no_tool_call"): 2,
        ("non_streaming", "tool_call"): 4, ("non_streaming", "no_tool_call"): 0,
    }  # fmt: skip
