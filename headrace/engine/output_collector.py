"""The one holder of a request on the reader's side: outputs go in at once, come out merged.

Putting never waits: what a slow reader has not taken is merged. Letting go is one path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from headrace.errors import EngineGenerateError, QueueTimeoutError, ValidationError
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
from headrace.sampling_params import RequestOutputKind

RETRY_AFTER_SECONDS = 1.0
"""What a caller is told whose request was not started in time."""


class RequestOutputCollector:
    """The stream of one request's outputs, for one reading task. See RequestOutputStream.

    Args:
        request_id: the caller's.
        kind: how outputs are merged: deltas are joined, others replaced.
        release: called once, when the reader lets go before the last output.
        core_ids: the request's in the core, once it has been sent there.

    Attributes:
        metrics: what the request took until now.
    """

    __slots__ = (
        "_error", "_is_done", "_kind", "_pending", "_release", "_take", "_waiter", "core_ids",
        "metrics", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        kind: RequestOutputKind,
        release: Callable[[], None],
        core_ids: Sequence[str] = (),
    ) -> None:
        self.request_id = request_id
        self.core_ids = core_ids
        self.metrics = RequestMetrics(time.time())
        self._kind = kind
        self._release: Callable[[], None] | None = release
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        """Raised once what is pending has been taken."""
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[RequestOutput], bool] | None = None
        self._is_done = False

    # The producer's side

    def begin(self, metrics: RequestMetrics) -> None:
        """The request has been taken in; its metrics from now on."""
        self.metrics = metrics

    def put(self, output: RequestOutput) -> None:
        """Take in an output."""
        for answer in output.outputs:
            if answer.finish_reason is not None and (error := _failure(answer)) is not None:
                self.fail(error)
                return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if self._take is not None and not output.finished:
                try:
                    if self._take(output):
                        return
                except Exception as error:  # the reader's business, not that of whoever puts
                    self.fail(error)
                    return
            waiter.set_result(None)
        if self._pending is None:
            self._pending = output
        else:
            _merge(self._pending, output, self._kind is RequestOutputKind.DELTA)

    def fail(self, error: Exception) -> None:
        """Let the reader have an error after what is pending. The first one counts."""
        if self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # The reader's side

    def __aiter__(self) -> RequestOutputCollector:
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output; all that came since the last one, merged."""
        while (output := self._pending) is None:
            if self._is_done:
                raise StopAsyncIteration
            if self._error is not None:
                self._let_go()
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._pending = None
        if output.finished:
            self._is_done = True
            self._release = None
        return output

    def push_to(self, take: Callable[[RequestOutput], bool]) -> None:
        """Let outputs that come while the reader waits be given to `take`. See
        RequestOutputStream."""
        self._take = take

    async def aclose(self) -> None:
        """Let go: the request is aborted unless it has finished. Idempotent."""
        self._let_go()

    def _let_go(self) -> None:
        release, self._release = self._release, None
        self._is_done = True
        self._pending = self._take = None
        if release is not None:
            release()
        self._wake()


def _failure(answer: CompletionOutput) -> Exception | None:
    """What the reader is to be told of an answer that could not be finished."""
    if answer.finish_reason == "error":
        error = answer.error or "the request failed"
        if answer.error_param is not None:
            return ValidationError(error, param=answer.error_param)
        return EngineGenerateError(error)
    if answer.finish_reason == "timeout" and answer.error is not None:
        return QueueTimeoutError(
            answer.error, reason="max_queue_ms", retry_after=RETRY_AFTER_SECONDS
        )
    return None


def _merge(pending: RequestOutput, new: RequestOutput, is_delta: bool) -> None:
    """Make `pending` what a reader would have who had taken both."""
    for answer in new.outputs:
        for i, old in enumerate(pending.outputs):
            if old.index == answer.index:
                if is_delta:
                    _join(old, answer)
                else:
                    pending.outputs[i] = answer
                break
        else:
            pending.outputs.append(answer)
    pending.finished = new.finished
    pending.metrics = new.metrics
    if pending.prompt_logprobs is None:
        pending.prompt_logprobs = new.prompt_logprobs


def _join(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids += new.token_ids
    if old.logprobs is not None and new.logprobs is not None:
        old.logprobs.extend(new.logprobs)
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
