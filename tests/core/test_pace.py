"""The pace of steps: a line found in their times, and what it allows."""

from __future__ import annotations

import random

import msgspec
import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.engine_core import EngineCore
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
        together = alone + per_token * pace.prefill_tokens(num_decodes, 0, 0)
        assert 1.5 < together / alone <= MAX_STRETCH + 1e-9


def test_the_first_of_a_crowd_is_measured_by_what_the_crowd_was() -> None:
    fixed, per_token = 0.006, 0.0015
    pace = StepPace()
    for num_tokens in [1, 1, 1, 512, 1, 1, 64, 40] * 3:
        pace.note(num_tokens, fixed + per_token * num_tokens, min(num_tokens, 40))

    def stretch(num_decodes: int, num_present: int) -> float:
        num_tokens = num_decodes + pace.prefill_tokens(num_decodes, num_present, 0)
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
    assert pace.prefill_tokens(0, 0, 0) == 1


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


@pytest.mark.parametrize(
    ("num_before", "eos_token_id"), [(0, None), (1, None), (20, None), (20, 0)]
)
def test_a_crowd_is_measured_by_all_of_it_at_once(
    num_before: int, eos_token_id: int | None
) -> None:
    """Though none ran side by side before; those whose end is open are known by their like."""
    executor = SlowExecutor(2000)
    num_requests, length = 32, 150
    executor.script = {f"{name}{n}": [3] * 128 for name in "ab" for n in range(num_requests)}
    core = _make_core(executor, 64)
    for number in range(num_before):
        core.add_request(
            make_core_request(f"a{number}", [1] * length, max_tokens=128, eos_token_id=eos_token_id)
        )
        while core.has_work():
            core.step()
    executor.durations.clear()
    for number in range(num_requests):
        prompt = [2 + number] * length
        core.add_request(
            make_core_request(f"b{number}", prompt, max_tokens=128, eos_token_id=eos_token_id)
        )
    have_begun: set[str] = set()
    while len(have_begun) < num_requests:
        have_begun.update(output.request_id for output in core.step().outputs)
    usual = 0.006 + 0.0015 * num_requests
    assert max(executor.durations[1:]) <= 3 * usual
    # As much prefill beside each token as is allowed beside all 32, after the first, free step.
    share = (MAX_STRETCH - 1) * (FIRST_GUESS + num_requests)
    assert len(executor.durations) < 1.2 * num_requests * length / share


@pytest.mark.parametrize(
    ("num_blocks", "max_tokens", "answer"),
    [(150, 50, 50), (500, 2, 2), (9000, 2, 2), (500, 500, 2), (9000, 500, 2)],
)
def test_a_crowd_that_cannot_run_side_by_side_does_not_stretch_the_steps_of_streams(
    num_blocks: int, max_tokens: int, answer: int
) -> None:
    """For want of blocks, or since answers end as fast as prompts are done, as they say or not."""
    executor = SlowExecutor(num_blocks)
    executor.script = {f"b{number}": [3] * (answer - 1) + [0] for number in range(100)}
    core = _make_core(executor, 256)
    _stream_beside(core, executor)
    for number in range(100):
        prompt = [2 + number] * 400
        core.add_request(
            make_core_request(f"b{number}", prompt, max_tokens=max_tokens, eos_token_id=0)
        )
    most = num_ended = 0
    for _ in range(600):
        outputs = core.step().outputs
        num_ended += sum(output.finish_reason is not None for output in outputs)
        most = max(most, len(core.scheduler.roster.running))
    assert num_ended
    assert most < 20
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * most)


def _stream_beside(core: EngineCore, executor: SlowExecutor) -> None:
    """A stream that has its tokens alone, and steps without prefill, to learn from."""
    core.add_request(make_core_request("a", [1] * 20, max_tokens=1900))
    for _ in range(50):
        core.step()
    executor.durations.clear()


def test_requests_that_tell_no_length_are_not_taken_for_the_longest() -> None:
    """They say nothing of their answers, so their crowd is not known to run side by side."""
    executor = SlowExecutor(9000)
    executor.script = {f"b{number}": [3, 0] for number in range(15)}
    core = _make_core(executor, 64)
    _stream_beside(core, executor)
    for number in range(15):
        request = make_core_request(f"b{number}", [2 + number] * 700, eos_token_id=0)
        request.sampling_params.max_tokens = None
        core.add_request(request)
    num_ended = most = 0
    while num_ended < 15:
        num_ended += sum(output.finish_reason is not None for output in core.step().outputs)
        most = max(most, len(core.scheduler.roster.running))
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * most)


def test_those_that_wait_behind_long_prompts_do_not_run_side_by_side_yet() -> None:
    executor = SlowExecutor(9000)
    core = _make_core(executor, 128)
    _stream_beside(core, executor)
    for number in range(5):
        core.add_request(make_core_request(f"b{number}", [2 + number] * 1900, max_tokens=50))
    for number in range(100):
        core.add_request(make_core_request(f"c{number}", [9] * 20, max_tokens=500))
    most = 0
    for _ in range(20):  # nobody but the stream and the first of the long ones
        core.step()
        most = max(most, len(core.scheduler.roster.running))
    assert most < 5
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * most)


def test_last_tokens_of_cached_prompts_are_no_crowd() -> None:
    """Each got its one token in the same step, and none of them a second one."""
    executor = SlowExecutor(9000)
    core = _make_core(executor, 256)
    core.add_request(make_core_request("w", [9] * 321, max_tokens=1))
    core.step()
    _stream_beside(core, executor)
    for number in range(100):
        core.add_request(make_core_request(f"c{number}", [9] * 321, max_tokens=1))
    for _ in range(20):
        core.step()
    executor.durations.clear()
    for number in range(100):
        core.add_request(make_core_request(f"d{number}", [10 + number] * 400, max_tokens=2))
    for _ in range(100):
        core.step()
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * 3)


def test_tokens_nobody_watches_count_in_a_step_beside_watched_ones() -> None:
    executor = SlowExecutor(9000)
    core = _make_core(executor, 256)
    core.add_request(make_core_request("a", [1] * 20, max_tokens=1900))
    for number in range(99):
        prompt = [2 + number] * 20
        request = make_core_request(f"b{number}", prompt, max_tokens=1900, is_watched=False)
        core.add_request(request)
    for _ in range(60):
        core.step()
    usual = executor.durations[-1]
    core.add_request(make_core_request("c", [500] * 1500, max_tokens=2))
    executor.durations.clear()
    for _ in range(5):
        core.step()
    assert max(executor.durations) <= 3 * usual


def test_an_answer_that_is_computed_again_is_held_like_a_prompt() -> None:
    executor = SlowExecutor(200)
    core = _make_core(executor, 8)
    for number, (max_tokens, is_watched) in enumerate(((1500, True), (1090, False), (1500, True))):
        prompt = [1 + number] * 16
        core.add_request(
            make_core_request(f"{number}", prompt, max_tokens=max_tokens, is_watched=is_watched)
        )
    core.step()
    executor.durations.clear()
    while not core.scheduler.roster.num_preemptions or len(core.scheduler.roster.waiting):
        core.step()
    for _ in range(20):  # the last one is back
        core.step()
    assert core.scheduler.roster.num_preemptions == 1
    assert max(executor.durations) <= 3 * (0.006 + 0.0015 * 3)
