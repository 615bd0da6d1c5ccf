"""The asynchronous engine, with a real core process around a fake executor."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import uvloop

from headrace.config.engine import FrontConfig
from headrace.engine import async_llm
from headrace.engine.async_llm import AsyncLLM
from headrace.errors import (
    AdmissionError,
    EngineDeadError,
    EngineGenerateError,
    ModelError,
    UnsupportedError,
    ValidationError,
)
from headrace.messages.outputs import SchedulerStats
from headrace.metrics.stats import IterationStats
from headrace.outputs import RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.fakes import FACTORY, make_config

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
MakeEngine = Callable[..., AsyncLLM]


@pytest.fixture
def make_engine(tokenizer_folder: str) -> Iterator[MakeEngine]:
    """Makes engines that are shut down at the end."""
    made: list[AsyncLLM] = []

    def make(*, front: FrontConfig | None = None, **options: Any) -> AsyncLLM:
        start = {
            name: options.pop(name)
            for name in ("stat_loggers", "start_engine_loop", "on_stage")
            if name in options
        }
        config = make_config(tokenizer=tokenizer_folder, front=front, **options)
        engine = AsyncLLM(config, executor_factory=FACTORY, **start)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.shutdown()


def _params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, "temperature": 0.0, **options})


async def _collect(
    engine: AsyncLLM, prompt: Any, request_id: str = "a", **options: Any
) -> list[RequestOutput]:
    params = _params(**options)
    return [output async for output in engine.generate(prompt, params, request_id)]


def _core_pid(engine: AsyncLLM) -> int:
    pid: int = engine._client._connection.handle.child.pid  # type: ignore[attr-defined]
    return pid


def _text(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


async def _assert_nothing_stays(engine: AsyncLLM) -> None:
    """All maps of both processes become empty."""
    deadline = time.monotonic() + 10.0
    while True:
        state = await engine.debug_state()
        left = {name: size for name, size in state.items() if size and "cached" not in name}
        if not left:
            return
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)


# Answers


@pytest.mark.parametrize("kind", RequestOutputKind)
async def test_generate_text_in_each_kind_gives_the_same_answer(
    make_engine: MakeEngine, kind: RequestOutputKind
) -> None:
    engine = make_engine()
    outputs = await _collect(engine, "xa", output_kind=kind)
    text = _text(outputs) if kind is DELTA else outputs[-1].outputs[0].text
    assert text == "bcdefghijk"
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert all(not output.finished for output in outputs[:-1])
    assert {output.request_id for output in outputs} == {"a"}
    assert outputs[0].prompt == "xa"
    assert len(outputs) == 1 or kind is not FINAL_ONLY
    await _assert_nothing_stays(engine)


async def test_generate_with_a_stop_string_ends_there_in_both_processes(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    outputs = await _collect(engine, "a", output_kind=DELTA, stop=["fgh"], max_tokens=100)
    assert _text(outputs) == "bcde"
    assert outputs[-1].outputs[0].stop_reason == "fgh"
    await _assert_nothing_stays(engine)


async def test_generate_with_a_stop_token_names_it(make_engine: MakeEngine) -> None:
    [output] = await _collect(
        make_engine(), "a", output_kind=FINAL_ONLY, stop_token_ids=[ord("e")], max_tokens=100
    )
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("bcd", "stop", ord("e"))


@pytest.mark.parametrize("kind", RequestOutputKind)
async def test_generate_n_answers_come_as_one_stream(
    make_engine: MakeEngine, kind: RequestOutputKind
) -> None:
    engine = make_engine()
    texts = {0: "", 1: "", 2: ""}
    outputs = await _collect(engine, "a", n=3, output_kind=kind, seed=5, temperature=1.0)
    for output in outputs:
        for answer in output.outputs:
            texts[answer.index] = texts[answer.index] * (kind is DELTA) + answer.text
    assert texts == dict.fromkeys(range(3), "bcdefghijk")
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].finished
    if kind is FINAL_ONLY:
        assert [answer.index for answer in outputs[0].outputs] == [0, 1, 2]
    await _assert_nothing_stays(engine)


async def test_many_requests_with_one_id_each_get_their_own_text(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    prompts = [chr(ord("a") + i) for i in range(10)]
    found = await asyncio.gather(
        *(_collect(engine, prompt, "same", output_kind=DELTA, max_tokens=5) for prompt in prompts)
    )
    for prompt, outputs in zip(prompts, found, strict=True):
        assert _text(outputs) == "".join(chr(ord(prompt) + 1 + i) for i in range(5))


async def test_step_larger_than_a_slice_lets_other_tasks_run_in_between(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(front=FrontConfig(output_chunk_size=4))
    found = await asyncio.gather(
        *(_collect(engine, "a", str(i), output_kind=DELTA) for i in range(30))
    )
    assert {_text(outputs) for outputs in found} == {"bcdefghijk"}


async def test_slow_reader_gets_all_of_it_merged(make_engine: MakeEngine) -> None:
    engine = make_engine()
    stream = await engine.add_request("a", "a", _params(output_kind=DELTA))
    await _assert_nothing_stays(engine)
    outputs = [output async for output in stream]
    assert len(outputs) == 1
    assert _text(outputs) == "bcdefghijk"
    assert outputs[0].finished


# Refusals


@pytest.mark.parametrize(
    ("prompt", "options"),
    [("", {}), ([], {}), ([-1], {}), ([10**6], {}), ("a" * 500, {}), ("a" * 10**6, {}),
     ("a", {"logprobs": 50}), ("a", {"logit_bias": {10**6: 1.0}})],
)  # fmt: skip
async def test_add_request_with_a_bad_value_is_refused_and_leaves_nothing(
    make_engine: MakeEngine, prompt: Any, options: dict[str, Any]
) -> None:
    engine = make_engine()
    with pytest.raises(ValidationError):
        await engine.add_request("a", prompt, _params(**options))
    assert engine.num_unfinished_requests == 0
    assert _text(await _collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_long_text_is_tokenised_beside_the_event_loop(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_model_len=10_000, num_blocks=1000)
    threads: list[int] = []
    render = engine.renderer.render_prompt

    def watch(prompt: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return render(prompt, **options)

    monkeypatch.setattr(engine.renderer, "render_prompt", watch)
    await _collect(engine, "a")
    await _collect(engine, {"prompt": "a" * 5000})
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


async def test_admission_counts_every_answer_and_recovers(make_engine: MakeEngine) -> None:
    front = FrontConfig(max_num_queued_reqs=4)
    engine = make_engine(front=front, step_seconds=0.02)
    streams = [await engine.add_request(str(n), "a", _params(n=n)) for n in (1, 2)]
    engine.check_admission(1)
    with pytest.raises(AdmissionError) as caught:
        engine.check_admission(2)
    assert caught.value.retry_after >= 1.0
    with pytest.raises(AdmissionError):
        await engine.add_request("x", "a", _params(n=2))
    last = await engine.add_request("y", "a", _params())
    with pytest.raises(AdmissionError):
        await engine.add_request("z", "a", _params())
    for stream in (*streams, last):
        assert [output.finished async for output in stream][-1]
    engine.check_admission(4)


async def test_admission_counts_requests_being_tokenised(make_engine: MakeEngine) -> None:
    engine = make_engine(
        front=FrontConfig(max_num_queued_reqs=3), max_model_len=10_000, num_blocks=3000
    )
    results = await asyncio.gather(
        *(engine.add_request(str(i), "a" * 5000, _params()) for i in range(10)),
        return_exceptions=True,
    )
    refused = [one for one in results if isinstance(one, AdmissionError)]
    assert len(refused) == 7
    for stream in results:
        if not isinstance(stream, BaseException):
            await stream.aclose()
    await _assert_nothing_stays(engine)


# Letting go


async def test_generator_left_early_aborts_in_both_processes(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.005)
    stream = engine.generate("a", _params(max_tokens=150, n=2), "a")
    async for _ in stream:
        break
    await stream.aclose()
    assert engine.num_unfinished_requests == 0
    await _assert_nothing_stays(engine)


async def test_abort_by_id_ends_the_stream_with_abort(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.005)
    other = asyncio.create_task(_collect(engine, "a", "other", output_kind=DELTA))
    streams = [
        asyncio.create_task(_collect(engine, "a", "mine", max_tokens=150, output_kind=kind))
        for kind in RequestOutputKind
    ]
    await asyncio.sleep(0.1)
    await engine.abort("mine")
    for outputs in await asyncio.gather(*streams):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
    assert _text(await other) == "bcdefghijk"
    await engine.abort(["mine", "never"])
    await _assert_nothing_stays(engine)


async def test_tasks_cancelled_at_random_points_leave_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(
        step_seconds=0.001, max_model_len=4000, num_blocks=4000, front=FrontConfig()
    )
    rng = random.Random(7)

    async def one(number: int) -> None:
        prompt = "a" * rng.choice([1, 20, 3000])  # the long ones are tokenised in a thread
        params = _params(n=rng.choice([1, 1, 3]), max_tokens=rng.choice([1, 5, 100]))
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
    await _assert_nothing_stays(engine)
    assert _text(await _collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_cancelled_request_is_counted_as_aborted(make_engine: MakeEngine) -> None:
    class Keeper:
        reasons: list[str] = []  # noqa: RUF012
        num_logs = 0

        def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
            self.reasons += [one.finish_reason for one in iteration.finished]

        def log(self) -> None:
            self.num_logs += 1

    keeper = Keeper()
    engine = make_engine(
        step_seconds=0.005, stat_loggers=[keeper], front=FrontConfig(stats_interval=0.0)
    )
    stream = await engine.add_request("a", "a", _params(max_tokens=150))
    await anext(stream)
    await stream.aclose()
    await _collect(engine, "a")
    await asyncio.sleep(1.5)  # a sign of life brings what is left
    assert sorted(keeper.reasons) == ["abort", "length"]
    assert keeper.num_logs > 0
    assert engine.scheduler_stats.num_running == 0


# Failure


async def test_core_killed_with_streams_open_ends_all_of_them(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01)
    streams = [
        asyncio.create_task(
            _collect(
                engine, "a", str(i), max_tokens=150, output_kind=list(RequestOutputKind)[i % 3]
            )
        )
        for i in range(8)
    ]
    await asyncio.sleep(0.2)
    os.kill(_core_pid(engine), signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 5.0)
    assert [type(one) for one in results] == [EngineDeadError] * 8
    assert engine.errored
    assert not engine.is_running
    assert isinstance(engine.dead_error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        await engine.add_request("x", "a", _params())
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
    os.kill(_core_pid(engine), signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while not engine.errored:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await engine.check_health()


async def test_request_that_fails_raises_for_its_reader_only(make_engine: MakeEngine) -> None:
    engine = make_engine(fail_at_token=ord("m"))
    good = asyncio.create_task(_collect(engine, "p", output_kind=DELTA))
    seen: list[str] = []

    async def read() -> None:
        async for output in engine.generate("j", _params(output_kind=DELTA), "bad"):
            seen.append(output.outputs[0].text)  # noqa: PERF401 (what came before the error)

    with pytest.raises(EngineGenerateError, match=f"no request gets {ord('m')}"):
        await read()
    assert "".join(seen) == "kl"
    assert _text(await good) == "qrstuvwxyz"
    await engine.check_health()
    await _assert_nothing_stays(engine)


async def test_frozen_core_is_not_healthy_until_it_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_llm, "IDLE_SILENCE_SECONDS", 2.5)
    engine = make_engine()
    await engine.check_health()
    os.kill(_core_pid(engine), signal.SIGSTOP)
    deadline = time.monotonic() + 10.0

    async def until_it_fails() -> None:
        while time.monotonic() < deadline:
            await engine.check_health()
            await asyncio.sleep(0.05)

    with pytest.raises(EngineDeadError, match="no sign of life"):
        await until_it_fails()
    assert not engine.errored
    os.kill(_core_pid(engine), signal.SIGCONT)
    await asyncio.sleep(1.5)
    await engine.check_health()
    assert _text(await _collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_core_stuck_in_a_step_is_not_healthy_after_the_limit(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(hang_at_token=ord("b"), front=FrontConfig(heartbeat_timeout=1.5))
    await engine.check_health()
    stream = await engine.add_request("a", "a", _params())
    await engine.check_health()
    await asyncio.sleep(2.0)
    with pytest.raises(EngineDeadError, match="no sign of life"):
        await engine.check_health()
    engine.shutdown(0.1)
    with pytest.raises(EngineDeadError, match="shut down"):
        await anext(stream)


async def test_task_that_processes_outputs_failing_is_an_error_for_all(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(step_seconds=0.01)
    stream = await engine.add_request("a", "a", _params(max_tokens=100))
    await anext(stream)

    def fail(*arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(engine._front.stats, "record", fail)

    async def read() -> None:
        async for _ in stream:
            pass

    with pytest.raises(EngineDeadError, match="a fault of ours"):
        await asyncio.wait_for(read(), 5.0)
    assert engine.errored
    with pytest.raises(EngineDeadError):
        await engine.add_request("b", "a", _params())


# Life


def test_engine_made_without_a_loop_serves_in_several_loops(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(3):
        assert _text(asyncio.run(_collect(engine, "a", output_kind=DELTA))) == "bcdefghijk"


async def test_engine_told_not_to_start_its_loop_starts_it_with_the_first_request(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(start_engine_loop=False)
    assert engine._outputs._task is None
    assert _text(await _collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


def test_engine_that_cannot_start_raises_and_leaves_no_child(make_engine: MakeEngine) -> None:
    with pytest.raises(ModelError, match="no weights in here"):
        make_engine(start="model")
    assert psutil.Process().children() == []


def test_engine_without_its_tokenizer_raises_and_leaves_no_child() -> None:
    with pytest.raises(ModelError):
        AsyncLLM(make_config(tokenizer="/no/such/folder"), executor_factory=FACTORY)
    assert psutil.Process().children() == []


async def test_engine_without_a_tokenizer_takes_and_gives_ids(make_engine: MakeEngine) -> None:
    with AsyncLLM(make_config(), executor_factory=FACTORY) as engine:
        [output] = await _collect(engine, [5, 6], output_kind=FINAL_ONLY, max_tokens=3)
        assert output.outputs[0].token_ids == [7, 8, 9]
        assert output.outputs[0].text == ""
        with pytest.raises(UnsupportedError):
            _ = engine.tokenizer
        with pytest.raises(ValidationError):
            await engine.add_request("a", [5], _params(stop=["x"]))


async def test_engine_nobody_holds_is_freed_and_its_core_ends(tokenizer_folder: str) -> None:
    engine = AsyncLLM(make_config(tokenizer=tokenizer_folder), executor_factory=FACTORY)
    await _collect(engine, "a")
    pid = _core_pid(engine)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert not psutil.pid_exists(pid)


async def test_shutdown_ends_open_streams_and_refuses_new_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01)
    pid = _core_pid(engine)
    reading = asyncio.create_task(_collect(engine, "a", max_tokens=150))
    await asyncio.sleep(0.1)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(reading, 5.0)
    with pytest.raises(EngineDeadError):
        await engine.add_request("b", "a", _params())
    assert not psutil.pid_exists(pid)


async def test_shutdown_in_another_thread_ends_open_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01)
    reading = asyncio.create_task(_collect(engine, "a", max_tokens=150))
    await asyncio.sleep(0.1)
    await asyncio.get_running_loop().run_in_executor(None, engine.shutdown)
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(reading, 5.0)


async def test_shutdown_ends_a_call_that_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(hang_at_token=ord("b"))
    stream = await engine.add_request("a", "a", _params())
    await asyncio.sleep(0.2)  # the core hangs in its step
    call = asyncio.create_task(engine.reset_prefix_cache())
    await asyncio.sleep(0.1)
    assert not call.done()
    engine.shutdown(0.1)
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(call, 5.0)
    await stream.aclose()


async def test_stat_logger_that_fails_is_left_out_and_serving_goes_on(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
            raise RuntimeError("no disk")

        def log(self) -> None:
            raise AssertionError("left out before")

    engine = make_engine(stat_loggers=[Broken()])
    assert _text(await _collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"
    await engine.check_health()
    assert [r.getMessage() for r in caplog.records if "Broken failed" in r.getMessage()] == [
        "the stat logger Broken failed and is left out"
    ]


def test_engine_in_an_event_loop_of_another_kind_serves(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outputs = runner.run(_collect(engine, "a", output_kind=DELTA))
    assert _text(outputs) == "bcdefghijk"


def test_engine_without_a_process_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="multiprocess"):
        AsyncLLM(make_config(front=FrontConfig(multiprocess=False)), executor_factory=FACTORY)


async def test_two_engines_in_one_process_serve_side_by_side(make_engine: MakeEngine) -> None:
    first, second = make_engine(), make_engine()
    assert _core_pid(first) != _core_pid(second)
    texts = await asyncio.gather(
        _collect(first, "a", output_kind=DELTA), _collect(second, "p", output_kind=DELTA)
    )
    assert [_text(outputs) for outputs in texts] == ["bcdefghijk", "qrstuvwxyz"]


async def test_stages_of_the_start_are_told(make_engine: MakeEngine) -> None:
    stages: list[str] = []
    make_engine(on_stage=lambda stage, fraction: stages.append(stage))
    assert stages == ["loading", "loading weights"]


async def test_prefix_cache_reset_waits_for_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01)
    assert await engine.reset_prefix_cache() is True
    stream = await engine.add_request("a", "a", _params(max_tokens=100))
    await anext(stream)
    assert await engine.reset_prefix_cache() is False
    await stream.aclose()


SCRIPT = """
import asyncio, sys
from headrace.engine.async_llm import AsyncLLM
from headrace.sampling_params import SamplingParams
from tests.engine.fakes import FACTORY, make_config
engine = AsyncLLM(make_config(tokenizer=sys.argv[1]), executor_factory=FACTORY)
async def main():
    async for output in engine.generate("a", SamplingParams(max_tokens=3, temperature=0), "1"):
        pass
    print(output.outputs[0].text, engine._client._connection.handle.child.pid, flush=True)
asyncio.run(main())
"""


def test_script_from_stdin_without_shutdown_ends_clean(tokenizer_folder: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-", tokenizer_folder],
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=60.0,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stderr == ""
    text, pid = run.stdout.split()
    assert text == "bcd"
    assert run.returncode == 0
    assert not psutil.pid_exists(int(pid))


async def test_progress_and_end_of_a_request_by_its_ids_in_the_core(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    stream = await engine.add_request("same", "abc", _params(max_tokens=400, n=2))
    other = await engine.add_request("same", "abc", _params(max_tokens=400))
    assert len(stream.core_ids) == 2
    found = await engine.progress([*stream.core_ids, "unknown"])
    assert set(found) == set(stream.core_ids)
    assert all(one.num_prompt_tokens >= 3 for one in found.values())
    await engine.abort(stream.core_ids, internal=True)
    last = [output async for output in stream][-1]
    assert [answer.finish_reason for answer in last.outputs] == ["abort", "abort"]
    assert stream.metrics.finish_reasons == ["abort", "abort"]
    assert set(await engine.progress(other.core_ids)) == set(other.core_ids)
    await other.aclose()
