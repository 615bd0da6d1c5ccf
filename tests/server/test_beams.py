"""Beam search over HTTP, above an engine that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headrace.engine.async_llm import AsyncLLM
from headrace.server.app import build_app
from headrace.server.generation.beams import BeamStream
from headrace.server.settings.server import ServerSettings
from tests.engine.fakes import FACTORY, make_config, save_tokenizer
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE, until

URL = "/v1/completions"


@pytest.fixture
def counting(tmp_path: Any) -> Iterator[AsyncLLM]:
    """Says the letter after the last one."""
    engine = AsyncLLM(
        make_config(tokenizer=save_tokenizer(tmp_path / "tokenizer"), step_seconds=0.002),
        executor_factory=FACTORY,
    )
    yield engine
    engine.shutdown()


def client_of(engine: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_app(engine, ServerSettings()))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE)


async def test_beams_come_best_first_and_the_likeliest_is_the_greedy_one(
    counting: AsyncLLM,
) -> None:
    body = {"prompt": ["A", "K"], "max_tokens": 3, "n": 2, "use_beam_search": True,
            "logprobs": 1, "return_token_ids": True}  # fmt: skip
    answer = (await client_of(counting).post(URL, json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [answer["choices"][i]["text"] for i in (0, 2)] == ["BCD", "LMN"]
    for first, second in ((0, 1), (2, 3)):
        totals = [sum(answer["choices"][i]["logprobs"]["token_logprobs"]) for i in (first, second)]
        assert totals[0] >= totals[1]
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "length"
        assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 3
        assert all(len(top) in (1, 2) for top in choice["logprobs"]["top_logprobs"])
    assert answer["usage"]["completion_tokens"] == 12
    assert counting.num_unfinished_requests == 0


async def test_echo_stands_before_each_beam(counting: AsyncLLM) -> None:
    body = {"prompt": "A", "max_tokens": 2, "n": 2, "use_beam_search": True, "echo": True}
    answer = (await client_of(counting).post(URL, json=body)).json()
    assert answer["choices"][0]["text"] == "ABC"
    assert all(choice["text"].startswith("A") for choice in answer["choices"])


async def test_client_that_leaves_ends_the_search(counting: AsyncLLM) -> None:
    body = {"prompt": "A", "max_tokens": 100, "n": 2, "use_beam_search": True}
    app = build_app(counting, ServerSettings())
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append(1)
            return {"type": "http.request", "body": httpx.Request("POST", "http://x", json=body)
                    .content}  # fmt: skip
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    sent: list[int] = []
    scope = {"type": "http", "method": "POST", "path": URL, "raw_path": URL.encode(),
             "query_string": b"", "headers": [(b"content-type", b"application/json")],
             "http_version": "1.1", "scheme": "http", "server": ("x", 1), "client": ("y", 2),
             "root_path": ""}  # fmt: skip
    asking = asyncio.create_task(app(scope, receive, send))
    await until(lambda: counting.num_unfinished_requests == 2)
    left.set()
    await asking
    await until(lambda: counting.num_unfinished_requests == 0)


@pytest.mark.parametrize("prompt", ["A", ["A", "K"]], ids=["one search", "two"])
async def test_search_that_is_ended_gives_its_client_what_there_is(
    counting: AsyncLLM, prompt: Any
) -> None:
    client = client_of(counting)
    body = {"prompt": prompt, "max_tokens": 150, "n": 2, "use_beam_search": True}
    asking = asyncio.create_task(client.post(URL, json=body))
    stages, info = set(), {}
    async with asyncio.timeout(PATIENCE):
        while info.get("completion_tokens", 0) < 20:
            await asyncio.sleep(0.001)  # between rounds, and within
            for info in (await client.get("/v1/requests")).json()["data"]:
                stages.add(info["stage"])
    assert stages <= {"starting", "waiting", "prefill", "decode"}
    assert (await client.delete(f"/v1/requests/{info['handle']}")).status_code == 200
    answer = await asking
    assert answer.status_code == 200
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort"] * len(choices)
    assert choices[0]["text"].startswith("BCD")
    assert counting.num_unfinished_requests == 0


async def test_search_that_is_ended_between_two_rounds_begins_no_further_one(
    counting: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(counting)
    release = BeamStream._release
    rounds = []

    async def release_and_end(stream: BeamStream) -> None:
        await release(stream)
        rounds.append(stream)
        if len(rounds) == 3:
            assert not stream.core_ids
            (one,) = (await client.get("/v1/requests")).json()["data"]
            assert one["stage"] == "decode"
            assert (await client.delete(f"/v1/requests/{one['id']}")).status_code == 200

    monkeypatch.setattr(BeamStream, "_release", release_and_end)
    body = {"prompt": "A", "max_tokens": 100, "n": 2, "use_beam_search": True}
    answer = (await client.post(URL, json=body)).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort", "abort"]
    assert answer["choices"][0]["text"] == "BCD"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 11}, "n"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"length_penalty": 1000}, "length_penalty"),
        *(({name: value}, name) for name, value in {
            "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 1, "stop": "a",
            "frequency_penalty": 1, "repetition_penalty": 2, "stop_token_ids": [1],
            "min_tokens": 1, "logit_bias": {"1": 1}, "allowed_token_ids": [1],
            "bad_words": ["a"], "prompt_logprobs": 1, "logprob_token_ids": [1],
            "deadline_ms": 50, "vllm_xargs": {"a": 1},
        }.items()),
    ],
    ids=str,
)  # fmt: skip
async def test_what_a_search_cannot_do_is_refused(fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    body = {"prompt": "a", "use_beam_search": True, **fields}
    check_error(await client_of(engine).post(URL, json=body), 400, param)
    assert not engine.seen


async def test_values_that_ask_for_nothing_are_no_obstacle(counting: AsyncLLM) -> None:
    body = {"prompt": "A", "max_tokens": 1, "use_beam_search": True, "top_p": 1.0, "top_k": -1,
            "stop": [], "presence_penalty": 0.0, "min_tokens": 0, "stream": False}  # fmt: skip
    answer: Callable[..., Any] = client_of(counting).post
    assert (await answer(URL, json=body)).json()["choices"][0]["text"] == "B"


async def test_prompts_of_embeddings_are_refused() -> None:
    engine = FakeEngine()
    body = {"prompt_embeds": "x", "use_beam_search": True}
    check_error(await client_of(engine).post(URL, json=body), 400, "prompt_embeds")
