"""The synchronous engine as programs of this field drive it by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.engine.llm_engine import LLMEngine
from headrace.errors import UnsupportedError, ValidationError
from headrace.messages.requests import EngineCoreRequest
from headrace.outputs import RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.fakes import ENDLESS, ENDLESS_TOKENS, FACTORY, make_config

MakeEngine = Callable[..., LLMEngine]
ARGUMENTS = """
request_id prompt params arrival_time lora_request tokenization_kwargs trace_headers priority
session_id prompt_text kv_hints
"""


@pytest.fixture(params=[True, False], ids=["process", "in-process"])
def make_engine(tokenizer_folder: str, request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """Makes engines that count upwards; they are shut down at the end."""
    made: list[LLMEngine] = []

    def make(**options: Any) -> LLMEngine:
        config = make_config(tokenizer=tokenizer_folder, **options)
        made.append(LLMEngine(config, multiprocess=request.param, executor_factory=FACTORY))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def params(**options: Any) -> SamplingParams:
    known = {"max_tokens": 5, "temperature": 0.0, "output_kind": RequestOutputKind.FINAL_ONLY}
    return SamplingParams(**{**known, **options})


def run(engine: LLMEngine) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def is_in_process(engine: LLMEngine) -> bool:
    return engine._client.worker is not None


def test_arguments_come_in_the_known_order() -> None:
    order = list(inspect.signature(LLMEngine.add_request).parameters)[1:]
    assert order == ARGUMENTS.split()
    made = list(inspect.signature(LLMEngine.from_engine_args).parameters)
    assert made[:4] == ["engine_args", "usage_context", "stat_loggers", "enable_multiprocessing"]


def test_added_request_has_an_id_of_its_own_inside(make_engine: MakeEngine) -> None:
    engine = make_engine()
    inside = [engine.add_request("a", "a", params()) for _ in range(2)]
    assert all(name.startswith("a-") and len(name) == 10 for name in inside)
    assert engine.get_num_unfinished_requests() == 2
    engine.abort_request([inside[0]], internal=True)
    assert engine.get_num_unfinished_requests() == 1
    [output] = run(engine)
    assert (output.request_id, output.outputs[0].text) == ("a", "bcdef")


@pytest.mark.parametrize("request_id", [5, None, b"a"])
def test_id_that_is_no_string_is_a_type_error(make_engine: MakeEngine, request_id: Any) -> None:
    with pytest.raises(TypeError):
        make_engine().add_request(request_id, "a", params())


def test_core_request_as_a_prompt_and_a_text_for_ids(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("b", EngineCoreRequest("a", [97], params(), None, [], 0.0), params())
    engine.add_request("c", [97], params(), prompt_text="A")
    outputs = {output.request_id: output for output in run(engine)}
    assert set(outputs) == {"a", "c"}
    assert outputs["c"].prompt == "A"
    assert {output.outputs[0].text for output in outputs.values()} == {"bcdef"}


def test_what_is_not_offered_is_refused_by_name(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(UnsupportedError, match="lora_request"):
        engine.add_request("a", "a", params(), lora_request=object())
    with pytest.raises(ValidationError, match="priority"):
        engine.add_request("a", "a", params(), priority=1)
    assert not engine.has_unfinished_requests()
    assert engine.get_supported_tasks() == ("generate",)


def test_ledger_of_a_request_that_a_stop_string_ended_is_complete(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", "a", params(stop=["ef"], max_tokens=60))
    [output] = run(engine)
    metrics = output.metrics
    assert output.outputs[0].text == "bcd"
    assert metrics is not None
    assert metrics.num_prefill_tokens == 1
    assert metrics.num_generation_tokens >= 5
    assert metrics.queue_time is not None
    assert metrics.decode_time is not None
    assert metrics.decode_time > 0
    assert metrics.num_generation_tokens == engine.scheduler_stats.generation_tokens
    state = {k: v for k, v in engine.debug_state().items() if v and "cached" not in k}
    assert state == {}


def test_ledger_of_an_aborted_request_is_complete(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", "abc", params(max_tokens=60, output_kind=RequestOutputKind.CUMULATIVE))
    outputs = engine.step()
    engine.abort_request(["a"])
    assert outputs[0].metrics is not None
    assert outputs[0].metrics.num_prefill_tokens == 3
    assert outputs[0].metrics.num_generation_tokens == engine.scheduler_stats.generation_tokens
    state = {k: v for k, v in engine.debug_state().items() if v and "cached" not in k}
    assert state == {}


def test_request_out_of_time_says_so_in_its_output(make_engine: MakeEngine) -> None:
    engine = make_engine(**ENDLESS, modulo=100)
    limit_ms, num_tokens = 100.0, 0
    while not num_tokens:  # it may be over before a busy machine has begun
        limit_ms *= 2
        engine.add_request("a", "a", params(max_tokens=ENDLESS_TOKENS, deadline_ms=limit_ms))
        [output] = run(engine)
        num_tokens = len(output.outputs[0].token_ids)
    assert (output.outputs[0].finish_reason, output.outputs[0].error) == ("timeout", None)
    assert num_tokens <= limit_ms / 1000 / ENDLESS["step_seconds"] + 1
    engine.add_request("b", "a", params(max_tokens=2), arrival_time=0.0)
    engine.add_request("c", "a", params(max_queue_ms=100.0), arrival_time=0.0)
    answers = {output.request_id: output.outputs[0] for output in run(engine)}
    assert answers["b"].finish_reason == "length"
    assert (answers["c"].finish_reason, answers["c"].token_ids) == ("timeout", [])
    assert answers["c"].error is not None
    assert "without being started" in answers["c"].error


def test_controls_of_the_engine(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.reset_prefix_cache() is True
    for level in (0, 1, 2):
        engine.sleep(level)
        assert engine.is_sleeping()
        assert engine.wake_up() is True
    engine.add_request("a", "a", params())
    assert run(engine)[0].outputs[0].text == "bcdef"
    assert engine.collective_rpc("name", None, (1,)) == [["name", [1], {}]]
    assert engine.apply_model("name") == [["name", [], {}]]
    if is_in_process(engine):
        assert engine.collective_rpc(lambda worker: worker.ready.isa) == ["fake"]
        with pytest.raises(UnsupportedError, match="wait"):
            engine.sleep(0, mode="wait")
    else:
        with pytest.raises(UnsupportedError, match="in this process"):
            engine.collective_rpc(lambda worker: worker)
        engine.sleep(0, mode="wait")
        assert engine.wake_up(["scheduling"]) is True
    engine.do_log_stats()
    assert engine.get_world_size() == 1
