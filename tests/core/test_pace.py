"""The pace of steps: a line found in their times, and what it allows."""

from __future__ import annotations

import random

import msgspec
import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.engine_core import EngineCore
from headrace.core.fair_queue import RECENT_ANSWERS
from headrace.core.pace import FIRST_GUESS, MAX_FIXED_TOKENS, MAX_STRETCH, StepPace
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from tests.core.test_engine_core import CONFIG
from tests.fakes import RecordingExecutor, make_core_request


@pytest.mark.parametrize(("fixed", "per_token"), [(0.005, 0.001), (0.02, 0.0001), (0.0, 0.002)])
def test_the_line_is_found_in_noisy_steps(fixed: float, per_token: float) -> None:
    rng = random.Random(7)
    pace = StepPace()
    for _ in range(300):
        num_tokens = rng.choice([1, 2, 30, 31, 60, 90])
        pace.note(num_tokens, (fixed + per_token * num_tokens) * rng.uniform(0.98, 1.02), 1)
    assert pace.fixed_tokens == pytest.approx(fixed / per_token, rel=0.2, abs=2.0)


def test_a_step_with_prefills_takes_at_most_so_many_times_one_without() -> None:
    fixed, per_token = 0.006, 0.0015
    pace = StepPace()
    for num_tokens in [1, 1, 1, 512, 1, 1, 64, 32] * 3:
        pace.note(num_tokens, fixed + per_token * num_tokens, 1)
    for num_decodes in (1, 8, 32, 200):
        alone = fixed + per_token * num_decodes
        together = alone + per_token * pace.prefill_tokens(num_decodes, 0)
        assert 1.5 < together / alone <= MAX_STRETCH + 1e-9


def test_the_first_of_a_crowd_is_measured_by_what_the_crowd_was() -> None:
    fixed, per_token = 0.006, 0.0015
    pace = StepPace()
    for num_tokens in [1, 1, 1, 512, 1, 1, 64, 40] * 3:
        pace.note(num_tokens, fixed + per_token * num_tokens, min(num_tokens, 40))

    def stretch(num_decodes: int, num_present: int) -> float:
        num_tokens = num_decodes + pace.prefill_tokens(num_decodes, num_present)
        return (fixed + per_token * num_tokens) / (fixed + per_token * 40)

    for num_decodes in (1, 20, 40):
        assert stretch(num_decodes, 10_000) == pytest.approx(MAX_STRETCH, rel=0.02)
    assert stretch(1, 2) < 0.5
    for _ in range(5000):
        pace.note(1, fixed + per_token, 1)
    assert stretch(1, 10_000) < 0.5  # forgotten


def test_equal_steps_and_odd_ones_teach_nothing() -> None:
    pace = StepPace()
    for _ in range(50):
        pace.note(8, 0.01, 8)
    assert pace.fixed_tokens == FIRST_GUESS
    for num_tokens in (1, 64, 1, 64):
        pace.note(num_tokens, 1.0 / num_tokens, 1)  # more tokens, less time
    assert pace.fixed_tokens == FIRST_GUESS


def test_what_is_allowed_has_bounds() -> None:
    pace = StepPace()
    for num_tokens in (1, 100) * 20:
        pace.note(num_tokens, 1.0 + 1e-9 * num_tokens, 1)
    assert pace.fixed_tokens == MAX_FIXED_TOKENS
    pace = StepPace()
    for num_tokens in (1, 100) * 20:
        pace.note(num_tokens, 1e-6 * num_tokens**2, 1)
    assert pace.fixed_tokens == 0.0
    assert pace.prefill_tokens(0, 0) == 1


class SlowExecutor(RecordingExecutor):
    """Takes a time that is a line over the step's tokens, on a clock of its own."""

    def __init__(self, num_blocks: int = 500) -> None:
        super().__init__(max_model_len=2000, num_blocks=num_blocks, block_size=16)
        self.time = 0.0
        self.durations: list[float] = []

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        seconds = 0.006 + 0.0015 * order.total_num_scheduled_tokens
        self.time += seconds
        self.durations.append(seconds)
        return super().execute(order)


def _make_core(executor: SlowExecutor, max_num_seqs: int) -> EngineCore:
    config = msgspec.structs.replace(
        CONFIG,
        model=msgspec.structs.replace(CONFIG.model, max_model_len=2000),
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=1024),
    )
    return EngineCore(config, executor, now=lambda: executor.time)


@pytest.mark.parametrize("is_watched", [True, False])
def test_newcomers_stretch_the_steps_of_streams_only_so_far(is_watched: bool) -> None:
    executor = SlowExecutor()
    core = _make_core(executor, 8)
    core.add_request(make_core_request("a", [1] * 600, max_tokens=900, is_watched=is_watched))
    for _ in range(50):
        core.step()
    usual = executor.durations[-1]
    executor.durations.clear()
    core.add_request(make_core_request("b", [2] * 1000, max_tokens=2))
    has_answered = False
    while not has_answered:
        has_answered = any(output.request_id == "b" for output in core.step().outputs)
    if is_watched:
        assert max(executor.durations) < 3 * usual
        # All the newcomer's tokens, at 1 / (1 - 1 / MAX_STRETCH) of the time they need alone.
        assert sum(executor.durations) < 1.05 * 1000 * 0.0015 * MAX_STRETCH / (MAX_STRETCH - 1)
    else:
        assert len(executor.durations) == 1


@pytest.mark.parametrize("num_before", [0, 1, 20])
def test_the_first_crowd_is_measured_by_all_of_it(num_before: int) -> None:
    """Though none ran side by side before, and whatever was asked alone."""
    executor = SlowExecutor(2000)
    core = _make_core(executor, 64)
    for number in range(num_before):
        core.add_request(make_core_request(f"a{number}", [1] * 150, max_tokens=100))
        while core.has_work():
            core.step()
    executor.durations.clear()
    num_requests, length = 32, 150
    for number in range(num_requests):
        prompt = [2 + number] * length
        core.add_request(make_core_request(f"b{number}", prompt, max_tokens=128))
    have_begun: set[str] = set()
    while len(have_begun) < num_requests:
        have_begun.update(output.request_id for output in core.step().outputs)
    usual = 0.006 + 0.0015 * num_requests
    assert max(executor.durations[1:]) <= 3 * usual
    # As much prefill beside each token as is allowed beside all 32, after the first, free step.
    share = (MAX_STRETCH - 1) * (FIRST_GUESS + num_requests)
    assert len(executor.durations) < 1.2 * num_requests * length / share


@pytest.mark.parametrize(
    ("num_blocks", "max_tokens", "answer", "num_credulous"),
    [
        (150, 50, 50, 0),
        (500, 2, 2, 0),
        (9000, 2, 2, 0),
        (500, 500, 2, 0),
        # There would be room, so what requests say of their length is believed until more is known.
        (9000, 500, 2, RECENT_ANSWERS),
    ],
)
def test_a_crowd_that_cannot_run_side_by_side_does_not_stretch_the_steps_of_streams(
    num_blocks: int, max_tokens: int, answer: int, num_credulous: int
) -> None:
    """For want of blocks, or since answers end as fast as prompts are done."""
    executor = SlowExecutor(num_blocks)
    executor.script = {f"b{number}": [3] * (answer - 1) + [0] for number in range(100)}
    core = _make_core(executor, 256)
    core.add_request(make_core_request("a", [1] * 100, max_tokens=1900, is_watched=True))
    for _ in range(50):
        core.step()
    for number in range(100):
        prompt = [2 + number] * 400
        core.add_request(
            make_core_request(f"b{number}", prompt, max_tokens=max_tokens, eos_token_id=0)
        )
    most = num_ended = 0
    for _ in range(600):
        if num_ended <= num_credulous:
            executor.durations.clear()
        outputs = core.step().outputs
        num_ended += sum(output.finish_reason is not None for output in outputs)
        most = max(most, len(core.scheduler.roster.running))
    assert num_ended > num_credulous + 2
    assert most < 20
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * most)
