"""Requests whose time is over: refused while they wait, ended with what they have later on."""

from __future__ import annotations

import random

import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.deadlines import Deadlines
from headrace.core.request import Request, RequestStatus
from headrace.core.scheduler import Scheduler
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from tests.fakes import RecordingExecutor, make_core_request


class Rig:
    """A scheduler, its executor and a clock that is set by hand."""

    def __init__(self, **config: int) -> None:
        self.time = 0.0
        self.executor = RecordingExecutor(num_blocks=64, block_size=4)
        self.scheduler = Scheduler(
            SchedulerConfig(**config), CacheConfig(block_size=4), 64, 1000, now=lambda: self.time
        )

    def add(self, request_id: str, age: float = 0.0, **params: object) -> None:
        request = make_core_request(request_id, [1, 2, 3], **{"max_tokens": 50, **params})  # type: ignore[arg-type]
        self.scheduler.add_request(request, age)

    def step(self) -> list[EngineCoreOutput]:
        outputs = self.scheduler.roster.expire()
        order = self.scheduler.schedule()
        return outputs + self.scheduler.update(order, self.executor.execute(order))


def test_running_request_ends_with_what_it_has() -> None:
    rig = Rig()
    rig.add("a", deadline_ms=2500.0)
    ends = []
    for rig.time in (0.0, 1.0, 2.0, 3.0):
        [output] = rig.step()
        ends.append((output.finish_reason, len(output.new_token_ids)))
    assert ends == [(None, 1)] * 3 + [(FinishReason.TIMEOUT, 0)]
    assert output.error is None
    assert output.ledger is not None
    assert output.ledger.num_output_tokens == 3
    assert not rig.scheduler.roster.requests
    rig.step()
    assert rig.executor.known_ids == set()
    assert rig.scheduler.kv_cache.pool.num_free_blocks == 64


@pytest.mark.parametrize("limit", ["deadline_ms", "max_queue_ms"])
def test_waiting_request_is_refused(limit: str) -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("first")
    rig.add("late", **{limit: 1500.0})
    rig.step()
    rig.time = 1.0
    assert [o.request_id for o in rig.step()] == ["first"]
    rig.time = 2.0
    refused, other = rig.step()
    assert (refused.request_id, refused.finish_reason) == ("late", FinishReason.TIMEOUT)
    assert refused.error is not None
    assert "2000 ms" in refused.error
    assert other.request_id == "first"


def test_limit_of_the_queue_is_over_once_it_is_started() -> None:
    rig = Rig()
    rig.add("a", max_queue_ms=500.0)
    for rig.time in (0.0, 10.0, 20.0):
        [output] = rig.step()
        assert output.finish_reason is None


def test_preempted_request_was_started_and_keeps_its_tokens() -> None:
    rig = Rig()
    rig.add("a", max_queue_ms=500.0, deadline_ms=5000.0)
    rig.step()
    rig.scheduler.roster.preempt_all()
    rig.scheduler.roster.gate.shut()
    rig.time = 1.0
    assert rig.scheduler.roster.expire() == []
    rig.time = 6.0
    [output] = rig.scheduler.roster.expire()
    assert (output.finish_reason, output.error) == (FinishReason.TIMEOUT, None)


def test_time_runs_from_the_arrival() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", age=2.0, deadline_ms=2500.0)
    rig.time = 0.4
    assert rig.scheduler.roster.expire() == []
    rig.time = 0.6
    assert len(rig.scheduler.roster.expire()) == 1


def test_time_that_is_over_is_work_even_when_nothing_runs() -> None:
    rig = Rig()
    rig.add("a", deadline_ms=1000.0)
    rig.scheduler.roster.gate.shut()
    assert not rig.scheduler.roster.has_work()
    rig.time = 1.0
    assert rig.scheduler.roster.has_work()
    assert len(rig.scheduler.roster.expire()) == 1
    assert not rig.scheduler.roster.has_work()


def test_entries_stay_within_a_few_times_of_what_lives() -> None:
    rng = random.Random(3)
    deadlines, live = Deadlines(), []
    for number in range(5000):
        params = {"deadline_ms": 1e6 + rng.random(), "max_queue_ms": 1e6}
        source = make_core_request(str(number), [1], **params)
        request = Request(source, max_model_len=10, seed=0, order=(0, 0.0, number), queued_at=0.0,
                          chain=None)  # fmt: skip
        deadlines.add(request)
        live.append(request)
        if len(live) > 20:
            gone = live.pop(rng.randrange(len(live)))
            gone.status = RequestStatus.FINISHED
            deadlines.forget(gone)
        assert len(deadlines) <= 4 * 21 + 20
    for gone in live:
        gone.status = RequestStatus.FINISHED
        deadlines.forget(gone)
    assert len(deadlines) == 0


def test_requests_without_limits_leave_no_entry() -> None:
    rig = Rig()
    rig.add("a")
    assert len(rig.scheduler.roster.deadlines) == 0
    rig.step()
    rig.scheduler.roster.abort(["a"])
    assert len(rig.scheduler.roster.deadlines) == 0
