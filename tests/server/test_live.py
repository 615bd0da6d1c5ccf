"""Work that ends with its client, or with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from headrace.server.errors import NotReadyError
from headrace.server.streams.live import unless_disconnected


class Peer:
    """A client that may go, a server that may end, and work that notes how it ended."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.go_on = asyncio.Event()
        self.was_cancelled = False

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def work(self) -> str:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return "done"

    def run(self, receive: Callable[[], Awaitable[Message]] | None = None) -> asyncio.Task[str]:
        return asyncio.ensure_future(
            unless_disconnected(receive or self.receive, self.cut, self.work())  # type: ignore[arg-type]
        )


async def _soon() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_result_is_that_of_the_work() -> None:
    peer = Peer()
    running = peer.run()
    await _soon()
    peer.go_on.set()
    assert await running == "done"
    assert len(asyncio.all_tasks()) <= 2  # the watch is on its way out
    await _soon()
    assert len(asyncio.all_tasks()) == 1


async def test_client_that_goes_and_server_that_ends_cancel_the_work() -> None:
    peer = Peer()
    running = peer.run()
    await _soon()
    peer.gone.set()
    with pytest.raises(ClientDisconnect):
        await running
    assert peer.was_cancelled
    peer = Peer()
    running = peer.run()
    await _soon()
    peer.cut.set_result(None)
    with pytest.raises(NotReadyError):
        await running
    assert peer.was_cancelled


async def test_both_at_once_are_one_end() -> None:
    peer = Peer()
    running = peer.run()
    await _soon()
    peer.cut.set_result(None)
    peer.gone.set()
    with pytest.raises((ClientDisconnect, NotReadyError)):
        await running
    assert not running.cancelled()


async def test_server_that_has_ended_lets_no_work_begin() -> None:
    peer = Peer()
    peer.cut.set_result(None)
    with pytest.raises(NotReadyError):
        await peer.run()


async def test_receiving_that_fails_is_a_client_that_is_gone() -> None:
    async def receive() -> Message:
        raise OSError("reset")

    peer = Peer()
    with pytest.raises(ClientDisconnect):
        await peer.run(receive)


async def test_cancelling_from_outside_stays_cancelling() -> None:
    peer = Peer()
    running = peer.run()
    await _soon()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    peer = Peer()
    running = peer.run()
    await _soon()
    peer.cut.set_result(None)
    await asyncio.sleep(0)  # ours is on its way
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("order", ["work first", "client first"])
async def test_client_that_goes_as_the_work_ends_cancels_nothing_after_it(order: str) -> None:
    peer = Peer()
    went_on = False

    async def whole() -> str:
        nonlocal went_on
        try:
            answer = await unless_disconnected(peer.receive, peer.cut, peer.work())
        except ClientDisconnect:
            answer = "gone"
        for _ in range(5):
            await asyncio.sleep(0)
        went_on = True
        return answer

    running = asyncio.ensure_future(whole())
    await _soon()
    for event in (peer.go_on, peer.gone) if order == "work first" else (peer.gone, peer.go_on):
        event.set()
    assert await running in ("done", "gone")
    assert went_on
    assert running.cancelling() == 0
