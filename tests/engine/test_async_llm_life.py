"""The asynchronous engine from its start to its end."""

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import psutil
import pytest
import uvloop

from headrace.config.engine import FrontConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.errors import (
    EngineDeadError,
    ModelError,
    UnsupportedError,
    ValidationError,
)
from headrace.messages.outputs import SchedulerStats
from headrace.metrics.stats import IterationStats
from headrace.sampling_params import RequestOutputKind
from tests.engine.async_rig import (
    MakeEngine,
    begin,
    collect,
    core_pid,
    make_params,
    text_of,
)
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, FACTORY, make_config
from tests.waiting import PATIENCE, until

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


# Life


def test_engine_made_without_a_loop_serves_in_several_loops(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(3):
        assert text_of(asyncio.run(collect(engine, "a", output_kind=DELTA))) == "bcdefghijk"


async def test_engine_told_not_to_start_its_loop_starts_it_with_the_first_request(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(start_engine_loop=False)
    assert engine._outputs._task is None
    assert text_of(await collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


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
        [output] = await collect(engine, [5, 6], output_kind=FINAL_ONLY, max_tokens=3)
        assert output.outputs[0].token_ids == [7, 8, 9]
        assert output.outputs[0].text == ""
        with pytest.raises(UnsupportedError):
            _ = engine.tokenizer
        with pytest.raises(ValidationError):
            await engine.add_request("a", [5], make_params(stop=["x"]))


async def test_engine_nobody_holds_is_freed_and_its_core_ends(tokenizer_folder: str) -> None:
    engine = AsyncLLM(make_config(tokenizer=tokenizer_folder), executor_factory=FACTORY)
    await collect(engine, "a")
    pid = core_pid(engine)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert not psutil.pid_exists(pid)


async def test_shutdown_ends_open_streams_and_refuses_new_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    pid = core_pid(engine)
    reading = await begin(engine, "a", max_tokens=ENDLESS_TOKENS)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(reading, PATIENCE)
    with pytest.raises(EngineDeadError):
        await engine.add_request("b", "a", make_params())
    assert not psutil.pid_exists(pid)


async def test_shutdown_in_another_thread_ends_open_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    reading = await begin(engine, "a", max_tokens=ENDLESS_TOKENS)
    await asyncio.get_running_loop().run_in_executor(None, engine.shutdown)
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(reading, PATIENCE)


async def test_shutdown_ends_a_call_that_waits(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(hang_at_token=ord("b"), gate=str(tmp_path))
    stream = await engine.add_request("a", "a", make_params())
    await until((tmp_path / "here").exists)  # the core hangs in its step
    call = asyncio.create_task(engine.reset_prefix_cache())
    await asyncio.sleep(0.1)
    assert not call.done()
    engine.shutdown(0.1)
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(call, PATIENCE)
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
    assert text_of(await collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"
    await engine.check_health()
    assert [r.getMessage() for r in caplog.records if "Broken failed" in r.getMessage()] == [
        "the stat logger Broken failed and is left out"
    ]


def test_engine_in_an_event_loop_of_another_kind_serves(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outputs = runner.run(collect(engine, "a", output_kind=DELTA))
    assert text_of(outputs) == "bcdefghijk"


def test_engine_without_a_process_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="multiprocess"):
        AsyncLLM(make_config(front=FrontConfig(multiprocess=False)), executor_factory=FACTORY)


async def test_two_engines_in_one_process_serve_side_by_side(make_engine: MakeEngine) -> None:
    first, second = make_engine(), make_engine()
    assert core_pid(first) != core_pid(second)
    texts = await asyncio.gather(
        collect(first, "a", output_kind=DELTA), collect(second, "p", output_kind=DELTA)
    )
    assert [text_of(outputs) for outputs in texts] == ["bcdefghijk", "qrstuvwxyz"]


async def test_stages_of_the_start_are_told(make_engine: MakeEngine) -> None:
    stages: list[str] = []
    make_engine(on_stage=lambda stage, fraction: stages.append(stage))
    assert stages == ["loading", "loading weights"]


async def test_prefix_cache_reset_waits_for_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    assert await engine.reset_prefix_cache() is True
    stream = await engine.add_request("a", "a", make_params(max_tokens=ENDLESS_TOKENS))
    await anext(stream)
    assert await engine.reset_prefix_cache() is False
    await stream.aclose()


SCRIPT = """
import asyncio, sys
from headrace.engine.async_llm import AsyncLLM
from headrace.sampling_params import SamplingParams
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, FACTORY, make_config
from tests.waiting import PATIENCE, until
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
    engine = make_engine(**ENDLESS)
    stream = await engine.add_request("same", "abc", make_params(max_tokens=ENDLESS_TOKENS, n=2))
    other = await engine.add_request("same", "abc", make_params(max_tokens=ENDLESS_TOKENS))
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
