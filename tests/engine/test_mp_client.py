"""A core process as a client sees it: outputs, calls, garbage on its sockets, and its death."""

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from headrace.core.outbox import HOLD_SECONDS
from headrace.core.proc import CORE_SOCKET, FRONT_SOCKET
from headrace.engine.mp_client import AsyncMPClient, SyncMPClient
from headrace.errors import EngineDeadError, ValidationError
from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.ipc.process import start_process
from headrace.ipc.sockets import SocketFolder, Sockets
from headrace.messages.outputs import (
    CallResult,
    CoreOutput,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineDead,
    FinishReason,
)
from headrace.messages.requests import (
    Call,
    EngineCoreRequest,
    GetDebugState,
    ResetPrefixCache,
    Shutdown,
)
from headrace.messages.startup import EngineReady, EngineSetup, StartupMessage
from headrace.sampling_params import SamplingParams
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, EOS, FACTORY, make_config
from tests.waiting import PATIENCE, until, wait_until


def _request(request_id: str = "a", start: int = 1, **params: Any) -> EngineCoreRequest:
    params = {"max_tokens": 5, "temperature": 0.0, **params}
    return EngineCoreRequest(request_id, [start], SamplingParams(**params), EOS, [], time.time())


def _all_outputs(client: SyncMPClient, count: int) -> list[EngineCoreOutput]:
    """Outputs until `count` requests have ended."""
    found: list[EngineCoreOutput] = []
    while sum(output.finish_reason is not None for output in found) < count:
        found += client.get_outputs().outputs
    return found


def _read_to_the_end(client: SyncMPClient, tokens: list[int] | None = None) -> None:
    while True:
        for output in client.get_outputs().outputs:
            if tokens is not None:
                tokens += output.new_token_ids


@pytest.fixture
def client() -> Iterator[SyncMPClient]:
    made = SyncMPClient(make_config(), executor_factory=FACTORY)
    yield made
    made.shutdown()


def test_requests_of_a_sync_client_are_answered(client: SyncMPClient) -> None:
    client.add_request(_request("a", 10))
    client.add_request(_request("b", 50, max_tokens=2))
    outputs = _all_outputs(client, 2)
    tokens = {i: [t for o in outputs if o.request_id == i for t in o.new_token_ids] for i in "ab"}
    assert tokens == {"a": [11, 12, 13, 14, 15], "b": [51, 52]}


def test_tokens_nobody_waits_for_come_many_at_once() -> None:
    client = SyncMPClient(make_config(step_seconds=0.02), executor_factory=FACTORY)
    try:
        request = msgspec.structs.replace(_request("a", 10, max_tokens=60), is_watched=False)
        client.add_request(request)
        found, bundles, times = [], 0, []
        while not found or found[-1].finish_reason is None:
            if not client._connection.outputs:
                bundles += 1
                time.sleep(0.015)  # what is sent together is here together
            outputs = client.get_outputs()
            found += outputs.outputs
            times.append(outputs.timestamp)
        assert [t for o in found for t in o.new_token_ids] == list(range(11, 71))
        # The first of a bundle may wake us before the rest, and a slow core has many.
        assert bundles < 8 + 2.5 * (times[-1] - times[0]) / HOLD_SECONDS
    finally:
        client.shutdown()


def test_call_between_outputs_gets_its_own_answer(client: SyncMPClient) -> None:
    client.add_request(_request("a", max_tokens=100))
    assert client.call(ResetPrefixCache()) in (True, False)
    assert client.call(GetDebugState())["requests"] in (0, 1)
    assert len(_all_outputs(client, 1)) == 100


def test_abort_of_a_request_frees_all_it_holds() -> None:
    client = SyncMPClient(make_config(**ENDLESS), executor_factory=FACTORY)

    def is_empty() -> bool:
        state = client.call(GetDebugState())
        return not any(size for name, size in state.items() if "cached" not in name)

    try:
        client.add_request(_request("a", max_tokens=ENDLESS_TOKENS))
        client.get_outputs()
        assert not is_empty()
        client.abort_requests(["a", "unknown"])
        wait_until(is_empty)
    finally:
        client.shutdown()


@pytest.mark.parametrize("extra", [{"x": object()}, {"x": 2**63 - 1, "y": {1, object()}}])
def test_request_that_cannot_be_sent_is_refused(
    client: SyncMPClient, extra: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match="cannot be sent"):
        client.add_request(_request("a", extra_args=extra))
    client.add_request(_request("b"))
    assert len(_all_outputs(client, 1)) == 5


def test_idle_core_speaks_every_second_and_uses_no_processor(client: SyncMPClient) -> None:
    process = psutil.Process(client._connection.handle.child.pid)
    before = process.cpu_times()
    beats = [client.get_outputs() for _ in range(4)]
    after = process.cpu_times()
    assert all(not beat.outputs for beat in beats)
    gaps = [new.timestamp - old.timestamp for old, new in pairwise(beats)]
    assert 0.8 < min(gaps[1:]) < 5.0
    assert (after.user + after.system) - (before.user + before.system) < 0.3


def test_killed_core_raises_at_once_and_ever_after(client: SyncMPClient) -> None:
    client.add_request(_request("a"))
    os.kill(client._connection.handle.child.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        _read_to_the_end(client)
    for _ in range(2):
        with pytest.raises(EngineDeadError):
            client.add_request(_request("b"))
        with pytest.raises(EngineDeadError):
            client.call(ResetPrefixCache())
        with pytest.raises(EngineDeadError):
            client.get_outputs()
    client.abort_requests(["a"])
    assert isinstance(client.dead_error, EngineDeadError)


def test_core_sent_sigterm_says_so(client: SyncMPClient) -> None:
    os.kill(client._connection.handle.child.pid, signal.SIGTERM)
    with pytest.raises(EngineDeadError, match="SIGTERM"):
        _read_to_the_end(client)
    client.shutdown()
    assert client._connection.handle.child.exit_status() == 128 + signal.SIGTERM


def test_core_whose_step_fails_says_why_and_ends_with_a_status() -> None:
    client = SyncMPClient(make_config(raise_at_token=13), executor_factory=FACTORY)
    try:
        client.add_request(_request("a", 10))
        tokens: list[int] = []
        with pytest.raises(EngineDeadError, match="RuntimeError: no step gives 13"):
            _read_to_the_end(client, tokens)
        assert tokens == [11, 12]
    finally:
        client.shutdown()
    assert client._connection.handle.child.exit_status() == 1


def test_request_that_fails_in_the_step_leaves_the_others_alone() -> None:
    client = SyncMPClient(make_config(fail_at_token=13), executor_factory=FACTORY)
    try:
        client.add_request(_request("a", 10))
        client.add_request(_request("b", 50))
        outputs = _all_outputs(client, 2)
    finally:
        client.shutdown()
    ends = {o.request_id: o for o in outputs if o.finish_reason is not None}
    assert (ends["a"].finish_reason, ends["a"].error) == (FinishReason.ERROR, "no request gets 13")
    assert ends["b"].finish_reason is FinishReason.LENGTH


def test_call_that_is_not_answered_in_time_raises(tmp_path: Path) -> None:
    config = make_config(**ENDLESS, wait_at_token=2, gate=str(tmp_path))
    client = SyncMPClient(config, executor_factory=FACTORY)
    try:
        client.add_request(_request("a", max_tokens=ENDLESS_TOKENS))
        wait_until((tmp_path / "here").exists)  # the step has begun
        with pytest.raises(TimeoutError):
            client.call(ResetPrefixCache(), timeout=0.3)
        (tmp_path / "go").touch()
        assert client.call(GetDebugState())["requests"] == 1
    finally:
        client.shutdown(0.1)


def test_stuck_core_is_ended_by_force(tmp_path: Path) -> None:
    config = make_config(hang_at_token=11, gate=str(tmp_path))
    client = SyncMPClient(config, executor_factory=FACTORY)
    client.add_request(_request("a", 10))
    wait_until((tmp_path / "here").exists)
    client.shutdown(0.2)  # of the 600 s of its step
    assert not psutil.pid_exists(client._connection.handle.child.pid)


# The asynchronous one


@pytest.fixture
def async_client() -> Iterator[AsyncMPClient]:
    made = AsyncMPClient(make_config(step_seconds=0.001), executor_factory=FACTORY)
    yield made
    made.shutdown()


async def test_outputs_and_calls_of_an_async_client_come_side_by_side(
    async_client: AsyncMPClient,
) -> None:
    async_client.add_request(_request("a", max_tokens=50))
    calls = [asyncio.create_task(async_client.call(GetDebugState())) for _ in range(20)]
    tokens = 0
    while tokens < 50:
        tokens += sum(len(o.new_token_ids) for o in (await async_client.get_outputs()).outputs)
    states = await asyncio.gather(*calls)
    assert all(state["requests"] in (0, 1) for state in states)


async def test_loop_has_a_turn_between_outputs_that_are_there_already() -> None:
    client = AsyncMPClient(make_config(**ENDLESS), executor_factory=FACTORY)
    try:
        client.add_request(_request("a", max_tokens=ENDLESS_TOKENS))
        while len(client._connection.outputs) <= 1:
            time.sleep(0.1)  # noqa: ASYNC251 - the core goes on, the loop does not
            await client.get_outputs()
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await client.get_outputs()
        assert turns
    finally:
        client.shutdown()


async def test_call_cancelled_leaves_the_next_one_alone(async_client: AsyncMPClient) -> None:
    call = asyncio.create_task(async_client.call(GetDebugState()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await async_client.call(ResetPrefixCache()) is True


async def test_killed_core_wakes_everybody(async_client: AsyncMPClient) -> None:
    process = psutil.Process(async_client._connection.handle.child.pid)
    process.suspend()
    await until(lambda: process.status() == psutil.STATUS_STOPPED)
    call = asyncio.create_task(async_client.call(GetDebugState()))

    async def read() -> None:
        while True:
            await async_client.get_outputs()

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    assert not call.done()
    os.kill(async_client._connection.handle.child.pid, signal.SIGKILL)
    for task in (call, reading):
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(task, PATIENCE)


def test_async_client_moves_to_the_next_loop(async_client: AsyncMPClient) -> None:
    for _ in range(3):
        assert asyncio.run(async_client.call(ResetPrefixCache())) is True


# Strangers at the core's socket


class Wire:
    """A core process spoken to by hand."""

    def __init__(self) -> None:
        self.folder = SocketFolder()
        self.sockets = Sockets()
        self.receiver = self.sockets.receiver(self.folder.address(FRONT_SOCKET))
        arguments = ["--sockets", self.folder.path, "--executor-factory", FACTORY]
        self.child = start_process("the core", "headrace.core.proc", arguments)
        self.startup: RecordDecoder[StartupMessage] = RecordDecoder(StartupMessage, "core")
        self.outputs: RecordDecoder[CoreOutput] = RecordDecoder(CoreOutput, "core")
        self.pending: list[bytes] = []
        self.hear_startup()
        self.sender = self.sockets.sender(self.folder.address(CORE_SOCKET))

    def _hear(self) -> bytes:
        while not self.pending:
            assert self.receiver.wait(PATIENCE, other=self.child.life), "the core has ended"
            self.pending += self.receiver.drain()
        return self.pending.pop(0)

    def hear_startup(self) -> StartupMessage:
        message = self.startup.decode(self._hear())
        assert message is not None
        return message

    def hear(self, kind: type) -> Any:
        """The next message of a kind, without signs of life."""
        while True:
            record = self.outputs.decode(self._hear())
            if isinstance(record, kind) and getattr(record, "outputs", True):
                return record

    def say(self, record: object) -> None:
        self.sender.send(RecordEncoder().encode(record))

    def close(self) -> None:
        self.child.stop(0.0)
        self.sender.close()
        self.receiver.close()
        self.sockets.close()
        self.folder.remove()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


GARBAGE = [
    b"",
    os.urandom(1000),
    pickle.dumps({"x": os.system}),
    b"\x91" * 10_000,
    msgspec.msgpack.encode(["exec", "import os"]),
    msgspec.msgpack.encode(["add", 5]),
    msgspec.msgpack.encode({"add": "x"}),
    msgspec.msgpack.encode(["call", 1, ["reset_prefix_cache", "too", "much"]]),
]


def test_core_sent_garbage_at_any_time_drops_it_and_lives(wire: Wire) -> None:
    def strangers() -> None:
        for garbage in GARBAGE:
            wire.sender.send(garbage)

    strangers()
    wire.say(EngineSetup(make_config()))
    while not isinstance(wire.hear_startup(), EngineReady):
        pass
    strangers()
    wire.say(_request("a"))
    strangers()
    assert wire.hear(EngineCoreOutputs).outputs[0].request_id == "a"
    wire.say(Call(7, GetDebugState()))
    assert wire.hear(CallResult).call_id == 7
    wire.say(Shutdown())
    wire.child.stop(PATIENCE)
    assert wire.child.exit_status() == 0


def _ready(wire: Wire, **options: Any) -> None:
    wire.say(EngineSetup(make_config(**options)))
    while not isinstance(wire.hear_startup(), EngineReady):
        pass


def test_request_that_cannot_be_read_is_answered_with_an_error(wire: Wire) -> None:
    _ready(wire)
    wire.sender.send(msgspec.msgpack.encode(["add", "broken", [1], {"temperature": "hot"}]))
    [output] = wire.hear(EngineCoreOutputs).outputs
    assert (output.request_id, output.finish_reason) == ("broken", FinishReason.ERROR)
    assert "could not read" in output.error


def test_shutdown_with_a_drain_time_finishes_what_runs_and_refuses_the_rest(
    wire: Wire, tmp_path: Path
) -> None:
    _ready(wire, step_seconds=0.05, wait_at_token=3, gate=str(tmp_path))
    wire.say(_request("a", max_tokens=20))
    wire.hear(EngineCoreOutputs)
    wire.say(Shutdown(2 * PATIENCE))
    wire.say(_request("late"))
    (tmp_path / "go").touch()
    ends: dict[str, FinishReason] = {}
    while len(ends) < 2:
        for output in wire.hear(EngineCoreOutputs).outputs:
            if output.finish_reason is not None:
                ends[output.request_id] = output.finish_reason
    assert ends == {"a": FinishReason.LENGTH, "late": FinishReason.ABORT}
    wire.child.stop(PATIENCE)
    assert wire.child.exit_status() == 0


def test_shutdown_whose_drain_time_is_over_aborts_what_runs(wire: Wire) -> None:
    _ready(wire, step_seconds=0.05, max_model_len=1000)
    wire.say(_request("a", max_tokens=900))
    wire.hear(EngineCoreOutputs)
    wire.say(Shutdown(0.3))
    while (output := wire.hear(EngineCoreOutputs).outputs[0]).finish_reason is None:
        pass
    assert output.finish_reason is FinishReason.ABORT
    wire.child.stop(PATIENCE)
    assert wire.child.exit_status() == 0


def test_core_that_nobody_reads_does_not_grow_and_still_answers(wire: Wire) -> None:
    _ready(wire)
    for number in range(5000):
        wire.say(Call(number, ResetPrefixCache()))
    wire.say(_request("a"))
    heard = [wire.hear(CallResult).call_id for _ in range(5000)]
    assert heard == list(range(5000))
    assert wire.hear(EngineCoreOutputs).outputs[0].request_id == "a"


def test_core_told_nothing_after_its_hello_leaves_with_the_front() -> None:
    wire = Wire()
    os.kill(wire.child.pid, signal.SIGTERM)
    wire.child.stop(PATIENCE)
    assert wire.child.exit_status() == 128 + signal.SIGTERM
    wire.close()


def test_last_word_of_a_core_is_typed() -> None:
    assert RecordDecoder(CoreOutput, "x").decode(RecordEncoder().encode(EngineDead("why")))
