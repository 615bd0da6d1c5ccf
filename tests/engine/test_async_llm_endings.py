"""The asynchronous engine when requests are let go of, and when its core or one of them fails."""

import asyncio
import os
import random
import signal

import pytest

from headrace.config.engine import FrontConfig
from headrace.engine import async_llm
from headrace.engine.async_llm import AsyncLLM
from headrace.errors import (
    EngineDeadError,
    EngineGenerateError,
)
from headrace.messages.outputs import SchedulerStats
from headrace.metrics.stats import IterationStats
from headrace.sampling_params import RequestOutputKind
from tests.engine.async_rig import (
    MakeEngine,
    assert_nothing_stays,
    begin,
    collect,
    core_pid,
    make_params,
    text_of,
)
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS
from tests.waiting import PATIENCE, until

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


# Letting go


async def test_generator_left_early_aborts_in_both_processes(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    stream = engine.generate("a", make_params(max_tokens=ENDLESS_TOKENS, n=2), "a")
    async for _ in stream:
        break
    await stream.aclose()
    assert engine.num_unfinished_requests == 0
    await assert_nothing_stays(engine)


async def test_abort_by_id_ends_the_stream_with_abort(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    other = asyncio.create_task(collect(engine, "a", "other", output_kind=DELTA))
    streams = [
        asyncio.create_task(
            collect(engine, "a", "mine", max_tokens=ENDLESS_TOKENS, output_kind=kind)
        )
        for kind in RequestOutputKind
    ]
    await until(lambda: len(engine._front.output_processor.ids_of(["mine"])) == len(streams))
    await engine.abort("mine")
    for outputs in await asyncio.gather(*streams):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
    assert text_of(await other) == "bcdefghijk"
    await engine.abort(["mine", "never"])
    await assert_nothing_stays(engine)


async def test_tasks_cancelled_at_random_points_leave_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(
        step_seconds=0.001, max_model_len=4000, num_blocks=4000, front=FrontConfig()
    )
    rng = random.Random(7)

    async def one(number: int) -> None:
        prompt = "a" * rng.choice([1, 20, 3000])  # the long ones are tokenised in a thread
        params = make_params(n=rng.choice([1, 1, 3]), max_tokens=rng.choice([1, 5, 100]))
        if rng.random() < 0.5:
            async for _ in engine.generate(prompt, params, str(number)):
                pass
        else:
            stream = await engine.add_request(str(number), prompt, params)
            try:
                async for _ in stream:
                    pass
            finally:
                await stream.aclose()

    async def cut_off(number: int) -> None:
        task = asyncio.create_task(one(number))
        for _ in range(rng.choice([0, 0, 1, 2, 3, 5])):
            await asyncio.sleep(0)
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01, 0.05]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for start in range(0, 500, 20):
        await asyncio.gather(*(cut_off(number) for number in range(start, start + 20)))
    assert engine.num_unfinished_requests == 0
    await assert_nothing_stays(engine)
    assert text_of(await collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_cancelled_request_is_counted_as_aborted(make_engine: MakeEngine) -> None:
    class Keeper:
        reasons: list[str] = []  # noqa: RUF012
        num_logs = 0

        def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
            self.reasons += [one.finish_reason for one in iteration.finished]

        def log(self) -> None:
            self.num_logs += 1

    keeper = Keeper()
    engine = make_engine(**ENDLESS, stat_loggers=[keeper], front=FrontConfig(stats_interval=0.0))
    stream = await engine.add_request("a", "a", make_params(max_tokens=ENDLESS_TOKENS))
    await anext(stream)
    await stream.aclose()
    await collect(engine, "a")
    # A sign of life brings what is left.
    await until(lambda: len(keeper.reasons) == 2 and not engine.scheduler_stats.num_running)
    assert sorted(keeper.reasons) == ["abort", "length"]
    assert keeper.num_logs > 0


# Failure


async def test_core_killed_with_streams_open_ends_all_of_them(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    kinds = [list(RequestOutputKind)[i % 3] for i in range(7)]
    streams = [
        asyncio.create_task(
            collect(engine, "a", str(i), max_tokens=ENDLESS_TOKENS, output_kind=kind)
        )
        for i, kind in enumerate(kinds)
    ]
    await until(lambda: engine.num_unfinished_requests == len(streams))
    streams.append(await begin(engine, "a", "last", max_tokens=ENDLESS_TOKENS))
    os.kill(core_pid(engine), signal.SIGKILL)
    ends = asyncio.gather(*streams, return_exceptions=True)
    results = await asyncio.wait_for(ends, PATIENCE)
    assert [type(one) for one in results] == [EngineDeadError] * 8
    assert engine.errored
    assert not engine.is_running
    assert isinstance(engine.dead_error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        await engine.add_request("x", "a", make_params())
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await engine.reset_prefix_cache()
    await engine.abort("0")
    assert engine.num_unfinished_requests == 0


async def test_core_killed_while_idle_is_noticed_without_a_request(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    await engine.check_health()
    os.kill(core_pid(engine), signal.SIGKILL)
    await until(lambda: engine.errored)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await engine.check_health()


async def test_request_that_fails_raises_for_its_reader_only(make_engine: MakeEngine) -> None:
    engine = make_engine(fail_at_token=ord("m"))
    good = asyncio.create_task(collect(engine, "p", output_kind=DELTA))
    seen: list[str] = []

    async def read() -> None:
        async for output in engine.generate("j", make_params(output_kind=DELTA), "bad"):
            seen.append(output.outputs[0].text)  # noqa: PERF401 (what came before the error)

    with pytest.raises(EngineGenerateError, match=f"no request gets {ord('m')}"):
        await read()
    assert "".join(seen) == "kl"
    assert text_of(await good) == "qrstuvwxyz"
    await engine.check_health()
    await assert_nothing_stays(engine)


async def assert_unhealthy_after(engine: AsyncLLM, seconds: float) -> None:
    """The check fails once the core has been silent for longer than this, and not before."""
    while True:
        before = engine._client.silence()
        try:
            await engine.check_health()
        except EngineDeadError as error:
            assert "no sign of life" in str(error)  # noqa: PT017 (how long it took is judged too)
            break
        assert before <= seconds
        await asyncio.sleep(0.05)
    assert engine._client.silence() > seconds


async def test_frozen_core_is_not_healthy_until_it_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    await engine.check_health()
    monkeypatch.setattr(async_llm, "IDLE_SILENCE_SECONDS", 2.5)
    os.kill(core_pid(engine), signal.SIGSTOP)
    await assert_unhealthy_after(engine, 2.5)
    assert not engine.errored
    os.kill(core_pid(engine), signal.SIGCONT)
    await until(lambda: engine._client.silence() < 2.0)
    await engine.check_health()
    assert text_of(await collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_core_stuck_in_a_step_is_not_healthy_after_the_limit(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(hang_at_token=ord("b"), front=FrontConfig(heartbeat_timeout=1.5))
    await engine.check_health()
    stream = await engine.add_request("a", "a", make_params())
    await assert_unhealthy_after(engine, 1.5)
    engine.shutdown(0.1)
    with pytest.raises(EngineDeadError, match="shut down"):
        await anext(stream)


async def test_task_that_processes_outputs_failing_is_an_error_for_all(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(**ENDLESS)
    stream = await engine.add_request("a", "a", make_params(max_tokens=ENDLESS_TOKENS))
    await anext(stream)

    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(engine._front.stats, "record", fail)

    async def read() -> None:
        async for _ in stream:
            pass

    with pytest.raises(EngineDeadError, match="a fault of ours"):
        await asyncio.wait_for(read(), PATIENCE)
    assert engine.errored
    with pytest.raises(EngineDeadError):
        await engine.add_request("b", "a", make_params())
