"""The engine for callers that wait, with the core in a process of its own and in this one."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from headrace.engine.inproc_client import InprocClient
from headrace.engine.llm_engine import LLMEngine, is_multiprocessing_enabled
from headrace.engine.mp_client import SyncMPClient
from headrace.errors import ConfigError, EngineDeadError, ModelError, ValidationError
from headrace.outputs import RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.fakes import FACTORY, make_config

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(params=[True, False], ids=["process", "in-process"])
def make_engine(tokenizer_folder: str, request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    """Makes engines that are shut down at the end."""
    made: list[LLMEngine] = []

    def make(**options: Any) -> LLMEngine:
        config = make_config(tokenizer=tokenizer_folder, **options)
        made.append(LLMEngine(config, multiprocess=request.param, executor_factory=FACTORY))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def _params(**options: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 10, "temperature": 0.0, "output_kind": FINAL_ONLY, **options}
    )


def _run(engine: LLMEngine) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def _state(engine: LLMEngine) -> dict[str, int]:
    state = engine.debug_state()
    return {name: size for name, size in state.items() if size and "cached" not in name}


def test_requests_stepped_to_their_end_are_all_answered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for i, prompt in enumerate(["a", [ord("p")], {"prompt": "f"}]):
        assert engine.add_request(str(i), prompt, _params()).startswith(f"{i}-")
    assert engine.get_num_unfinished_requests() == 3
    texts = {output.request_id: output.outputs[0].text for output in _run(engine)}
    assert texts == {"0": "bcdefghijk", "1": "qrstuvwxyz", "2": "ghijklmnop"}
    assert engine.step() == []


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_n_answers_come_together(make_engine: MakeEngine, kind: RequestOutputKind) -> None:
    engine = make_engine()
    engine.add_request("a", "a", _params(n=2, output_kind=kind))
    assert engine.get_num_unfinished_requests() == 2
    outputs = _run(engine)
    assert outputs[-1].finished
    texts = {0: "", 1: ""}
    for output in outputs:
        for answer in output.outputs:
            texts[answer.index] = texts[answer.index] * (kind is DELTA) + answer.text
    assert texts == {0: "bcdefghijk", 1: "bcdefghijk"}
    assert len(outputs) == 1 or kind is not FINAL_ONLY


def test_stop_string_ends_the_request_in_the_core(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", "a", _params(stop=["ef"], max_tokens=150))
    [output] = _run(engine)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("bcd", "ef")
    assert "front.states" not in _state(engine)
    engine.add_request("b", "a", _params())
    assert [one.request_id for one in _run(engine)] == ["b"]


def test_abort_request_forgets_all_with_that_id(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(2):
        engine.add_request("a", "a", _params(max_tokens=150, n=2))
    engine.add_request("b", "a", _params())
    engine.step()
    engine.abort_request(["a", "unknown"])
    assert [output.request_id for output in _run(engine)] == ["b"]
    engine.add_request("c", "a", _params(max_tokens=1))  # a step, so that the core has swept
    _run(engine)
    assert not {name for name in _state(engine) if name.startswith("front")}
    assert engine.reset_prefix_cache() is True


def test_logprobs_come_with_their_texts(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", "xya", _params(logprobs=2, prompt_logprobs=1, max_tokens=2))
    [output] = _run(engine)
    answer = output.outputs[0]
    assert answer.cumulative_logprob == -1.0
    assert answer.logprobs is not None
    assert [one[ord(c)].decoded_token for one, c in zip(answer.logprobs, "bc", strict=True)] == [
        "b",
        "c",
    ]
    assert output.prompt_logprobs is not None
    assert [one and next(iter(one)) for one in output.prompt_logprobs] == [None, ord("y"), ord("a")]


def test_request_that_fails_is_an_output_with_its_error(make_engine: MakeEngine) -> None:
    engine = make_engine(fail_at_token=ord("d"))
    engine.add_request("bad", "a", _params())
    engine.add_request("good", "p", _params())
    ends = {output.request_id: output.outputs[0] for output in _run(engine)}
    assert ends["bad"].finish_reason == "error"
    assert ends["bad"].error == f"no request gets {ord('d')}"
    assert ends["good"].finish_reason == "length"


def test_step_of_a_core_that_fails_raises_and_frees_all(
    make_engine: MakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = make_engine(raise_at_token=ord("d"))
    engine.add_request("a", "a", _params())
    with pytest.raises(EngineDeadError, match=f"no step gives {ord('d')}"):
        _run(engine)
    assert not engine.has_unfinished_requests()
    with pytest.raises(EngineDeadError):
        engine.add_request("b", "a", _params())
    assert not engine.has_unfinished_requests()
    engine.abort_request(["a"])


def test_bad_request_is_refused_and_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(ValidationError):
        engine.add_request("a", "", _params())
    with pytest.raises(ValidationError):
        engine.add_request("a", "a", _params(logprobs=99))
    with pytest.raises(TypeError):
        engine.add_request(5, "a", _params())  # type: ignore[arg-type]
    assert not engine.has_unfinished_requests()


def test_failed_start_raises_the_reason(make_engine: MakeEngine) -> None:
    with pytest.raises(ModelError, match="no weights"):
        make_engine(start="model")
    assert psutil.Process().children() == []


async def test_use_inside_an_event_loop_warns_with_the_other_name(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.logger._seen", set())
    assert asyncio.get_running_loop()
    engine = make_engine()
    engine.step()
    lines = [record.getMessage() for record in caplog.records if "AsyncLLM" in record.getMessage()]
    assert len(lines) == 1


# Where the core lives


@pytest.mark.parametrize(
    ("value", "kind"), [(None, SyncMPClient), ("1", SyncMPClient), ("0", InprocClient)]
)
def test_environment_chooses_where_the_core_lives(
    value: str | None, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("HEADRACE_ENABLE_MULTIPROCESSING", raising=False)
    else:
        monkeypatch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", value)
    with LLMEngine(make_config(), executor_factory=FACTORY) as engine:
        assert type(engine._client) is kind
        assert len(psutil.Process().children()) == (kind is SyncMPClient)


@pytest.mark.parametrize("value", ["", "yes", "2"])
def test_environment_with_another_value_stops_the_start(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", value)
    with pytest.raises(ConfigError, match="HEADRACE_ENABLE_MULTIPROCESSING"):
        is_multiprocessing_enabled()


def test_killed_core_raises_from_step(tokenizer_folder: str) -> None:
    config = make_config(tokenizer=tokenizer_folder, step_seconds=0.01)
    with LLMEngine(config, multiprocess=True, executor_factory=FACTORY) as engine:
        engine.add_request("a", "a", _params(max_tokens=150))
        engine.step()
        [child] = psutil.Process().children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            _run(engine)
        assert not engine.has_unfinished_requests()


def test_engine_nobody_holds_ends_its_core(tokenizer_folder: str) -> None:
    config = make_config(tokenizer=tokenizer_folder)
    engine = LLMEngine(config, multiprocess=True, executor_factory=FACTORY)
    [child] = psutil.Process().children()
    del engine
    assert not child.is_running()
