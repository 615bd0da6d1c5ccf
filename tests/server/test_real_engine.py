"""The application over a real engine without a model: where the two halves must agree."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headrace.config.engine import FrontConfig, SchedulerConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.server.app import build_app
from headrace.server.settings.server import ServerSettings
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, FACTORY, make_config, save_tokenizer
from tests.server.conftest import check_error, frames_of
from tests.waiting import PATIENCE, until

URL = "/v1/completions"
ClientOf = Callable[..., httpx.AsyncClient]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    """A client of an engine that counts: the token after 97 is 98."""
    engines: list[AsyncLLM] = []

    def make(**options: Any) -> httpx.AsyncClient:
        engines.append(AsyncLLM(make_config(**options), executor_factory=FACTORY))
        app = build_app(engines[-1], ServerSettings())
        app.state.engine = engines[-1]
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=PATIENCE
        )

    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def tokenizer_folder(tmp_path: Any) -> str:
    return save_tokenizer(tmp_path / "tokenizer")


async def ask(client: httpx.AsyncClient, prompt: Any, **fields: Any) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}
    return await client.post(URL, json=body)


async def test_server_without_a_tokenizer_takes_and_gives_ids(client_of: ClientOf) -> None:
    client = client_of()
    answer = await ask(client, [97], stop_token_ids=[100], return_token_ids=True, logprobs=1)
    [choice] = answer.json()["choices"]
    assert (choice["text"], choice["token_ids"]) == ("", [98, 99, 100])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 100)
    assert choice["logprobs"]["tokens"] == ["token_id:98", "token_id:99", "token_id:100"]
    answer = await ask(client, [97], stream=True, return_token_ids=True)
    ids = [frame["choices"][0]["token_ids"] for frame in frames_of(answer.text)[:-1]]
    assert [token for part in ids for token in part] == [98, 99, 100, 101]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": "a"}, 400, "prompt"),
        ({"stop": ["x"]}, 400, "stop"),
        ({"bad_words": ["x"]}, 400, "bad_words"),
        ({"echo": True}, 400, "echo"),
        ({"echo": True, "max_tokens": 0, "logprobs": 1}, 400, "echo"),
        ({"prompt": [300]}, 400, "prompt"),
        ({"prompt": [97] * 200}, 400, "prompt"),
        ({"stop_token_ids": [300]}, 400, "stop_token_ids"),
        ({"logit_bias": {"300": 1}}, 400, "logit_bias.300"),
        ({"logit_bias": {"5": int("9" * 400)}}, 400, "logit_bias.5"),
        ({"logit_bias": {"1_0": 1}}, 400, "logit_bias.1_0"),
        ({"allowed_token_ids": [300]}, 400, "allowed_token_ids"),
        ({"logprobs": 21}, 400, "logprobs"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_needs_text_or_another_vocabulary_is_refused_before_the_first_byte(
    client_of: ClientOf, fields: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    client = client_of()
    check_error(await ask(client, **{"prompt": [97], "stream": stream, **fields}), status, param)
    assert (await ask(client, [97])).status_code == 200


async def test_excess_of_long_prompts_is_refused_before_it_is_tokenised(
    client_of: ClientOf, tokenizer_folder: str
) -> None:
    client = client_of(
        tokenizer=tokenizer_folder, max_model_len=10_000, num_blocks=3000,
        front=FrontConfig(max_num_queued_reqs=3),
    )  # fmt: skip
    engine: AsyncLLM = client._transport.app.state.engine  # type: ignore[attr-defined]
    go, rendered = threading.Event(), []
    render = engine.renderer.render_prompt

    def slow(prompt: Any, **options: Any) -> Any:
        rendered.append(len(prompt))
        assert go.wait(PATIENCE)
        return render(prompt, **options)

    engine.renderer.render_prompt = slow  # type: ignore[method-assign]
    asking = [asyncio.create_task(ask(client, "a" * 5000)) for _ in range(10)]
    await until(lambda: sum(task.done() for task in asking) == 7)
    done = [task for task in asking if task.done()]
    waiting = [task for task in asking if not task.done()]
    for task in done:
        check_error(task.result(), 503)
        assert int(task.result().headers["retry-after"]) >= 1
    go.set()
    assert [(await task).status_code for task in waiting] == [200] * 3
    assert rendered == [5000] * 3
    assert engine.num_unfinished_requests == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_whose_time_is_over_ends_with_timeout(
    client_of: ClientOf, tokenizer_folder: str, stream: bool
) -> None:
    client = client_of(tokenizer=tokenizer_folder, **ENDLESS, modulo=100)
    limit_ms, text = 100, "max_queue_ms"
    while "max_queue_ms" in text:  # it may be over before a busy machine has begun
        limit_ms *= 2
        answer = await ask(
            client, "A", max_tokens=ENDLESS_TOKENS, deadline_ms=limit_ms, stream=stream
        )
        text = answer.text
    assert answer.status_code == 200
    if stream:
        frames = [frame["choices"][0] for frame in frames_of(text)[:-1]]
        assert frames[-1]["finish_reason"] == "timeout"
        text = "".join(frame["text"] for frame in frames)
    else:
        [choice] = answer.json()["choices"]
        assert choice["finish_reason"] == "timeout"
        text = choice["text"]
    assert text.startswith("B")
    assert len(text) <= limit_ms / 1000 / ENDLESS["step_seconds"] + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [{"max_queue_ms": 80}, {"deadline_ms": 80}], ids=str)
async def test_request_that_is_not_started_in_time_is_refused(
    client_of: ClientOf, tokenizer_folder: str, limit: dict[str, float], stream: bool
) -> None:
    client = client_of(
        tokenizer=tokenizer_folder, **ENDLESS, scheduler=SchedulerConfig(max_num_seqs=1)
    )
    engine: AsyncLLM = client._transport.app.state.engine  # type: ignore[attr-defined]
    first = asyncio.create_task(ask(client, "a", max_tokens=ENDLESS_TOKENS))
    await until(lambda: engine.num_unfinished_requests == 1)
    late = await ask(client, "a", stream=stream, **limit)
    if late.status_code == 200:  # the answer's head had been sent: the stream ends with the error
        errors = [f["error"] for f in frames_of(late.text) if isinstance(f, dict) and "error" in f]
        assert [error["code"] for error in errors] == [503]
    else:
        check_error(late, 503)
        assert int(late.headers["retry-after"]) >= 1
    [running] = (await client.get("/v1/requests")).json()["data"]
    assert (await client.delete(f"/v1/requests/{running['handle']}")).status_code == 200
    assert (await first).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("deadline_ms", 0), ("max_queue_ms", -1), ("deadline_ms", "soon"),
     ("thinking_token_budget", 5), ("repetition_detection", {"max_pattern_size": 0})],
)  # fmt: skip
async def test_bad_limits_are_refused(client_of: ClientOf, field: str, value: Any) -> None:
    answer = await ask(client_of(), [97], **{field: value})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


async def test_answer_that_repeats_itself_ends(client_of: ClientOf, tokenizer_folder: str) -> None:
    client = client_of(tokenizer=tokenizer_folder, modulo=70)  # ... D E, then \0 \1 ... again
    rule = {"max_pattern_size": 70, "min_count": 2}
    answer = await ask(client, "A", max_tokens=190, repetition_detection=rule)
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "repetition"
