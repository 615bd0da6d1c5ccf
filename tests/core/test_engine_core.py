"""The engine core: refusals at its edge, steps, faults, control verbs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from headrace.core.engine_core import EngineCore
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from headrace.messages.requests import EngineCoreRequest, GetDebugState, ResetPrefixCache
from tests.fakes import RecordingExecutor, make_core_request

CONFIG = EngineConfig(
    model=ModelConfig(
        model="fake",
        path="fake",
        format="dummy",
        hf_config={},
        model_type="fake",
        tokenizer=None,
        max_model_len=64,
        vocab_size=1000,
        served_names=["fake"],
    ),
    cache=CacheConfig(block_size=4),
    scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
)


def make_core(executor: RecordingExecutor | None = None) -> EngineCore:
    return EngineCore(CONFIG, executor or RecordingExecutor())


def run(core: EngineCore) -> dict[str, list[EngineCoreOutput]]:
    """Step until nothing is left; the outputs by request."""
    outputs: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(1000):
        if not core.has_work():
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the core does not come to an end")


def debug_state(core: EngineCore) -> dict[str, int]:
    state = core.call(GetDebugState())
    assert isinstance(state, dict)
    return state


def with_params(request: EngineCoreRequest, **changes: Any) -> EngineCoreRequest:
    """The request with parameters that SamplingParams itself would not let pass."""
    for name, value in changes.items():
        setattr(request.sampling_params, name, value)
    return request


BAD_REQUESTS = {
    "empty prompt": (make_core_request("bad", []), "prompt is empty"),
    "prompt without room": (make_core_request("bad", [1] * 64), "at most 63"),
    "negative id": (make_core_request("bad", [5, -1]), "token id -1"),
    "id outside": (make_core_request("bad", [5, 1000]), "token id 1000"),
    "huge id": (make_core_request("bad", [2**80]), "vocabulary"),
    "boolean id": (make_core_request("bad", [5, True]), "integers only"),
    "float id": (make_core_request("bad", [5, 1.0]), "integers only"),  # type: ignore[list-item]
    "text id": (make_core_request("bad", ["5"]), "integers only"),  # type: ignore[list-item]
    "stop id outside": (make_core_request("bad", [5], stop_token_ids=[1000]), "stop_token_ids"),
    "eos outside": (make_core_request("bad", [5], eos_token_id=1000), "eos_token_id"),
    "bias outside": (make_core_request("bad", [5], logit_bias={1000: 1.0}), "logit_bias"),
    "allowed outside": (make_core_request("bad", [5], allowed_token_ids=[1000]), "allowed"),
    "bad word outside": (
        make_core_request("bad", [5], bad_words_token_ids=[[3], [4, 1000]]),
        "bad_words",
    ),
    "several answers": (with_params(make_core_request("bad", [5]), n=2), "n must be 1"),
}


@pytest.mark.parametrize("kind", BAD_REQUESTS)
def test_bad_request_between_good_ones_ends_alone(kind: str) -> None:
    request, text = BAD_REQUESTS[kind]
    core = make_core()
    core.add_request(make_core_request("before", [1, 2, 3]))
    core.add_request(request)
    core.add_request(make_core_request("after", [4, 5, 6]))
    outputs = run(core)
    (output,) = outputs.pop("bad")
    assert output.finish_reason is FinishReason.ERROR
    assert output.new_token_ids == []
    assert output.error is not None
    assert text in output.error
    assert output.ledger is not None
    assert {i: o[-1].finish_reason for i, o in outputs.items()} == {
        "before": FinishReason.LENGTH,
        "after": FinishReason.LENGTH,
    }


def test_request_larger_than_the_cache_is_refused_and_later_ones_run() -> None:
    core = make_core(RecordingExecutor(num_blocks=4))
    core.add_request(make_core_request("large", [1] * 10, max_tokens=7))
    core.add_request(make_core_request("full", [1] * 10, max_tokens=6))
    outputs = run(core)
    (refused,) = outputs["large"]
    assert refused.error is not None
    assert "17 tokens, the KV cache holds 16" in refused.error
    assert len(outputs["full"]) == 6


def test_max_tokens_beyond_the_context_counts_only_up_to_it() -> None:
    core = make_core(RecordingExecutor(num_blocks=16, max_model_len=64))
    core.add_request(make_core_request("r", [1] * 4, max_tokens=2**62))
    outputs = run(core)["r"]
    assert len(outputs) == 60
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    core = make_core()
    core.add_request(make_core_request("r", [1, 2]))
    core.add_request(make_core_request("r", [7, 7]))
    outputs = run(core)["r"]
    errors = [o for o in outputs if o.finish_reason is FinishReason.ERROR]
    assert [o.error for o in errors] == ["request id 'r' is in use"]
    assert sum(len(o.new_token_ids) for o in outputs) == 4
    core.add_request(make_core_request("r", [7, 7]))
    assert len(run(core)["r"]) == 4


def test_refusal_alone_is_work_but_runs_no_step() -> None:
    executor = RecordingExecutor()
    core = make_core(executor)
    core.add_request(make_core_request("bad", []))
    assert core.has_work()
    assert debug_state(core)["answers"] == 1
    assert [o.request_id for o in core.step().outputs] == ["bad"]
    assert not core.has_work()
    assert executor.orders == []


def test_fault_of_one_request_ends_it_and_the_step_goes_on() -> None:
    core = make_core(RecordingExecutor(errors={"bad": "no finite logits"}))
    core.add_request(make_core_request("good", [1, 2]))
    core.add_request(make_core_request("bad", [3, 4]))
    outputs = run(core)
    (output,) = outputs["bad"]
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "no finite logits")
    assert len(outputs["good"]) == 4
    assert debug_state(core)["blocks_in_use"] == 0


def test_requests_that_ended_with_logits_that_are_no_numbers_are_counted() -> None:
    executor = RecordingExecutor(errors={"bad": "no numbers", "odd": "something else"})
    executor.corrupted.add("bad")
    core = make_core(executor)
    for request_id in ("good", "bad", "odd"):
        core.add_request(make_core_request(request_id, [1, 2]))
    run(core)
    assert core.scheduler.stats().num_corrupted == 1


def test_exception_of_the_executor_passes_through() -> None:
    executor = RecordingExecutor()
    core = make_core(executor)
    core.add_request(make_core_request("r", [1]))
    executor.raises = OSError("out of memory")
    with pytest.raises(OSError, match="out of memory"):
        core.step()


def test_step_reports_tokens_stats_and_time() -> None:
    core = EngineCore(CONFIG, RecordingExecutor(), now=lambda: 12.5)
    core.add_request(make_core_request("a", [1, 2, 3]))
    core.add_request(make_core_request("b", [1, 2]))
    outputs = core.step()
    assert outputs.num_step_tokens == 5
    assert outputs.timestamp == 12.5
    assert (outputs.stats.num_running, outputs.stats.num_waiting) == (2, 0)
    idle = core.idle_outputs()
    assert idle.outputs == []
    assert idle.num_step_tokens == 0
    assert idle.stats == outputs.stats


def test_step_without_work_is_idle() -> None:
    core = make_core()
    assert not core.has_work()
    assert core.step().outputs == []
    assert core.control.executor.orders == []  # type: ignore[union-attr]


def test_abort_gives_a_last_output_and_frees_everything() -> None:
    executor = RecordingExecutor()
    core = make_core(executor)
    for number in range(8):
        core.add_request(make_core_request(str(number), [number] * 5))
    core.step()
    assert core.live_request_ids() == [str(number) for number in range(8)]
    core.abort_requests([*core.live_request_ids(), "unknown"])
    outputs = run(core)
    assert set(outputs) == {str(number) for number in range(8)}
    for [output] in outputs.values():
        assert (output.finish_reason, output.new_token_ids) == (FinishReason.ABORT, [])
    ledgers = [output.ledger for [output] in outputs.values() if output.ledger is not None]
    assert len(ledgers) == 8
    stats = core.scheduler.stats()
    assert sum(ledger.num_prefill_tokens for ledger in ledgers) == stats.prompt_tokens > 0
    assert sum(ledger.num_output_tokens for ledger in ledgers) == stats.generation_tokens
    assert executor.known_ids == set()
    state = debug_state(core)
    state.pop("cached_blocks")
    assert set(state.values()) == {0}


def test_reset_prefix_cache_waits_until_nothing_runs() -> None:
    core = make_core()
    core.add_request(make_core_request("a", [1] * 9))
    core.step()
    assert core.call(ResetPrefixCache()) is False
    run(core)
    assert debug_state(core)["cached_blocks"] > 0
    assert core.call(ResetPrefixCache()) is True
    assert debug_state(core)["cached_blocks"] == 0
    core.add_request(make_core_request("b", [1] * 9))
    assert run(core)["b"][0].num_cached_tokens == 0


def test_outputs_survive_the_wire() -> None:
    core = make_core()
    core.add_request(make_core_request("a", [1, 2], logprobs=0, prompt_logprobs=0))
    while core.has_work():
        outputs = core.step()
        data = msgspec.msgpack.encode(outputs)
        assert msgspec.msgpack.decode(data, type=type(outputs)) == outputs


def test_shutdown_frees_the_executor() -> None:
    executor = RecordingExecutor()
    core = make_core(executor)
    core.shutdown()
    core.shutdown()
    assert executor.is_shut_down
