"""All live requests of an engine, and the one loop over what the core gives them.

The only owner of request state in the front process: a request is here from `add_request` to its
last output or its release, whatever happens. Sends nothing; says which ids the core shall forget.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from headrace.engine.parallel_sampling import ParentRequest, fan_out
from headrace.engine.request_state import OutputSink, RequestState
from headrace.errors import EngineDeadError
from headrace.inputs import EngineInput
from headrace.logger import make_logger
from headrace.messages.outputs import EngineCoreOutput, EngineCoreOutputs, RequestTimes
from headrace.messages.requests import EngineCoreRequest
from headrace.metrics.stats import FinishedRequestStats, IterationStats
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.sampling_params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer

logger = make_logger(__name__)


class OutputProcessor:
    """Turns core outputs into request outputs. One thread.

    Args:
        tokenizer: None when answers have no text.
        stream_interval: least tokens between two outputs of a request.
    """

    def __init__(self, tokenizer: Tokenizer | None, stream_interval: int = 1) -> None:
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._states: dict[str, RequestState] = {}
        self._by_external_id: dict[str, dict[str, None]] = {}
        """Ids in the core by the caller's id, in order."""
        self._ended_elsewhere: list[FinishedRequestStats] = []
        """Requests that ended other than by an output of the core; told with the next ones."""
        self.num_queued_tokens = 0
        """Prompt tokens of requests without a first token."""

    @property
    def num_unfinished(self) -> int:
        """Live requests; with n > 1 each of the n counts."""
        return len(self._states)

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, for leak checks."""
        return {
            "states": len(self._states),
            "external_ids": len(self._by_external_id),
            "queued_tokens": self.num_queued_tokens,
        }

    def add_request(
        self,
        request: EngineCoreRequest,
        external_id: str,
        prompt: EngineInput,
        params: SamplingParams,
        sink: OutputSink,
    ) -> list[EngineCoreRequest]:
        """Take in a request (and with n > 1 its children).

        Returns:
            What is to be sent to the core. Should that fail, release their ids.
        """
        children = fan_out(request)
        child_ids = [child.request_id for child in children]
        parent = ParentRequest(child_ids, params.output_kind) if len(children) > 1 else None
        interval = max(self._stream_interval, params.stream_interval or 1)
        token_text = None if self._tokenizer is None else self._tokenizer.token_text
        for index, child_id in enumerate(child_ids):
            self._states[child_id] = RequestState(
                child_id,
                external_id,
                prompt,
                params,
                sink,
                arrival_time=request.arrival_time,
                detokenizer=self._make_detokenizer(prompt, params),
                token_text=token_text,
                stream_interval=interval,
                parent=parent,
                index=index,
            )
        self._by_external_id.setdefault(external_id, {}).update(dict.fromkeys(child_ids))
        self.num_queued_tokens += len(prompt.prompt_token_ids) * len(children)
        return children

    def _make_detokenizer(
        self, prompt: EngineInput, params: SamplingParams
    ) -> IncrementalDetokenizer | None:
        if self._tokenizer is None or not params.detokenize:
            return None
        return IncrementalDetokenizer(
            self._tokenizer,
            prompt_token_ids=prompt.prompt_token_ids,
            stop=list(params.stop or ()),
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            min_tokens=params.min_tokens,
        )

    # Outputs

    def process(
        self, outputs: Iterable[EngineCoreOutput], timestamp: float, iteration: IterationStats
    ) -> list[str]:
        """Pass on a slice of a step's outputs.

        Args:
            timestamp: of the step, core clock.
            iteration: where measurements go.

        Returns:
            Ids the core shall forget: ended here, by a stop string or a fault of one request.
        """
        to_abort: list[str] = []
        now = time.time()
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:  # released in the meantime
                continue
            try:
                finish_reason, stop_reason = state.update(output)
                request_output = state.make_output(finish_reason, stop_reason, output.error)
            except Exception:
                logger.exception("the output of request %s cannot be processed", state.external_id)
                to_abort += self._fail(state)
                continue
            self._measure(state, output, timestamp, now, iteration)
            if finish_reason is not None:
                if output.finish_reason is None:
                    to_abort.append(state.request_id)
                iteration.finished.append(_finished(state, finish_reason, now, output.times))
                self._forget(state)
            if request_output is not None:
                state.sink.put(request_output)
        return to_abort

    def start_iteration(self, outputs: EngineCoreOutputs) -> IterationStats:
        """An empty record for one step, with the requests that ended outside of any step."""
        finished, self._ended_elsewhere = self._ended_elsewhere, []
        return IterationStats(num_step_tokens=outputs.num_step_tokens, finished=finished)

    def _measure(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        timestamp: float,
        now: float,
        iteration: IterationStats,
    ) -> None:
        num_new = len(output.new_token_ids)
        metrics = state.metrics
        metrics.num_preemptions = output.num_preemptions
        if not num_new:
            return
        iteration.num_generation_tokens += num_new
        metrics.num_generation_tokens += num_new
        if state.last_token_at is None:
            num_prompt_tokens = len(state.prompt.prompt_token_ids)
            self.num_queued_tokens -= num_prompt_tokens
            iteration.num_prompt_tokens += num_prompt_tokens
            iteration.num_cached_tokens += output.num_cached_tokens
            metrics.first_token_latency = now - metrics.arrival_time
            iteration.time_to_first_tokens.append(metrics.first_token_latency)
        else:
            iteration.inter_token_latencies.append(timestamp - state.last_token_at)
        state.last_token_at = timestamp

    # Ends other than by the core

    def abort(self, external_ids: Iterable[str]) -> list[str]:
        """End every live request with these ids of the caller; readers get what there is and
        finish_reason `abort`.

        Returns:
            Ids the core shall forget.
        """
        ended = self.ids_of(external_ids)
        for request_id in ended:
            state = self._states[request_id]
            output = state.make_output("abort")
            self._end_elsewhere(state, "abort")
            if output is not None:
                state.sink.put(output)
        return ended

    def release(self, request_ids: Iterable[str]) -> list[str]:
        """Forget requests nobody reads any more. Returns those that were live: tell the core."""
        live = [request_id for request_id in request_ids if request_id in self._states]
        for request_id in live:
            self._end_elsewhere(self._states[request_id], "abort")
        return live

    def ids_of(self, external_ids: Iterable[str]) -> list[str]:
        """The ids in the core of all live requests with these ids of the caller."""
        return [
            request_id
            for external_id in external_ids
            for request_id in self._by_external_id.get(external_id, ())
        ]

    def fail_all(self, reason: str) -> None:
        """The engine cannot go on: every reader gets an EngineDeadError, nothing stays."""
        sinks = {id(state.sink): state.sink for state in self._states.values()}
        for state in list(self._states.values()):
            self._end_elsewhere(state, "error")
        for sink in sinks.values():
            sink.fail(EngineDeadError(reason))

    def _fail(self, state: RequestState) -> list[str]:
        """End one request, with its siblings, by a fault of ours. Returns the ids."""
        siblings = [state.request_id] if state.parent is None else state.parent.child_ids
        live = [request_id for request_id in siblings if request_id in self._states]
        for request_id in live:
            self._end_elsewhere(self._states[request_id], "error")
        error = "the output of this request could not be processed; see the engine's log"
        answer = CompletionOutput(state.index, "", [], finish_reason="error", error=error)
        prompt = state.prompt
        state.sink.put(
            RequestOutput(
                state.external_id, prompt.prompt, prompt.prompt_token_ids, [answer], finished=True
            )
        )
        return live

    def _end_elsewhere(self, state: RequestState, reason: str) -> None:
        self._ended_elsewhere.append(_finished(state, reason, time.time(), None))
        self._forget(state)

    def _forget(self, state: RequestState) -> None:
        del self._states[state.request_id]
        same = self._by_external_id[state.external_id]
        del same[state.request_id]
        if not same:
            del self._by_external_id[state.external_id]
        if state.last_token_at is None:
            self.num_queued_tokens -= len(state.prompt.prompt_token_ids)


def _finished(
    state: RequestState, reason: str, now: float, times: RequestTimes | None
) -> FinishedRequestStats:
    """What is measured of a request that ends now. The core's times are known if it ended it."""
    metrics = state.metrics
    num_tokens = metrics.num_generation_tokens
    metrics.e2e_latency = now - metrics.arrival_time
    stats = FinishedRequestStats(
        finish_reason=reason,
        num_prompt_tokens=len(state.prompt.prompt_token_ids),
        num_generation_tokens=num_tokens,
        num_cached_tokens=state.num_cached_tokens or 0,
        num_preemptions=metrics.num_preemptions,
        max_tokens_param=state.max_tokens,
        n_param=state.n,
        e2e_latency=metrics.e2e_latency,
    )
    if times is not None:
        stats.queue_time = metrics.queue_time = times.scheduled - times.queued
        stats.prefill_time = metrics.prefill_time = times.first_token - times.scheduled
        stats.decode_time = metrics.decode_time = times.last_token - times.first_token
        stats.inference_time = times.last_token - times.scheduled
        if num_tokens > 1:
            stats.time_per_output_token = stats.decode_time / (num_tokens - 1)
    return stats
