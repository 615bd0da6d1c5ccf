"""Nothing that a request holds keeps the event loop from answering others."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.engine.async_llm import AsyncLLM
from headrace.server.app import build_app
from headrace.server.settings.server import ServerSettings
from tests.engine.fakes import FACTORY, make_config, save_tokenizer
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE, until

CHAT, COMPLETION, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
LONG = "a" * 5000
ONE = [{"role": "user", "content": "a"}]


class Held:
    """A call that waits until it is let go; it must not be made on the event loop."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.go = threading.Event()
        self.is_waiting = threading.Event()

    def __call__(self, *args: Any, **options: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "on the event loop"
        self.is_waiting.set()
        assert self.go.wait(PATIENCE)
        return self._call(*args, **options)


def hold(engine: FakeEngine, method: str) -> tuple[Any, Held]:
    """Let this method of the renderer or the tokenizer wait; with whose it is."""
    owner: Any = engine.renderer if method.startswith("render") else engine.tokenizer
    held = Held(getattr(owner, method))
    setattr(owner, method, held)
    return owner, held


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        (COMPLETION, {"prompt": LONG, "truncate_prompt_tokens": 5}, "render_prompt"),
        (COMPLETION, {"prompt": ["a" * 10] * 500, "truncate_prompt_tokens": 5}, "render_prompt"),
        (CHAT, {"messages": ONE}, "render_chat"),
        (TOKENIZE, {"messages": ONE}, "render_chat"),
        (TOKENIZE, {"prompt": LONG}, "encode"),
        ("/detokenize", {"tokens": [97] * 5000}, "decode"),
        (CHAT + "/render", {"messages": ONE}, "render_chat"),
        (CHAT + "/batch", {"messages": [ONE]}, "render_chat"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_others_are_answered_while_a_prompt_is_rendered(
    engine: FakeEngine, path: str, body: dict[str, Any], method: str
) -> None:
    _owner, held = hold(engine, method)
    transport = httpx.ASGITransport(app=build_app(engine, ServerSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        asking = asyncio.create_task(client.post(path, json=body))
        await until(held.is_waiting.is_set)
        assert (await client.get("/health")).status_code == 200
        assert not asking.done()
        held.go.set()
        assert (await asking).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        (TOKENIZE, {"prompt": LONG}, "encode"),
        ("/detokenize", {"tokens": [97] * 5000}, "decode"),
        (COMPLETION, {"prompt": ["a" * 300] * 1000}, "render_prompt"),
    ],
    ids=["tokenize", "detokenize", "many prompts"],
)
async def test_chats_are_answered_however_much_is_tokenised(
    engine: FakeEngine, path: str, body: dict[str, Any], method: str
) -> None:
    """As many long texts as asyncio has threads once held every chat back."""
    owner, held = hold(engine, method)
    transport = httpx.ASGITransport(app=build_app(engine, ServerSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        asking = [asyncio.create_task(client.post(path, json=body)) for _ in range(40)]
        await until(held.is_waiting.is_set)
        setattr(owner, method, held._call)
        assert (await client.post(CHAT, json={"messages": ONE})).status_code == 200
        held.go.set()
        assert {one.status_code for one in await asyncio.gather(*asking)} == {200}


class Stalls:
    """The longest that the event loop worked without coming round: seconds of its own thread, which
    stand still while the machine is busy with something else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.thread_time() - before)


@pytest.fixture
def counting(tmp_path: Any) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(
        make_config(tokenizer=save_tokenizer(tmp_path / "tokenizer"), max_model_len=1_000_000,
                    num_blocks=70_000),
        executor_factory=FACTORY,
    )  # fmt: skip
    yield engine
    engine.shutdown()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": "ab " * 3_000_000}),
        (COMPLETION, {"prompt": [97] * 4_000_000}),
        (COMPLETION, {"prompt": ["ab"] * 4_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 300_000}),
        (TOKENIZE, {"prompt": "ab " * 3_000_000}),
        ("/detokenize", {"tokens": [97] * 4_000_000}),
        (COMPLETION, {"prompt": "a", "stop_token_ids": [97] * 4_000_000}),
        (COMPLETION, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(10**6)), 1)}),
        (COMPLETION, {"prompt": "a", "stop": "x" * 12_000_000}),
        (COMPLETION, {"prompt": "a", **dict.fromkeys(map(str, range(10**6)), 1)}),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_large_requests_never_stop_the_event_loop_for_long(
    counting: AsyncLLM, path: str, body: dict[str, Any]
) -> None:
    content = json.dumps(body).encode()
    transport = httpx.ASGITransport(app=build_app(counting, ServerSettings()))
    stalls = Stalls()
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=300) as c:
        headers = {"content-type": "application/json"}
        await c.post(path, content=b"{}", headers=headers)
        watching = asyncio.create_task(stalls.watch())
        answer = await c.post(path, content=content, headers=headers)
        watching.cancel()
    if answer.status_code != 200:
        check_error(answer, 400)
    assert stalls.longest < 0.5
