"""The core's way to the front process: order, what is held, and a front that does not read."""

from __future__ import annotations

import threading
from typing import cast

import msgspec
import pytest

from headrace.core.outbox import HOLD_SECONDS, Outbox
from headrace.ipc.codec import RecordDecoder
from headrace.ipc.sockets import Sender
from headrace.messages.outputs import (
    CallResult,
    CoreOutput,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineDead,
    SchedulerStats,
)


class FakeSender:
    """Takes `room` frames; then refuses, or lets `send` wait until there is room again."""

    def __init__(self, room: int = 1000) -> None:
        self.records: list[CoreOutput | None] = []
        self.linger: float | None = None
        self.fault: Exception | None = None
        self._room = threading.Semaphore(room)
        self._decoder: RecordDecoder[CoreOutput] = RecordDecoder(CoreOutput, "the test")

    def read(self, count: int) -> None:
        for _ in range(count):
            self._room.release()

    def try_send(self, frame: bytes) -> bool:
        if not self._room.acquire(blocking=False):
            return False
        self.records.append(self._decoder.decode(frame))
        return True

    def send(self, frame: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self._room.acquire()
        self.records.append(self._decoder.decode(frame))

    def close(self, *, linger: float = 0.0) -> None:
        self.linger = linger


def _make(sender: FakeSender) -> tuple[Outbox, list[BaseException]]:
    faults: list[BaseException] = []
    return Outbox(cast(Sender, sender), faults.append), faults


def _outputs(time: float, token: int | None = 7) -> EngineCoreOutputs:
    outputs = [] if token is None else [EngineCoreOutput("a", [token])]
    return EngineCoreOutputs(outputs, SchedulerStats(), time, len(outputs))


def test_what_is_held_goes_before_what_is_said_next() -> None:
    sender = FakeSender()
    outbox, _ = _make(sender)
    outbox.put(_outputs(100.0))
    held = [_outputs(100.0 + i / 100, i) for i in range(1, 4)]
    for outputs in held:
        outbox.hold(outputs)
    assert sender.records == [_outputs(100.0)]
    outbox.put(CallResult(1, True))
    assert sender.records == [_outputs(100.0), *held, CallResult(1, True)]


def test_held_outputs_leave_together_once_they_are_late() -> None:
    sender = FakeSender()
    outbox, _ = _make(sender)
    outbox.put(_outputs(100.0))
    numbers = []
    for i in range(1, 13):
        outbox.hold(_outputs(100.0 + i * HOLD_SECONDS * 0.3, i))
        numbers.append(len(sender.records))
    assert numbers == [1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13]
    outbox.hold(_outputs(200.0))  # a step that took long
    assert len(sender.records) == 14


def test_flush_and_close_say_what_was_held() -> None:
    sender = FakeSender()
    outbox, _ = _make(sender)
    outbox.put(_outputs(1.0))
    outbox.hold(_outputs(1.01))
    outbox.flush()
    outbox.flush()
    assert len(sender.records) == 2
    outbox.hold(_outputs(1.02))
    outbox.close()
    assert len(sender.records) == 3
    assert sender.linger is not None
    assert sender.linger > 0


def test_a_front_that_does_not_read_gets_all_in_order_but_signs_of_life() -> None:
    sender = FakeSender(room=2)
    outbox, faults = _make(sender)
    for i in range(10):
        outbox.put(_outputs(float(i), i))
        outbox.put(_outputs(float(i), None))
    outbox.put(EngineDead("the end"))
    assert len(sender.records) == 2
    threading.Timer(0.05, sender.read, [100]).start()
    outbox.close()
    tokens = [o.outputs[0].new_token_ids for o in sender.records if isinstance(o, EngineCoreOutputs)
              and o.outputs]  # fmt: skip
    assert tokens == [[i] for i in range(10)]
    assert sender.records[-1] == EngineDead("the end")
    assert len(sender.records) == 12  # the one sign of life that still fitted
    assert sender.linger is not None
    assert faults == []


def test_after_the_front_has_caught_up_the_caller_sends_again() -> None:
    sender = FakeSender(room=1)
    outbox, _ = _make(sender)
    for i in range(3):
        outbox.put(_outputs(float(i), i))
    sender.read(100)
    while outbox._is_behind:
        pass
    outbox.put(_outputs(9.0, 9))
    assert len(sender.records) == 4
    outbox.close()


def test_a_socket_that_fails_in_the_thread_is_told() -> None:
    sender = FakeSender(room=0)
    sender.fault = OSError("broken")
    outbox, faults = _make(sender)
    outbox.put(_outputs(1.0))
    outbox.put(_outputs(2.0))
    outbox.close()
    assert [str(fault) for fault in faults] == ["broken"]
    assert sender.records == []


def test_what_cannot_be_encoded_raises_here() -> None:
    outbox, _ = _make(FakeSender())
    with pytest.raises(TypeError):
        outbox.put(msgspec.structs.replace(CallResult(1), value=object()))
