"""The live requests of one engine: who waits, who runs, and how one comes, gives way and ends.

Decides nothing about steps: who is started or gives way, and when, is the scheduler's business.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import Literal

from headrace.core.crowd import Crowd
from headrace.core.deadlines import Deadlines
from headrace.core.fair_queue import FairQueue
from headrace.core.gate import Gate
from headrace.core.kv_cache import KVCacheManager
from headrace.core.request import Request, RequestStatus
from headrace.messages.outputs import EngineCoreOutput, FinishReason, RequestProgress

_ORDER = attrgetter("order")


class Roster:
    """The live requests, each either waiting or running.

    Args:
        kv_cache: where the blocks of those that run go back to.
        policy: in which order the requests of a tenant wait.
        now: monotonic clock, seconds.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        policy: Literal["fcfs", "priority"],
        now: Callable[[], float],
    ) -> None:
        self._kv_cache = kv_cache
        self._now = now
        self.requests: dict[str, Request] = {}
        """All of them."""
        self.waiting = FairQueue(policy)
        self.gate = Gate(self.waiting)
        self.deadlines = Deadlines()
        self.running: list[Request] = []
        """In `order`."""
        self.num_queued_tokens = 0
        """Of their prompts, not computed yet."""
        self.crowd = Crowd()
        self.num_preemptions = 0
        """Since the start."""
        self._finished_ids: list[str] = []
        """What the worker is still to be told to forget."""

    def add(self, request: Request) -> None:
        """Queue a request whose id is not live."""
        self.num_queued_tokens += request.num_prompt_tokens
        self.requests[request.request_id] = request
        self.waiting.join(request)
        self.crowd.join(request)
        self.gate.push(request)
        self.deadlines.add(request)

    # Waiting and running

    def start(self, request: Request, num_computed: int) -> None:
        """Let a request run that was taken out of the queue and has got blocks.

        Args:
            num_computed: its leading tokens that those blocks hold.
        """
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed
        self.num_queued_tokens -= min(num_computed, request.num_prompt_tokens)
        insort(self.running, request, key=_ORDER)

    def preempt_last(self) -> Request:
        """Take the blocks of the last running request; it waits, with its tokens."""
        request = self.running.pop()
        self._kv_cache.free(request)
        self.num_queued_tokens += min(request.num_computed_tokens, request.num_prompt_tokens)
        request.forget_computed()
        request.num_preemptions += 1
        request.status = RequestStatus.WAITING
        self.waiting.put_back(request)
        self._finished_ids.append(request.request_id)
        self.num_preemptions += 1
        return request

    def preempt_all(self) -> None:
        """The same for all of them, in their order."""
        while self.running:
            self.preempt_last()

    # The end of a request

    def end(self, request: Request) -> None:
        """End a request. The caller takes it out of the queue, or sweeps `running` later."""
        del self.requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            self._kv_cache.free(request)
            self._finished_ids.append(request.request_id)
        self.num_queued_tokens -= max(0, request.num_prompt_tokens - request.num_computed_tokens)
        request.status = RequestStatus.FINISHED
        self.waiting.leave(request)
        self.crowd.leave(request)
        self.deadlines.forget(request)

    def sweep(self) -> None:
        """Take those that have ended out of `running`."""
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]

    def abort(self, request_ids: list[str]) -> list[EngineCoreOutput]:
        """Forget these requests, free their blocks; their last outputs. Unknown ids are fine."""
        live = [self.requests[i] for i in dict.fromkeys(request_ids) if i in self.requests]
        return self._end_early(live, FinishReason.ABORT)

    def expire(self) -> list[EngineCoreOutput]:
        """End the requests whose time is over; their last outputs.

        One that was never started is refused, with an error to tell.
        """
        if not len(self.deadlines):
            return []
        return self._end_early(self.deadlines.pop_expired(self._now()), FinishReason.TIMEOUT)

    def _end_early(self, requests: list[Request], reason: FinishReason) -> list[EngineCoreOutput]:
        outputs: list[EngineCoreOutput] = []
        now = self._now()
        for request in requests:
            if request.status is RequestStatus.WAITING:
                self.gate.remove(request)
            self.end(request)
            error = None
            if reason is FinishReason.TIMEOUT and request.scheduled_at is None:
                waited = 1000 * (now - request.queued_at)
                error = (
                    f"the request waited {waited:.0f} ms without being started; its time "
                    "is over (deadline_ms, max_queue_ms)"
                )
            outputs.append(request.to_output([], now, finish_reason=reason, error=error))
        if outputs:
            self.sweep()
        return outputs

    def take_finished_ids(self) -> list[str]:
        """What the worker is to be told to forget; told once."""
        finished_ids, self._finished_ids = self._finished_ids, []
        return finished_ids

    def forget_worker(self) -> None:
        """The worker is gone, and with it all it knew. Not while requests run."""
        self._finished_ids = []

    # State

    def has_work(self) -> bool:
        """Whether a step is due: requests that may run, news the worker should get, time over."""
        if self._finished_ids:
            return True
        if not self.gate.is_shut and (self.running or len(self.waiting)):
            return True
        return len(self.deadlines) > 0 and self.deadlines.is_due(self._now())

    @property
    def is_drained(self) -> bool:
        """Whether nobody runs or waits, but for those behind a gate that closes."""
        return not self.running and not len(self.waiting)

    @property
    def num_present(self) -> int:
        """Requests that run or could be next."""
        return len(self.running) + len(self.waiting)

    @property
    def num_waiting(self) -> int:
        """Those that wait, on either side of the gate."""
        return len(self.waiting) + self.gate.num_held

    def progress(self, request_ids: list[str]) -> dict[str, RequestProgress]:
        """How far these requests are, those that are live. Looks at all that wait."""
        live = {i: self.requests[i] for i in request_ids if i in self.requests}
        places: dict[str, int] = {}
        if any(request.status is RequestStatus.WAITING for request in live.values()):
            in_order = self.waiting.in_order(round(self.waiting.mean_answer))
            waiting = [*in_order, *self.gate.held]
            places = {request.request_id: place for place, request in enumerate(waiting, 1)}
        return {i: _progress(request, places.get(i, 0)) for i, request in live.items()}

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, for leak checks."""
        return {
            "requests": len(self.requests),
            "running": len(self.running),
            "waiting": self.num_waiting,
            "deadlines": len(self.deadlines),
            "waiting_entries": self.waiting.num_entries,
            "tenants": self.waiting.num_tenants,
            "finished_ids": len(self._finished_ids),
            "queued_tokens": self.num_queued_tokens,
            **self.crowd.debug_state(),
        }


def _progress(request: Request, place: int) -> RequestProgress:
    is_known = request.num_computed_tokens >= request.num_prompt_tokens
    return RequestProgress(
        stage="waiting" if place else "decode" if is_known else "prefill",
        position=place,
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=min(request.num_computed_tokens, request.num_prompt_tokens),
        num_output_tokens=len(request.token_ids) - request.num_prompt_tokens,
        num_preemptions=request.num_preemptions,
    )
