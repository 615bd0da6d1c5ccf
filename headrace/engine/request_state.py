"""One live request in the front process: its text, what has been passed on, and its times.

Makes the outputs users see from the core's; knows no other request but its siblings' parent.
"""

from __future__ import annotations

from typing import Protocol

from headrace.engine.ledger import PartLedger, Siblings
from headrace.engine.logprobs import LogprobMaker, TokenText
from headrace.engine.parallel_sampling import ParentRequest
from headrace.inputs import EngineInput
from headrace.logprobs import PromptLogprobs, TokenLogprobs
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer


class OutputSink(Protocol):
    """Where the outputs of one request go. Never blocks; called by whoever processes outputs."""

    def begin(self, metrics: RequestMetrics) -> None:
        """The request has been taken in; its metrics from now on, shared by its n parts."""
        ...

    def put(self, output: RequestOutput) -> None:
        """Take in an output; a part with finish_reason `error` has failed."""
        ...

    def fail(self, error: Exception) -> None:
        """The engine cannot go on; there will be no more outputs."""
        ...


class RequestState:
    """A request from its start to its last output.

    Args:
        request_id: in the core; `external_id` is the caller's.
        prompt: as rendered.
        params: as the caller gave them.
        sink: where outputs go.
        metrics: of the caller's request, shared by its n parts.
        detokenizer: None when the answer has no text.
        token_text: for log-probabilities; None without a tokenizer.
        stream_interval: tokens between two outputs; the first and the last are always given.
        parent, index: with n > 1, what it shares with its siblings, and which one it is.
    """

    __slots__ = (
        "_cumulative_logprob", "_has_sent", "_is_delta", "_is_final_only", "_logprob_maker",
        "_logprobs", "_num_sent", "_prompt_logprobs", "_stream_interval", "_token_ids",
        "detokenizer", "external_id", "index", "ledger", "num_cached_tokens", "parent", "prompt",
        "request_id", "sink",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        external_id: str,
        prompt: EngineInput,
        params: SamplingParams,
        sink: OutputSink,
        *,
        metrics: RequestMetrics,
        detokenizer: IncrementalDetokenizer | None,
        token_text: TokenText | None,
        stream_interval: int = 1,
        parent: ParentRequest | None = None,
        index: int = 0,
    ) -> None:
        self.request_id = request_id
        self.external_id = external_id
        self.prompt = prompt
        self._is_delta = params.output_kind is RequestOutputKind.DELTA
        self._is_final_only = params.output_kind is RequestOutputKind.FINAL_ONLY
        self.sink = sink
        self.parent = parent
        self.index = index
        self.detokenizer = detokenizer
        self.ledger = PartLedger(
            metrics,
            Siblings(1) if parent is None else parent.siblings,
            len(prompt.prompt_token_ids),
            params.max_tokens,
            params.n,
        )
        self._token_ids: list[int] = [] if detokenizer is None else detokenizer.token_ids
        self._stream_interval = stream_interval
        self._num_sent = 0
        self._has_sent = False
        self._logprob_maker = LogprobMaker(params, token_text)
        wants_logprobs = params.logprobs is not None or params.logprob_token_ids is not None
        self._logprobs: TokenLogprobs | None = (
            self._logprob_maker.start() if wants_logprobs else None
        )
        self._cumulative_logprob = 0.0
        self._prompt_logprobs: PromptLogprobs | None = None
        self.num_cached_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        """Generated tokens that belong to the answer."""
        return len(self._token_ids)

    def update(self, output: EngineCoreOutput) -> tuple[str | None, int | str | None]:
        """Take in what the core gave. Returns finish_reason and stop_reason, stop strings seen."""
        reason, stop_reason = output.finish_reason, output.stop_reason
        if self.num_cached_tokens is None:
            self.num_cached_tokens = output.num_cached_tokens
        matched = None
        if self.detokenizer is None:
            self._token_ids.extend(output.new_token_ids)
        elif output.new_token_ids:
            is_stopped = reason is FinishReason.STOP and not output.ends_with_text
            matched = self.detokenizer.update(output.new_token_ids, stop_terminated=is_stopped)
        if output.logprobs is not None and self._logprobs is not None:
            # A stop string may have cut tokens off.
            for entry in output.logprobs[: len(self._token_ids) - len(self._logprobs)]:
                self._logprob_maker.append(self._logprobs, entry)
                self._cumulative_logprob += entry.logprobs[0]
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = self._logprob_maker.prompt(output.prompt_logprobs)
        if matched is not None:
            return "stop", matched
        return (None if reason is None else str(reason)), stop_reason

    def make_output(
        self,
        finish_reason: str | None,
        stop_reason: int | str | None = None,
        error: str | None = None,
        error_param: str | None = None,
    ) -> RequestOutput | None:
        """What is to be passed on now; None when nothing is yet."""
        is_finished = finish_reason is not None
        if not is_finished:
            if self._is_final_only:
                return None
            num_new = len(self._token_ids) - self._num_sent
            if num_new < self._stream_interval and self._has_sent:
                return None
        answer = self._make_answer(finish_reason, stop_reason, error, error_param)
        parent = self.parent
        answers = [answer]
        if parent is not None:
            answers, is_finished = parent.take(answer)
            if not answers:
                return None
        prompt_logprobs = self._prompt_logprobs
        if self._has_sent and self._is_delta:
            prompt_logprobs = None
        self._has_sent = True
        return RequestOutput(
            self.external_id,
            self.prompt.prompt,
            self.prompt.prompt_token_ids,
            answers,
            is_finished,
            prompt_logprobs,
            self.num_cached_tokens,
            self.ledger.metrics,
        )

    def _make_answer(
        self,
        finish_reason: str | None,
        stop_reason: int | str | None,
        error: str | None,
        error_param: str | None,
    ) -> CompletionOutput:
        is_delta = self._is_delta
        start = self._num_sent if is_delta else 0
        text = ""
        if self.detokenizer is not None:
            text = self.detokenizer.next_text(finished=finish_reason is not None, delta=is_delta)
        logprobs = self._logprobs
        answer = CompletionOutput(
            self.index,
            text,
            self._token_ids[start:],
            None if logprobs is None else self._cumulative_logprob,
            None if logprobs is None else logprobs[start:],
            finish_reason,
            stop_reason,
            error,
            error_param,
        )
        self._num_sent = len(self._token_ids)
        return answer
