"""POST /v1/completions: prompts of every form, echo, log-probabilities, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.server.conftest import check_error, frames_of
from tests.server.fakes import BOS, FakeEngine, say

URL = "/v1/completions"


async def ask(client: httpx.AsyncClient, prompt: Any = "Hi", **fields: Any) -> httpx.Response:
    return await client.post(URL, json={"prompt": prompt, **fields})


def text_of(frames: list[Any], index: int) -> str:
    choices = [choice for frame in frames[:-1] for choice in frame["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


async def test_whole_answer_has_the_shape_of_the_api(client: httpx.AsyncClient) -> None:
    body = (await ask(client)).json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 0
    assert body.pop("system_fingerprint").startswith("headrace-")
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop",
                "stop_reason": None, "token_ids": None, "prompt_logprobs": None,
                "prompt_token_ids": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9},
    }  # fmt: skip


async def test_stream_is_framed_as_the_api_says(client: httpx.AsyncClient) -> None:
    answer = await ask(
        client, max_tokens=1, stream=True, request_id="r", stream_options={"include_usage": True}
    )
    frames = frames_of(answer.text)
    for frame in frames[:-1]:
        assert frame.pop("created") > 0
    assert frames[1].pop("system_fingerprint")
    head = {"id": "cmpl-r", "object": "text_completion", "model": "tiny"}
    choice = {"index": 0, "text": "H", "finish_reason": "length", "stop_reason": None}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert frames == [
        {**head, "choices": [choice]}, {**head, "choices": [], "usage": usage}, "[DONE]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_prompt_of_every_form_reaches_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: Any, ids: list[list[int]]
) -> None:
    assert (await ask(client, prompt)).status_code == 200
    assert [seen[1].prompt_token_ids for seen in engine.seen] == ids


async def test_special_tokens_are_left_out_when_asked(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, add_special_tokens=False)
    assert engine.seen[0][1].prompt_token_ids == [72, 105]


async def test_prompt_is_cut_on_the_asked_side(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await ask(client, "abcd", truncate_prompt_tokens=2)
    await ask(client, "abcd", truncate_prompt_tokens=2, truncation_side="right")
    await ask(client, "a" * 600, truncate_prompt_tokens=-1)
    ids = [seen[1].prompt_token_ids for seen in engine.seen]
    assert ids[:2] == [[99, 100], [BOS, 97]]
    assert len(ids[2]) == 511


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_of_several_prompts_are_numbered_by_prompt(
    client_of: Callable[..., httpx.AsyncClient], stream: bool
) -> None:
    client = client_of(FakeEngine(lambda index: list(b"xy"[index:])))
    answer = await ask(client, ["a", "bc"], n=2, stream=stream, echo=True,
                       stream_options={"include_usage": True} if stream else None)  # fmt: skip
    expected = ["axy", "ay", "bcxy", "bcy"]
    if stream:
        frames = frames_of(answer.text)
        assert [text_of(frames, i) for i in range(4)] == expected
        assert frames.count("[DONE]") == 1
        usage = frames[-2]["usage"]
        finals = [c for f in frames[:-2] for c in f["choices"] if c["finish_reason"]]
        assert sorted(c["index"] for c in finals) == [0, 1, 2, 3]
    else:
        choices = answer.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [choice["text"] for choice in choices] == expected
        usage = answer.json()["usage"]
    assert usage == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_without_tokens_gives_the_prompt_and_its_logprobs(
    client: httpx.AsyncClient, engine: FakeEngine, stream: bool
) -> None:
    answer = await ask(client, "éa", echo=True, logprobs=1, max_tokens=0, stream=stream)
    if stream:
        [frame, _done] = frames_of(answer.text)
        choice = frame["choices"][0]
    else:
        choice = answer.json()["choices"][0]
        assert answer.json()["usage"] == {
            "prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4,
        }  # fmt: skip
    assert (choice["text"], choice["finish_reason"]) == ("éa", "length")
    assert choice["logprobs"] == {
        "text_offset": [0, 0, 0, 1],
        "token_logprobs": [None, -0.5, -0.5, -0.5],
        "tokens": ["<s>", "bytes:\\xc3", "bytes:\\xa9", "a"],
        "top_logprobs": [None, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.5}, {"a": -0.5}],
    }
    assert engine.seen[0][2].max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_with_echo_cover_prompt_and_answer(
    client: httpx.AsyncClient, stream: bool
) -> None:
    answer = await ask(client, "Hi", echo=True, logprobs=0, max_tokens=2, stream=stream)
    if stream:
        parts = [f["choices"][0]["logprobs"] for f in frames_of(answer.text)[:-1]]
        logprobs = {key: [one for part in parts for one in part[key]] for key in parts[0]}
    else:
        logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<s>", "H", "i", "H", "e"]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]


async def test_prompt_logprobs_are_keyed_by_token_id(client: httpx.AsyncClient) -> None:
    choice = (await ask(client, "a", prompt_logprobs=1)).json()["choices"][0]
    entry = {"logprob": -0.5, "rank": 1, "decoded_token": None}
    assert choice["prompt_logprobs"] == [None, {"97": entry}]


async def test_max_tokens_is_16_by_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await ask(client)
    await ask(client, max_tokens=None)
    assert [seen[2].max_tokens for seen in engine.seen] == [16, 16]


async def test_half_a_character_is_no_frame(client_of: Callable[..., httpx.AsyncClient]) -> None:
    frames = frames_of((await ask(client_of(FakeEngine(say("日a"))), stream=True)).text)
    assert [frame["choices"][0]["text"] for frame in frames[:-1]] == ["", "日", "a", ""]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt.0"),
    ({"prompt": ["a", ""]}, "prompt.1"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [{}]}, "prompt.0"),
    ({"prompt": [1, -1]}, "prompt.1"),
    ({"prompt": [1, True]}, "prompt.1"),
    ({"prompt": [True, 1]}, "prompt.0"),
    ({"prompt": [1, 2.0]}, "prompt.1"),
    ({"prompt": [1.5]}, "prompt.0"),
    ({"prompt": [1, "a"]}, "prompt.1"),
    ({"prompt": [[1, 2**64]]}, "prompt.0.1"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": ["a"] * 1000, "n": 5}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"min_tokens": 20}, "min_tokens"),
    ({"logprobs": True}, "logprobs"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), REFUSALS, ids=lambda v: str(v)[:40])
async def test_refused_before_the_first_byte_streamed_or_not(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, stream: bool
) -> None:
    check_error(await ask(client, **{"stream": stream, **fields}), 400, param)
    assert not engine.live


@pytest.mark.parametrize("field", ["suffix", "best_of"])
async def test_known_field_without_implementation_is_refused(
    client: httpx.AsyncClient, field: str
) -> None:
    check_error(await ask(client, **{field: 5}), 400, field)


async def test_one_bad_prompt_refuses_all_and_leaves_none(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    check_error(await ask(client, ["fine", "x" * 600, "fine"], stream=True), 400, "prompt")
    assert [seen[1].prompt for seen in engine.seen] == ["fine"]
    assert not engine.live
    assert len(engine.aborted) == 1


async def test_full_queue_is_a_503_with_retry_after_before_rendering(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]
) -> None:
    engine.limit = 3
    client = client_of(engine)
    for fields in ({"n": 4}, {"prompt": ["a", "b"], "n": 2}, {"n": 4, "stream": True}):
        answer = await ask(client, **fields)
        check_error(answer, 503)
        assert answer.headers["retry-after"] == "3"
    assert not engine.seen
    metrics = (await client.get("/metrics")).text
    assert (
        'headrace:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 3.0'
        in metrics
    )
    assert (await ask(client, n=3)).status_code == 200


async def test_priority_reaches_an_engine_that_goes_by_it(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    engine = FakeEngine(scheduling_policy="priority")
    client = client_of(engine)
    await ask(client, priority=5)
    body = {"prompt": "a", "priority": 5}
    await client.post(URL, json=body, headers={"X-Headrace-Priority": "-2"})
    assert [seen[3] for seen in engine.seen] == [5, -2]


@pytest.mark.parametrize("text", ["high", "1_0", "+1", "1.0", "", " ", "0x1", "9" * 19, "9" * 5000])
async def test_priority_that_is_none_is_told_by_the_header(
    client_of: Callable[..., httpx.AsyncClient], text: str
) -> None:
    client = client_of(FakeEngine(scheduling_policy="priority"))
    bad = await client.post(
        URL, json={"prompt": "a", "priority": 5}, headers={"X-Headrace-Priority": text}
    )
    check_error(bad, 400, "X-Headrace-Priority")


async def test_priority_in_the_header_of_a_server_without_is_told_by_the_header(
    client: httpx.AsyncClient,
) -> None:
    bad = await client.post(URL, json={"prompt": "a"}, headers={"X-Headrace-Priority": "1"})
    check_error(bad, 400, "X-Headrace-Priority")


async def test_cache_salt_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await ask(client, cache_salt="tenant-1")
    assert engine.seen[0][1].cache_salt == "tenant-1"
