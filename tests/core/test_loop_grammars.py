"""Requests of the engine loop whose grammars take time to compile: held beside it, and let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import msgspec
import pytest

from headrace.core.engine_core import EngineCore
from headrace.core.loop import CoreLoop
from headrace.errors import ValidationError
from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.ipc.sockets import Receiver, Sender, SocketClosedError
from headrace.messages.outputs import CallResult, CoreOutput, EngineCoreOutput, FinishReason
from headrace.messages.requests import AbortRequests, Call, Pause, Resume, Shutdown
from tests.core.test_engine_core import CONFIG
from tests.fakes import RecordingExecutor, make_core_request
from tests.waiting import PATIENCE


class SlowCompiler(RecordingExecutor):
    """Compiles when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_compile = threading.Event()
        self.compiled: list[str] = []

    def prepare_grammar(self, grammar: str) -> None:
        assert self.may_compile.wait(PATIENCE)
        self.compiled.append(grammar)
        if grammar == "panic":
            raise GeneratorExit("a fault of the library, which is no Exception")
        if grammar == "bad":
            raise ValidationError("no grammar at all")


class Front:
    """The other side of a loop that runs in a thread."""

    def __init__(self) -> None:
        self.executor = SlowCompiler()
        self._to_core: SimpleQueue[bytes | None] = SimpleQueue()
        self._from_core: SimpleQueue[CoreOutput | None] = SimpleQueue()
        self._encoder = RecordEncoder()
        self._decoder: RecordDecoder[CoreOutput] = RecordDecoder(CoreOutput, "the test")
        core = EngineCore(CONFIG, self.executor)  # type: ignore[arg-type]
        self._loop = CoreLoop(core, cast(Receiver, self), cast(Sender, self))
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self._thread.start()

    # What the loop calls

    def receive(self) -> bytes:
        frame = self._to_core.get()
        if frame is None:
            raise SocketClosedError
        return frame

    def try_send(self, frame: bytes) -> bool:
        self._from_core.put(self._decoder.decode(frame))
        return True

    def close(self, *, linger: float = 0.0) -> None:
        pass

    # What the test calls

    def say(self, record: Any) -> None:
        self._to_core.put(self._encoder.encode(record))

    def ask(self, request_id: str, *, grammar: str | None = None, **fields: Any) -> None:
        request = make_core_request(request_id, [1, 2, 3], **fields)
        self.say(msgspec.structs.replace(request, grammar=grammar))

    def hear_ends(self, count: int) -> dict[str, EngineCoreOutput]:
        """Wait until so many requests have ended; their last outputs."""
        ends: dict[str, EngineCoreOutput] = {}
        while len(ends) < count:
            record = self._from_core.get(timeout=PATIENCE)
            for output in getattr(record, "outputs", ()):
                if output.finish_reason is not None:
                    ends[output.request_id] = output
        return ends

    def hear_result(self) -> Any:
        while not isinstance(record := self._from_core.get(timeout=PATIENCE), CallResult):
            pass
        return record.value

    def end(self, drain: float = 0.0) -> None:
        self.say(Shutdown(drain))
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._to_core.put(None)


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.executor.may_compile.set()
    made.end()


def reasons(ends: dict[str, EngineCoreOutput]) -> dict[str, FinishReason | None]:
    return {request_id: output.finish_reason for request_id, output in ends.items()}


def test_others_go_on_while_a_grammar_is_compiled(front: Front) -> None:
    front.ask("held", grammar="slow")
    front.ask("bad", grammar="bad")
    front.ask("free")
    assert reasons(front.hear_ends(1)) == {"free": FinishReason.LENGTH}
    assert front.executor.compiled == []
    front.executor.may_compile.set()
    ends = front.hear_ends(2)
    assert reasons(ends) == {"held": FinishReason.LENGTH, "bad": FinishReason.ERROR}
    assert ends["bad"].error == "structured_outputs: no grammar at all"
    assert ends["bad"].error_param == "structured_outputs"


def test_request_whose_compilation_breaks_down_ends_and_others_go_on(front: Front) -> None:
    front.executor.may_compile.set()
    front.ask("broken", grammar="panic")
    front.ask("held", grammar="good")
    ends = front.hear_ends(2)
    assert reasons(ends) == {"held": FinishReason.LENGTH, "broken": FinishReason.ERROR}
    assert ends["broken"].error_param is None


def test_seeds_are_drawn_in_the_order_of_arrival(front: Front) -> None:
    front.ask("held", grammar="slow")
    front.ask("free")
    front.hear_ends(1)
    front.executor.may_compile.set()
    front.hear_ends(1)
    seeds = {new.request_id: new.seed for o in front.executor.orders for new in o.new_requests}
    other = Front()
    for name in ("held", "free"):
        other.ask(name)
    other.hear_ends(2)
    other.end()
    assert seeds == {
        new.request_id: new.seed for o in other.executor.orders for new in o.new_requests
    }


def test_abort_of_a_held_request_ends_it_and_nothing_runs_later(front: Front) -> None:
    front.ask("gone", grammar="slow")
    front.say(AbortRequests(["gone", "unknown"]))
    assert reasons(front.hear_ends(1)) == {"gone": FinishReason.ABORT}
    front.executor.may_compile.set()
    front.ask("next", grammar="other")
    assert reasons(front.hear_ends(1)) == {"next": FinishReason.LENGTH}
    assert [new.request_id for o in front.executor.orders for new in o.new_requests] == ["next"]


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_pause_treats_held_requests_as_the_others(front: Front, mode: Any) -> None:
    front.ask("held", grammar="slow")
    front.say(Call(1, Pause(mode)))
    if mode == "abort":
        assert reasons(front.hear_ends(1)) == {"held": FinishReason.ABORT}
    assert front.hear_result() is True
    front.executor.may_compile.set()
    front.say(Call(2, Resume()))
    front.ask("after", grammar="other")
    ends = front.hear_ends(1 if mode == "abort" else 2)
    assert set(ends) == ({"after"} if mode == "abort" else {"held", "after"})


def test_id_that_is_held_is_in_use(front: Front) -> None:
    front.ask("a", grammar="slow")
    front.ask("a", grammar="slow")
    [end] = front.hear_ends(1).values()
    assert (end.finish_reason, end.error) == (FinishReason.ERROR, "request id 'a' is in use")
    front.executor.may_compile.set()
    assert reasons(front.hear_ends(1)) == {"a": FinishReason.LENGTH}


def test_end_waits_for_held_requests_as_long_as_it_may() -> None:
    patient = Front()
    patient.ask("held", grammar="slow")
    patient.say(Shutdown(PATIENCE))
    patient.ask("late", grammar="slow")
    assert reasons(patient.hear_ends(1)) == {"late": FinishReason.ABORT}
    patient.executor.may_compile.set()
    assert reasons(patient.hear_ends(1)) == {"held": FinishReason.LENGTH}
    patient.join()
    hasty = Front()
    hasty.ask("held", grammar="slow")
    hasty.say(Shutdown(0.0))
    assert reasons(hasty.hear_ends(1)) == {"held": FinishReason.ABORT}
    hasty.executor.may_compile.set()
    hasty.join()
