"""What users get from what the core gives: kinds, text, stops, n > 1, and what is measured."""

from typing import Any

import pytest

from headrace.engine.input_processor import InputProcessor
from headrace.engine.output_processor import OutputProcessor
from headrace.errors import EngineDeadError
from headrace.inputs import EngineInput
from headrace.messages.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestLedger,
    SchedulerStats,
    TokenLogprobs,
)
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.startup import EngineReady
from headrace.metrics.stats import IterationStats
from headrace.outputs import RequestMetrics, RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.text.tokenizer import Tokenizer
from tests.engine.fakes import make_config

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
EMPTY = {"states": 0, "external_ids": 0, "parting": 0, "queued_tokens": 0}


class Sink:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[Exception] = []

    def begin(self, metrics: RequestMetrics) -> None:
        self.metrics = metrics

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


class Bench:
    """An output processor with one request in it."""

    def __init__(self, tokenizer: Tokenizer | None, *, interval: int = 1, **params: Any) -> None:
        self.processor = OutputProcessor(tokenizer, interval)
        ready = EngineReady(1000, 640, 16, 0, 0, "fake")
        self.inputs = InputProcessor(make_config(max_model_len=1000), ready, tokenizer)
        self.sink = Sink()
        self.iteration = IterationStats()
        self.clock = 100.0
        self.requests = self.add("a", self.sink, **params)

    def add(self, external_id: str, sink: Sink, **options: Any) -> list[EngineCoreRequest]:
        params = SamplingParams(**{"max_tokens": 100, **options})
        prompt = EngineInput([1, 2, 3], prompt="abc")
        request = self.inputs.process(external_id, prompt, params)
        return self.processor.add_request(request, external_id, prompt, params, sink)

    def give(self, text: str | bytes | list[int], index: int = 0, **fields: Any) -> list[str]:
        """The core's output of one step for one child; returns the ids to abort."""
        ids = list(text.encode()) if isinstance(text, str) else list(text)
        output = EngineCoreOutput(self.requests[index].request_id, ids, **fields)
        self.clock += 0.5
        return self.processor.process([output], self.clock, self.iteration)

    def part(self, ids: list[str] | None = None, **fields: Any) -> None:
        """The core's last word about requests that ended here."""
        for request_id in ids or [request.request_id for request in self.requests]:
            output = EngineCoreOutput(request_id, [], finish_reason=FinishReason.ABORT, **fields)
            self.processor.process([output], self.clock, self.iteration)

    def texts(self) -> list[str]:
        return [answer.text for output in self.sink.outputs for answer in output.outputs]


def test_delta_outputs_hold_only_what_is_new(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind=DELTA)
    bench.give("h")
    bench.give("i")
    bench.give("!", finish_reason=FinishReason.LENGTH)
    assert bench.texts() == ["h", "i", "!"]
    assert [o.outputs[0].token_ids for o in bench.sink.outputs] == [[104], [105], [33]]
    assert [o.finished for o in bench.sink.outputs] == [False, False, True]
    assert [o.outputs[0].finish_reason for o in bench.sink.outputs] == [None, None, "length"]
    assert {o.request_id for o in bench.sink.outputs} == {"a"}
    assert {o.prompt for o in bench.sink.outputs} == {"abc"}
    assert bench.processor.debug_state() == EMPTY


def test_cumulative_outputs_hold_all_and_do_not_change_later(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind=CUMULATIVE)
    bench.give("h")
    bench.give("i", finish_reason=FinishReason.LENGTH)
    assert bench.texts() == ["h", "hi"]
    assert [o.outputs[0].token_ids for o in bench.sink.outputs] == [[104], [104, 105]]


def test_final_only_gives_one_output(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind=FINAL_ONLY)
    bench.give("h")
    bench.give("i", finish_reason=FinishReason.LENGTH)
    [output] = bench.sink.outputs
    assert output.outputs[0].text == "hi"
    assert output.finished


@pytest.mark.parametrize(("engine", "request_", "expected"), [(3, None, 3), (1, 3, 3), (3, 2, 3)])
def test_stream_interval_gives_the_first_every_third_and_the_last(
    tokenizer: Tokenizer, engine: int, request_: int | None, expected: int
) -> None:
    bench = Bench(tokenizer, interval=engine, output_kind=DELTA, stream_interval=request_)
    for letter in "abcdefgh":
        bench.give(letter)
    bench.give("i", finish_reason=FinishReason.LENGTH)
    assert bench.texts() == ["a", "bcd", "efg", "hi"]
    assert expected == 3


def test_split_characters_come_whole(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind=DELTA)
    for byte in "é😀".encode():
        bench.give(bytes([byte]))
    bench.give("", finish_reason=FinishReason.LENGTH)
    assert "".join(bench.texts()) == "é😀"
    assert "\ufffd" not in "".join(bench.texts())


def test_end_inside_a_character_is_the_same_in_all_kinds(tokenizer: Tokenizer) -> None:
    whole = []
    for kind in RequestOutputKind:
        bench = Bench(tokenizer, output_kind=kind)
        bench.give("x")
        bench.give(b"\xf0\x9f", finish_reason=FinishReason.LENGTH)
        whole.append("".join(bench.texts()) if kind is DELTA else bench.texts()[-1])
    assert whole[0] == whole[1] == whole[2]
    assert whole[0].startswith("x")


def test_stop_string_over_several_tokens_ends_the_request_in_the_core(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, output_kind=DELTA, stop=["END"])
    for letter in "a EN EN":
        assert bench.give(letter) == []
    assert bench.give("D") == [bench.requests[0].request_id]
    assert "".join(bench.texts()) == "a EN "
    assert not any("END" in text for text in bench.texts())
    last = bench.sink.outputs[-1]
    assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("stop", "END")
    assert last.finished
    assert bench.give("more") == []
    assert bench.processor.debug_state() == {**EMPTY, "parting": 1}
    bench.part()
    assert bench.processor.debug_state() == EMPTY


def test_stop_string_in_the_last_token_needs_no_abort(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop=["END"])
    assert bench.give("xEND", finish_reason=FinishReason.LENGTH) == []
    answer = bench.sink.outputs[-1].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("x", "stop", "END")


def test_stop_token_is_named_and_has_no_text(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop_token_ids=[33])
    bench.give("hi")
    bench.give("!", finish_reason=FinishReason.STOP, stop_reason=33)
    answer = bench.sink.outputs[-1].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hi", "stop", 33)
    assert answer.token_ids == [104, 105, 33]


def test_answer_without_text_has_its_tokens() -> None:
    bench = Bench(None, output_kind=DELTA)
    bench.give("h")
    bench.give("i", finish_reason=FinishReason.LENGTH)
    assert bench.texts() == ["", ""]
    assert [o.outputs[0].token_ids for o in bench.sink.outputs] == [[104], [105]]


def _logprobs(token: int, *others: int) -> TokenLogprobs:
    return TokenLogprobs([token, *others], [-0.5] + [-1.0 - i for i in range(len(others))], 7)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_logprobs_come_as_maps_with_the_chosen_token_first(
    tokenizer: Tokenizer, kind: RequestOutputKind
) -> None:
    bench = Bench(tokenizer, output_kind=kind, logprobs=2)
    bench.give("h", logprobs=[_logprobs(104, 32, 104)])
    bench.give("i", logprobs=[_logprobs(105, 290, 1)], finish_reason=FinishReason.LENGTH)
    last = bench.sink.outputs[-1].outputs[0]
    assert last.cumulative_logprob == -1.0
    assert last.logprobs is not None
    maps = last.logprobs
    if kind is DELTA:
        first = bench.sink.outputs[0].outputs[0].logprobs
        assert first is not None
        maps = first + maps
    assert [list(one) for one in maps] == [[104, 32], [105, 290, 1]]
    assert maps[0][104].decoded_token == "h"
    assert (maps[0][104].rank, maps[0][104].logprob) == (7, -0.5)
    assert (maps[0][32].rank, maps[0][32].decoded_token) == (1, " ")
    assert maps[1][290].decoded_token == ""  # the model has ids the tokenizer does not have
    assert maps[1][1].rank == 2


def test_logprobs_of_tokens_behind_a_stop_string_are_dropped(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, logprobs=0, stop=["b"])
    bench.give("abc", logprobs=[_logprobs(97), _logprobs(98), _logprobs(99)])
    answer = bench.sink.outputs[-1].outputs[0]
    assert answer.token_ids == [97, 98]
    assert answer.logprobs is not None
    assert [list(one) for one in answer.logprobs] == [[97], [98]]
    assert answer.cumulative_logprob == -1.0


def test_prompt_logprobs_begin_with_none_and_come_once_with_deltas(tokenizer: Tokenizer) -> None:
    for kind, expected in [(DELTA, [3, None]), (CUMULATIVE, [3, 3]), (FINAL_ONLY, [3])]:
        bench = Bench(tokenizer, output_kind=kind, prompt_logprobs=1)
        bench.give("h", prompt_logprobs=[_logprobs(2, 5), _logprobs(3, 5)])
        bench.give("i", finish_reason=FinishReason.LENGTH)
        given = [o.prompt_logprobs for o in bench.sink.outputs]
        assert [one and len(one) for one in given] == expected
        first = given[0]
        assert first is not None
        assert first[0] is None
        assert first[1] is not None
        assert list(first[1]) == [2, 5]


# n > 1


def test_n_children_have_names_and_seeds_of_their_own(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=3, seed=10, temperature=1.0)
    ids = [request.request_id for request in bench.requests]
    parent = ids[0].removeprefix("0_")
    assert ids == [f"{i}_{parent}" for i in range(3)]
    assert [request.sampling_params.seed for request in bench.requests] == [10, 11, 12]
    assert {request.sampling_params.n for request in bench.requests} == {1}
    assert bench.processor.num_unfinished == 3
    assert bench.processor.num_queued_tokens == 9


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(None, [None, None]), (2**63 - 1, [2**63 - 1, -(2**63)]), (-2, [-2, 2**63 - 1])],
)
def test_n_seeds_at_the_end_of_their_range_stay_in_it(
    tokenizer: Tokenizer, seed: int | None, expected: list[int | None]
) -> None:
    bench = Bench(tokenizer, n=2, seed=seed)
    assert [request.sampling_params.seed for request in bench.requests] == expected


def test_n_deltas_come_one_child_at_a_time_and_finish_together(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=2, output_kind=DELTA)
    bench.give("a", 0)
    bench.give("x", 1)
    bench.give("b", 0, finish_reason=FinishReason.LENGTH)
    bench.give("y", 1, finish_reason=FinishReason.LENGTH)
    given = [(o.outputs[0].index, o.outputs[0].text, o.finished) for o in bench.sink.outputs]
    assert given == [(0, "a", False), (1, "x", False), (0, "b", False), (1, "y", True)]
    assert bench.processor.debug_state() == EMPTY


def test_n_final_only_gives_one_output_in_order(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=3, output_kind=FINAL_ONLY)
    for index in (2, 0, 1):
        assert bench.sink.outputs == []
        bench.give("xyz"[index], index, finish_reason=FinishReason.LENGTH)
    [output] = bench.sink.outputs
    assert [(a.index, a.text) for a in output.outputs] == [(0, "x"), (1, "y"), (2, "z")]
    assert output.finished


# Ends of other kinds


def test_error_of_one_request_is_told_in_its_output(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.give("h")
    bench.give("", finish_reason=FinishReason.ERROR, error="a bad grammar")
    answer = bench.sink.outputs[-1].outputs[0]
    assert (answer.finish_reason, answer.error) == ("error", "a bad grammar")
    assert bench.processor.debug_state() == EMPTY


@pytest.mark.parametrize("n", [1, 3])
def test_output_that_cannot_be_processed_ends_only_its_request(
    tokenizer: Tokenizer, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tokenizer, n=n, logprobs=1)
    other = Sink()
    [request] = bench.add("b", other)
    broken = TokenLogprobs([104], [], 1)
    bad = EngineCoreOutput(bench.requests[0].request_id, [104], logprobs=[broken])
    good = EngineCoreOutput(request.request_id, [104])
    ended = bench.processor.process([bad, good], 1.0, bench.iteration)
    assert sorted(ended) == sorted(r.request_id for r in bench.requests)
    [output] = bench.sink.outputs
    assert output.finished
    assert output.outputs[0].finish_reason == "error"
    assert other.outputs[0].outputs[0].text == "h"
    assert "cannot be processed" in caplog.text


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_abort_by_the_callers_id_gives_the_rest_and_abort(
    tokenizer: Tokenizer, kind: RequestOutputKind
) -> None:
    bench = Bench(tokenizer, n=2, output_kind=kind, stop=["END"])
    again = Sink()
    bench.add("a", again, output_kind=kind)
    bench.give("xE", 0)
    ended = bench.processor.abort(["a", "unknown"])
    assert len(ended) == 3
    assert set(ended) >= {request.request_id for request in bench.requests}
    last = bench.sink.outputs[-1]
    assert last.finished
    assert {a.finish_reason for a in last.outputs} == {"abort"}
    assert again.outputs[-1].finished
    texts = {a.index: "" for o in bench.sink.outputs for a in o.outputs}
    for output in bench.sink.outputs:
        for answer in output.outputs:
            texts[answer.index] = texts[answer.index] * (kind is DELTA) + answer.text
    assert texts == {0: "xE", 1: ""}
    bench.part(ended)
    assert bench.processor.debug_state() == EMPTY
    assert bench.processor.abort(["a"]) == []


def test_release_forgets_and_says_what_was_live(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=2)
    ids = [request.request_id for request in bench.requests]
    bench.give("x", 0, finish_reason=FinishReason.LENGTH)
    assert bench.processor.release(ids) == [ids[1]]
    assert bench.processor.release(ids) == []
    bench.part()
    assert bench.processor.debug_state() == EMPTY
    assert len(bench.sink.outputs) == 1


def test_fail_all_tells_each_reader_once(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=3)
    other = Sink()
    bench.add("b", other)
    bench.processor.fail_all("it broke")
    for sink in (bench.sink, other):
        [error] = sink.errors
        assert isinstance(error, EngineDeadError)
        assert str(error) == "it broke"
    assert bench.sink.errors[0] is not other.errors[0]
    assert bench.processor.debug_state() == EMPTY


# Measurements


def test_measurements_of_a_request_are_complete(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    assert bench.processor.num_queued_tokens == 3
    bench.give("h", num_cached_tokens=2)
    assert bench.processor.num_queued_tokens == 0
    bench.give("i", num_preemptions=1)
    ledger = RequestLedger(1.0, 2.0, 4.0, 10.0, 5, 2, 3, 1)
    bench.give("!", finish_reason=FinishReason.LENGTH, ledger=ledger, num_preemptions=1)
    iteration = bench.iteration
    assert iteration.num_generation_tokens == 3
    assert (iteration.num_prompt_tokens, iteration.num_cached_tokens) == (3, 2)
    assert len(iteration.time_to_first_tokens) == 1
    assert iteration.inter_token_latencies == [0.5, 0.5]
    [finished] = iteration.finished
    assert finished.finish_reason == "length"
    assert (finished.num_prompt_tokens, finished.num_generation_tokens) == (3, 3)
    assert (finished.num_cached_tokens, finished.num_preemptions) == (2, 1)
    assert (finished.max_tokens_param, finished.n_param) == (100, 1)
    assert (finished.queue_time, finished.prefill_time, finished.decode_time) == (1.0, 2.0, 6.0)
    assert (finished.inference_time, finished.time_per_output_token) == (8.0, 3.0)
    assert finished.max_num_generation_tokens == 3
    metrics = bench.sink.outputs[-1].metrics
    assert metrics is not None
    assert (metrics.queue_time, metrics.prefill_time, metrics.decode_time) == (1.0, 2.0, 6.0)
    assert (metrics.num_prefill_tokens, metrics.num_cached_tokens) == (5, 2)
    assert (metrics.num_generation_tokens, metrics.num_preemptions) == (3, 1)
    assert bench.sink.outputs[-1].num_cached_tokens == 2


def test_requests_let_go_are_counted_once_the_core_has_told_of_them(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, n=2)
    bench.give("h", 0, ledger=RequestLedger(1.0, 2.0, 100.5, 100.5, 3, 0, 1, 0))
    bench.processor.release([request.request_id for request in bench.requests])
    step = EngineCoreOutputs([], SchedulerStats(), 1.0, 5)
    assert bench.processor.start_iteration(step) == IterationStats(num_step_tokens=5)
    assert bench.iteration.finished == []
    [metrics] = [output.metrics for output in bench.sink.outputs]
    assert metrics is not None
    assert (metrics.num_prefill_tokens, metrics.num_generation_tokens) == (3, 1)
    bench.part(ledger=RequestLedger(1.0, 2.0, 100.5, 102.5, 3, 0, 4, 1))
    assert [one.finish_reason for one in bench.iteration.finished] == ["abort", "abort"]
    assert [one.decode_time for one in bench.iteration.finished] == [2.0, 2.0]
    # The longest of both is told with the last one.
    assert [one.max_num_generation_tokens for one in bench.iteration.finished] == [None, 4]
    # Both children's accounts are in, with what was generated while nobody listened.
    assert (metrics.num_prefill_tokens, metrics.num_generation_tokens) == (6, 8)
    assert (metrics.num_preemptions, metrics.decode_time) == (2, 2.0)
    assert bench.iteration.num_generation_tokens == 8
