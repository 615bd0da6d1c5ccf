"""The asynchronous engine, member by member, as programs of this field know it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.engine import FrontConfig, SchedulerConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.errors import (
    AdmissionError,
    ConfigError,
    EngineDeadError,
    EngineGenerateError,
    ProfilerAlreadyActiveError,
    QueueTimeoutError,
    UnsupportedError,
    ValidationError,
)
from headrace.inputs import EngineInput, StreamingInput
from headrace.messages.requests import EngineCoreRequest
from headrace.outputs import RequestMetrics, RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, FACTORY, make_config
from tests.waiting import PATIENCE, until

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
MakeEngine = Callable[..., AsyncLLM]


ASYNCHRONOUS = """
add_request generate encode abort pause_generation resume_generation is_paused check_health sleep
wake_up is_sleeping release_kv_cache_memory start_profile stop_profile reset_prefix_cache
reset_mm_cache reset_encoder_cache add_lora remove_lora list_loras pin_lora collective_rpc
get_supported_tasks get_tokenizer is_tracing_enabled do_log_stats wait_for_requests_to_drain
"""
ARGUMENTS = """
request_id prompt params arrival_time lora_request tokenization_kwargs trace_headers priority
data_parallel_rank session_id prompt_text reasoning_ended reasoning_parser_kwargs kv_hints tenant
"""


@pytest.fixture
def make_engine(tokenizer_folder: str) -> Iterator[MakeEngine]:
    """Makes engines that count upwards; they are shut down at the end."""
    made: list[AsyncLLM] = []

    def make(**options: Any) -> AsyncLLM:
        config = make_config(tokenizer=tokenizer_folder, **options)
        made.append(AsyncLLM(config, executor_factory=FACTORY))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, "temperature": 0.0, "output_kind": DELTA, **options})


async def collect(
    engine: AsyncLLM, prompt: Any, request_id: str = "a", **options: Any
) -> list[RequestOutput]:
    return [one async for one in engine.generate(prompt, params(**options), request_id)]


def text(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


async def begin(
    engine: AsyncLLM, prompt: Any, request_id: str = "a", **options: Any
) -> asyncio.Task[list[RequestOutput]]:
    """Collect in a task of its own; the first output has come."""
    outputs = engine.generate(prompt, params(**options), request_id)
    first = await anext(outputs)

    async def rest() -> list[RequestOutput]:
        return [first, *[one async for one in outputs]]

    return asyncio.create_task(rest())


def ids_inside(engine: AsyncLLM, request_id: str) -> list[str]:
    return engine._front.output_processor.ids_of([request_id])


async def settle(engine: AsyncLLM) -> None:
    """Wait until all maps of both processes are empty."""
    async with asyncio.timeout(PATIENCE):
        while True:
            state = await engine.debug_state()
            if not {name for name, size in state.items() if size and "cached" not in name}:
                return
            await asyncio.sleep(0.02)


# Members


def test_members_are_the_known_ones() -> None:
    for name in ASYNCHRONOUS.split():
        member = getattr(AsyncLLM, name)
        asynchronous = inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        assert asynchronous or name == "encode", name
    for name in ("check_admission", "shutdown", "get_num_unfinished_requests",
                 "get_num_queued_tokens"):  # fmt: skip
        assert callable(getattr(AsyncLLM, name))
    for name in ("is_running", "is_stopped", "errored", "dead_error", "tokenizer", "model_config"):
        assert isinstance(getattr(AsyncLLM, name), property)


def test_arguments_come_in_the_known_order() -> None:
    order = list(inspect.signature(AsyncLLM.add_request).parameters)[1:]
    assert order == ARGUMENTS.split()
    found = inspect.signature(AsyncLLM.generate).parameters
    by_position = [n for n, p in found.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["self", "prompt", "sampling_params", "request_id"]
    assert set(found) - set(by_position) == set(order[4:])


async def test_small_questions_are_answered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.is_running
    assert not engine.is_stopped
    assert not engine.errored
    assert await engine.get_supported_tasks() == ("generate",)
    assert await engine.is_tracing_enabled() is False
    assert (await engine.get_tokenizer()).decode([97]) == "a"
    assert await engine.list_loras() == set()
    await engine.reset_mm_cache()
    await engine.reset_encoder_cache()
    await engine.do_log_stats()
    for call in (engine.add_lora(None), engine.remove_lora(1), engine.pin_lora(1)):
        with pytest.raises(UnsupportedError, match="adapters"):
            await call
    with pytest.raises(UnsupportedError, match="pooling"):
        engine.encode("a", None, "a")


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("lora_request", object(), UnsupportedError), ("data_parallel_rank", 1, ValidationError),
     ("data_parallel_rank", -1, ValidationError), ("priority", 1, ValidationError),
     ("tokenization_kwargs", {"padding": 1}, UnsupportedError)],
)  # fmt: skip
async def test_option_that_is_not_offered_is_refused_by_name(
    make_engine: MakeEngine, name: str, value: Any, kind: type[Exception]
) -> None:
    engine = make_engine()
    with pytest.raises(kind, match=name):
        async for _ in engine.generate("a", params(), "a", **{name: value}):
            pass
    await settle(engine)


async def test_hints_have_no_effect_and_traces_are_dropped_with_a_warning(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.logger._seen", set())
    engine = make_engine()
    outputs = [
        one
        async for one in engine.generate(
            {"prompt_token_ids": [97]}, params(), "a", prompt_text="A", session_id="s",
            trace_headers={"traceparent": "x"}, data_parallel_rank=0, kv_hints={"a": 1},
            reasoning_ended=True, reasoning_parser_kwargs={},
        )
    ]  # fmt: skip
    assert text(outputs) == "bcdefghijk"
    assert outputs[0].prompt == "A"
    assert sum("trace headers" in record.getMessage() for record in caplog.records) == 1


async def test_core_request_as_a_prompt_keeps_its_own_id(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.logger._seen", set())
    engine = make_engine()
    for given, warnings in (("mine", 0), ("other", 1), ("another", 1)):
        request = EngineCoreRequest("mine", [97], params(), None, [], 0.0)
        outputs = await collect(engine, request, given)
        assert {output.request_id for output in outputs} == {"mine"}
        assert text(outputs) == "bcdefghijk"
        assert sum("its own wins" in r.getMessage() for r in caplog.records) == warnings


# What generate raises


async def test_cancelled_reader_aborts_the_request(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    task = await begin(engine, "a", max_tokens=ENDLESS_TOKENS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle(engine)


async def test_closed_generator_aborts_the_request(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS)
    outputs = engine.generate("a", params(max_tokens=ENDLESS_TOKENS, n=3), "a")
    await anext(outputs)
    await outputs.aclose()
    await settle(engine)


async def test_dead_core_is_raised_to_all_and_gets_no_abort(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(**ENDLESS)
    sent: list[Any] = []
    waiting = [await begin(engine, "a", max_tokens=ENDLESS_TOKENS) for _ in range(3)]
    connection = engine._client._connection  # type: ignore[attr-defined]
    monkeypatch.setattr(connection.handle.sender, "send", sent.append)
    os.kill(connection.handle.child.pid, signal.SIGKILL)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in results] == [EngineDeadError] * 3
    assert sent == []
    assert engine.errored
    assert engine.is_stopped
    for call in (collect(engine, "a"), engine.check_health(), engine.sleep(), engine.is_paused()):
        with pytest.raises(EngineDeadError):
            await call


async def test_refused_request_is_raised_unchanged(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(ValidationError, match="logprobs"):
        await collect(engine, "a", logprobs=99)
    with pytest.raises(TypeError):
        async for _ in engine.generate("a", params(), 5):  # type: ignore[arg-type]
            pass
    await settle(engine)


async def test_any_other_fault_is_wrapped_and_aborts(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(**ENDLESS)
    outputs = engine.generate("a", params(max_tokens=ENDLESS_TOKENS), "a")
    await anext(outputs)

    async def broken(self: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("headrace.engine.output_collector.RequestOutputCollector.__anext__", broken)
    with pytest.raises(EngineGenerateError, match="out of luck"):
        await anext(outputs)
    await settle(engine)


# Pause and resume


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
@pytest.mark.parametrize("clear_cache", [True, False])
async def test_pause_in_every_mode_then_resume(
    make_engine: MakeEngine, mode: Any, clear_cache: bool, tmp_path: Path
) -> None:
    engine = make_engine(step_seconds=0.01, wait_at_token=ord("d"), gate=str(tmp_path))
    assert await engine.is_paused() is False
    before = [asyncio.create_task(collect(engine, "a", str(i), max_tokens=25)) for i in range(3)]
    await until((tmp_path / "here").exists)
    await until(lambda: engine.get_num_unfinished_requests() == 3)
    pause = asyncio.create_task(engine.pause_generation(mode=mode, clear_cache=clear_cache))
    await asyncio.sleep(0.05)  # it is with the core, long before the last token
    (tmp_path / "go").touch()
    await pause
    assert await engine.is_paused() is True
    late = asyncio.create_task(collect(engine, "a", "late", max_tokens=4))
    await until(lambda: mode == "keep" or all(task.done() for task in before))
    await asyncio.sleep(0.1)
    assert [task.done() for task in before] == [mode != "keep"] * 3
    assert not late.done()
    await engine.resume_generation()
    assert await engine.is_paused() is False
    assert text(await late) == "bcde"
    whole = "".join(chr(98 + i) for i in range(25))
    for outputs in await asyncio.gather(*before):
        reason = outputs[-1].outputs[0].finish_reason
        assert reason == ("abort" if mode == "abort" else "length")
        assert text(outputs) == whole if mode != "abort" else whole.startswith(text(outputs))
    await settle(engine)


async def test_pause_twice_and_resume_twice_are_fine(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(2):
        await engine.pause_generation(mode="wait")
    assert await engine.is_paused()
    for _ in range(2):
        await engine.resume_generation()
    assert text(await collect(engine, "a")) == "bcdefghijk"


async def test_request_that_waits_behind_a_pause_can_be_aborted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    await engine.pause_generation()
    waiting = asyncio.create_task(collect(engine, "a"))
    await until(lambda: bool(ids_inside(engine, "a")))
    await engine.abort("a")
    assert (await waiting)[-1].outputs[0].finish_reason == "abort"
    await settle(engine)


async def test_abort_by_the_id_inside(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(wait_at_token=ord("d"), gate=str(tmp_path))
    tasks = [asyncio.create_task(collect(engine, "a", "same", max_tokens=60)) for _ in range(2)]
    await until(lambda: len(ids_inside(engine, "same")) == 2)
    [first, _] = ids_inside(engine, "same")
    await engine.abort(first, internal=True)
    (tmp_path / "go").touch()
    reasons = [outputs[-1].outputs[0].finish_reason for outputs in await asyncio.gather(*tasks)]
    assert sorted(str(reason) for reason in reasons) == ["abort", "length"]


async def test_pause_with_a_mode_that_does_not_exist_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for call in (
        engine.pause_generation(mode="now"),  # type: ignore[arg-type]
        engine.sleep(mode="now"),  # type: ignore[arg-type]
        engine.sleep("deep"),  # type: ignore[arg-type]
        engine.sleep(3),
        engine.wake_up(["weight"]),
        engine.collective_rpc("a", args=(object(),)),
        engine.collective_rpc("a", args=(2**70,)),
    ):
        with pytest.raises(ValidationError):
            await call
    assert text(await collect(engine, "a")) == "bcdefghijk"


# Sleep, profiles, calls, drain


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_sleep_and_wake(make_engine: MakeEngine, level: int) -> None:
    engine = make_engine()
    await engine.sleep(level)
    assert await engine.is_sleeping()
    assert await engine.is_paused()
    waiting = asyncio.create_task(collect(engine, "a"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await engine.wake_up() is True
    assert text(await waiting) == "bcdefghijk"


async def test_profiles_and_calls(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(ConfigError, match="--profiler-dir"):
        await engine.start_profile()
    assert await engine.stop_profile() == []
    assert await engine.collective_rpc("anything", args=(1,), kwargs={"a": 2}) == [
        ["anything", [1], {"a": 2}]
    ]
    with pytest.raises(UnsupportedError, match="name of a method"):
        await engine.collective_rpc(print)  # type: ignore[arg-type]
    assert ProfilerAlreadyActiveError.__name__ in dir(__import__("headrace"))


async def test_call_that_takes_too_long_times_out(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(wait_at_token=ord("b"), gate=str(tmp_path))
    task = asyncio.create_task(collect(engine, "a", max_tokens=2))
    await until((tmp_path / "here").exists)
    with pytest.raises(TimeoutError):
        await engine.collective_rpc("anything", timeout=0.05)
    (tmp_path / "go").touch()
    await task


async def test_drain_waits_for_the_last_request(make_engine: MakeEngine, tmp_path: Path) -> None:
    engine = make_engine(wait_at_token=ord("d"), gate=str(tmp_path))
    task = asyncio.create_task(collect(engine, "a", max_tokens=30))
    await until(lambda: engine.get_num_unfinished_requests() == 1)
    with pytest.raises(TimeoutError):
        await engine.wait_for_requests_to_drain(0.01)
    (tmp_path / "go").touch()
    await engine.wait_for_requests_to_drain()
    assert engine.get_num_unfinished_requests() == engine.get_num_queued_tokens() == 0
    assert text(await task)


# Prompts in pieces


async def pieces(*texts: Any, wait: float = 0.0) -> AsyncGenerator[StreamingInput, None]:
    for one in texts:
        yield one if isinstance(one, StreamingInput) else StreamingInput(one)
        await asyncio.sleep(wait)


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
async def test_pieces_are_answered_one_after_the_other(make_engine: MakeEngine, kind: Any) -> None:
    engine = make_engine()
    three = StreamingInput("xp", params(max_tokens=3))
    outputs = await collect(engine, pieces("a", [ord("f")], three), output_kind=kind, max_tokens=2)
    whole = text(outputs) if kind is DELTA else outputs[-1].outputs[0].text
    assert whole == "bc" + "gh" + "qrs"
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.outputs[0].finish_reason for output in outputs[:-1]} == {None}
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert {output.request_id for output in outputs} == {"a"}
    assert outputs[-1].prompt_token_ids == list(b"abcfghxp")
    ids = [i for o in outputs for i in o.outputs[0].token_ids] if kind is DELTA else (
        outputs[-1].outputs[0].token_ids
    )  # fmt: skip
    assert bytes(ids).decode() == whole
    await settle(engine)


async def test_fault_of_the_callers_pieces_is_raised_as_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine()

    async def broken() -> AsyncGenerator[StreamingInput, None]:
        yield StreamingInput("a")
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await collect(engine, broken())
    await settle(engine)


async def test_reader_that_leaves_closes_the_callers_pieces(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01)
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[StreamingInput, None]:
        try:
            while True:
                yield StreamingInput("a")
        finally:
            closed.set()

    outputs = engine.generate(endless(), params(max_tokens=50), "a")
    await anext(outputs)
    await outputs.aclose()
    await asyncio.wait_for(closed.wait(), PATIENCE)
    await settle(engine)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"n": 2}, "n must be 1"), ({"output_kind": FINAL_ONLY}, "output_kind"),
     ({"stop": ["x"]}, "stop")],
)  # fmt: skip
async def test_pieces_with_what_has_no_meaning_are_refused(
    make_engine: MakeEngine, options: dict[str, Any], said: str
) -> None:
    engine = make_engine()
    with pytest.raises(ValidationError, match=said):
        await collect(engine, pieces("a"), **options)
    own = StreamingInput("a", params(**options))
    with pytest.raises(ValidationError, match=said):
        await collect(engine, pieces(own))
    await settle(engine)


@pytest.mark.parametrize("hint", [{"reasoning_ended": False}, {"reasoning_parser_kwargs": {}}])
async def test_pieces_with_hints_on_reasoning_are_not_implemented(
    make_engine: MakeEngine, hint: dict[str, Any]
) -> None:
    engine = make_engine()
    with pytest.raises(NotImplementedError):
        async for _ in engine.generate(pieces("a"), params(), "a", **hint):
            pass


# Deadlines


async def test_running_request_whose_time_is_over_gives_what_there_is(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(**ENDLESS, modulo=100)
    limit_ms = 200.0
    while True:
        try:
            outputs = await collect(
                engine, "a", max_tokens=ENDLESS_TOKENS, deadline_ms=limit_ms, output_kind=FINAL_ONLY
            )
            break
        except QueueTimeoutError:  # over before the core had begun: a busy machine
            limit_ms *= 2
    [answer] = outputs[-1].outputs
    assert answer.finish_reason == "timeout"
    assert answer.error is None
    assert 1 <= len(answer.token_ids) <= limit_ms / 1000 / ENDLESS["step_seconds"] + 1
    assert outputs[-1].metrics is not None
    assert outputs[-1].metrics.num_generation_tokens == len(answer.token_ids)
    await settle(engine)


@pytest.mark.parametrize("limit", [{"max_queue_ms": 100}, {"deadline_ms": 100}])
async def test_waiting_request_whose_time_is_over_is_refused(
    make_engine: MakeEngine, limit: dict[str, float]
) -> None:
    scheduler = SchedulerConfig(max_num_seqs=1)
    engine = make_engine(**ENDLESS, scheduler=scheduler)
    first = await begin(engine, "a", "first", max_tokens=ENDLESS_TOKENS)
    with pytest.raises(QueueTimeoutError, match=r"\(deadline_ms, max_queue_ms\)") as caught:
        await collect(engine, "a", "late", **limit)
    assert isinstance(caught.value, AdmissionError)
    assert caught.value.retry_after > 0
    await engine.abort("first")  # which was left alone until now
    assert (await first)[-1].outputs[0].finish_reason == "abort"
    await settle(engine)


async def test_time_that_passed_before_the_core_heard_of_it_counts(make_engine: MakeEngine) -> None:
    import time

    engine = make_engine()
    stream = await engine.add_request("a", "a", params(deadline_ms=1000), time.time() - 5.0)
    with pytest.raises(QueueTimeoutError):
        [one async for one in stream]
    await settle(engine)


async def test_time_is_over_for_requests_behind_a_pause_too(make_engine: MakeEngine) -> None:
    engine = make_engine()
    await engine.pause_generation()
    with pytest.raises(QueueTimeoutError):
        await asyncio.wait_for(collect(engine, "a", max_queue_ms=50), PATIENCE)


# The ledger


async def test_ledgers_add_up_to_the_counters(make_engine: MakeEngine) -> None:
    """Streamed, n > 1, aborted at any time, ended by a stop string, out of time, preempted."""
    engine = make_engine(
        step_seconds=0.001, num_blocks=24, max_model_len=300, modulo=100,
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16),
    )  # fmt: skip
    rng = random.Random(7)
    seen: dict[int, RequestMetrics] = {}
    prompts = ["".join(chr(65 + (i * 7 + k) % 26) for k in range(3 + 5 * i)) for i in range(8)]

    async def one(number: int) -> None:
        options: dict[str, Any] = {
            "n": rng.choice([1, 1, 3]), "max_tokens": rng.choice([1, 10, 60]),
            "output_kind": rng.choice([DELTA, FINAL_ONLY]),
            "stop": rng.choice([[], ["EF"]]), "deadline_ms": rng.choice([None, None, 300.0]),
        }  # fmt: skip
        patience = rng.choice([None, None, 0.05, 0.2])
        # Counted once it is in, so its reader's time begins then.
        outputs = await engine.add_request(str(number), rng.choice(prompts), params(**options))
        try:
            async with asyncio.timeout(patience):
                async for output in outputs:
                    assert output.metrics is not None
                    seen[id(output.metrics)] = output.metrics
                    if rng.random() < 0.02:
                        await engine.abort(str(number))
        except (TimeoutError, QueueTimeoutError):
            pass
        finally:
            await outputs.aclose()

    # Every request's record is kept by the engine until it is settled; note them as they come.
    processor = engine._front.output_processor
    add = processor.add_request

    def noting(*arguments: Any) -> Any:
        children = add(*arguments)
        for child in children:
            metrics = processor._states[child.request_id].ledger.metrics
            seen[id(metrics)] = metrics
        return children

    processor.add_request = noting  # type: ignore[method-assign]
    for start in range(0, 160, 20):
        await asyncio.gather(*(one(number) for number in range(start, start + 20)))
    await settle(engine)
    ledgers = list(seen.values())
    assert len(ledgers) == 160
    expected = [
        sum(getattr(one, name) for one in ledgers)
        for name in ("num_prefill_tokens", "num_generation_tokens", "num_cached_tokens",
                     "num_preemptions")
    ]  # fmt: skip

    def counted() -> list[int]:
        stats = engine.scheduler_stats
        return [stats.prompt_tokens, stats.generation_tokens, stats.prefix_cache_hits,
                stats.num_preemptions]  # fmt: skip

    with contextlib.suppress(TimeoutError):  # a sign of life brings the last counters
        await until(lambda: counted() == expected)
    assert counted() == expected
    stats = engine.scheduler_stats
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    for one_ledger in ledgers:
        assert one_ledger.queue_time is not None
        assert one_ledger.queue_time >= 0
        assert one_ledger.prefill_time is not None
        assert one_ledger.prefill_time >= 0
        assert one_ledger.decode_time is not None
        assert one_ledger.decode_time >= 0


async def test_rendered_prompt_is_taken_as_it_is(make_engine: MakeEngine) -> None:
    engine = make_engine(front=FrontConfig(max_num_queued_reqs=5))
    assert text(await collect(engine, EngineInput([97]))) == "bcdefghijk"
    engine.check_admission(5, request_id="x")
    with pytest.raises(AdmissionError):
        engine.check_admission(6)
