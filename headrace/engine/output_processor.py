"""All live requests of an engine, and the one loop over what the core gives them.

The only owner of request state in the front process: a request is here from `add_request` to its
last output or its release, whatever happens. Sends nothing; says which ids the core shall forget.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from headrace.engine.ledger import PartLedger
from headrace.engine.parallel_sampling import ParentRequest, fan_out
from headrace.engine.request_state import OutputSink, RequestState
from headrace.errors import EngineDeadError
from headrace.inputs import EngineInput
from headrace.logger import make_logger
from headrace.messages.outputs import EngineCoreOutput, EngineCoreOutputs
from headrace.messages.requests import EngineCoreRequest
from headrace.metrics.stats import IterationStats
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
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
        self._parting: dict[str, PartLedger] = {}
        """Requests that ended here, until the core has said its last word about them."""
        self.num_queued_tokens = 0
        """Prompt tokens of requests without a first token."""

    @property
    def num_unfinished(self) -> int:
        """Live requests; with n > 1 each of the n counts."""
        return len(self._states)

    @property
    def num_parting(self) -> int:
        """Requests that ended here and of which the core is still to say its last word."""
        return len(self._parting)

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, for leak checks."""
        return {
            "states": len(self._states),
            "external_ids": len(self._by_external_id),
            "parting": len(self._parting),
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
        metrics = RequestMetrics(request.arrival_time)
        token_text = None if self._tokenizer is None else self._tokenizer.token_text
        for index, child_id in enumerate(child_ids):
            self._states[child_id] = RequestState(
                child_id,
                external_id,
                prompt,
                params,
                sink,
                metrics=metrics,
                detokenizer=self._make_detokenizer(prompt, params),
                token_text=token_text,
                stream_interval=interval,
                parent=parent,
                index=index,
            )
        sink.begin(metrics)
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
            prompt_token_ids=prompt.prompt_token_ids if prompt.prompt_embeds is None else [],
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
            if state is None:  # ended here in the meantime
                self._take_last_word(output, timestamp, iteration)
                continue
            try:
                finish_reason, stop_reason = state.update(output)
                request_output = state.make_output(
                    finish_reason, stop_reason, output.error, output.error_param
                )
            except Exception:
                logger.exception("the output of request %s cannot be processed", state.external_id)
                to_abort += self._fail(state)
                continue
            self._measure(state, output, timestamp, now, iteration)
            if finish_reason is not None:
                state.ledger.note_end(finish_reason, now)
                if output.finish_reason is None:
                    to_abort.append(state.request_id)
                    self._parting[state.request_id] = state.ledger
                else:
                    iteration.finished.append(state.ledger.finished_stats())
                self._forget(state)
            if request_output is not None:
                state.sink.put(request_output)
        return to_abort

    def start_iteration(self, outputs: EngineCoreOutputs) -> IterationStats:
        """An empty record for one step."""
        return IterationStats(num_step_tokens=outputs.num_step_tokens)

    def _take_last_word(
        self, output: EngineCoreOutput, timestamp: float, iteration: IterationStats
    ) -> None:
        """Settle the account of a request that ended here."""
        if output.finish_reason is None:
            return
        ledger = self._parting.pop(output.request_id, None)
        if ledger is not None:
            iteration.num_generation_tokens += ledger.take(output, timestamp)
            iteration.finished.append(ledger.finished_stats())

    def _measure(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        timestamp: float,
        now: float,
        iteration: IterationStats,
    ) -> None:
        last_token_at, metrics = state.ledger.last_token_at, state.ledger.metrics
        iteration.num_generation_tokens += state.ledger.take(output, timestamp)
        if not output.new_token_ids:
            return
        if last_token_at is None:
            num_prompt_tokens = len(state.prompt.prompt_token_ids)
            self.num_queued_tokens -= num_prompt_tokens
            iteration.num_prompt_tokens += num_prompt_tokens
            iteration.num_cached_tokens += output.num_cached_tokens
            latency = now - metrics.arrival_time
            if metrics.first_token_latency is None:
                metrics.first_token_latency = latency
            iteration.time_to_first_tokens.append(latency)
        else:
            # Tokens of one step share the time since the last one evenly.
            num_new = len(output.new_token_ids)
            latency = (timestamp - last_token_at) / num_new
            iteration.inter_token_latencies += [latency] * num_new

    # Ends other than by the core

    def abort(self, ids: Iterable[str], *, internal: bool = False) -> list[str]:
        """End every live request with these ids of the caller; readers get what there is and
        finish_reason `abort`.

        Args:
            internal: they are ids in the core.

        Returns:
            Ids the core shall forget.
        """
        ended = [i for i in ids if i in self._states] if internal else self.ids_of(ids)
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

    def discard(self, request_ids: Iterable[str]) -> None:
        """Forget requests that never reached the core, which will say nothing of them."""
        for request_id in request_ids:
            self._parting.pop(request_id, None)
            if request_id in self._states:
                self._forget(self._states[request_id])

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
        self.discard(list(self._states))
        self._parting.clear()
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
        state.ledger.note_end(reason, time.time())
        self._parting[state.request_id] = state.ledger
        self._forget(state)

    def _forget(self, state: RequestState) -> None:
        del self._states[state.request_id]
        same = self._by_external_id[state.external_id]
        del same[state.request_id]
        if not same:
            del self._by_external_id[state.external_id]
        if state.ledger.last_token_at is None:
            self.num_queued_tokens -= len(state.prompt.prompt_token_ids)
