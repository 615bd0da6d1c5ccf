"""Which requests have run out of time. Costs nothing per step while nobody's time is over."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from headrace.core.request import Request, RequestStatus

SLACK = 16


class _Entry(NamedTuple):
    at: float
    number: int
    """Of the entry: requests are never compared."""
    request: Request
    is_for_queue: bool
    """Whether it is the limit of the time until the request is started."""


class Deadlines:
    """A heap by time. Requests that end before their time stay as entries until they are swept.

    They are swept when they outnumber the live ones, so that no operation scans the requests that
    wait, on average, and memory stays within a few times of what lives.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._num_added = 0
        self._num_requests = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Take in a request that has just been queued; one without limits is left out."""
        for at, is_for_queue in ((request.ends_at, False), (request.starts_by, True)):
            if at is not None:
                self._num_added += 1
                entry = _Entry(at, self._num_added, request, is_for_queue)
                heapq.heappush(self._heap, entry)
        self._num_requests += _has_limit(request)

    def forget(self, request: Request) -> None:
        """A request has ended (its status says so)."""
        self._num_requests -= _has_limit(request)
        if self._num_requests == 0:
            self._heap.clear()
        elif len(self._heap) > 4 * self._num_requests + SLACK:
            self._heap = [entry for entry in self._heap if _is_live(entry)]
            heapq.heapify(self._heap)

    def is_due(self, now: float) -> bool:
        """Whether `pop_expired` may have something to give."""
        return bool(self._heap) and self._heap[0].at <= now

    def pop_expired(self, now: float) -> list[Request]:
        """Live requests whose time is over, each once."""
        expired: dict[str, Request] = {}
        while self.is_due(now):
            entry = heapq.heappop(self._heap)
            if _is_live(entry):
                expired[entry.request.request_id] = entry.request
        return list(expired.values())


def _has_limit(request: Request) -> bool:
    return request.ends_at is not None or request.starts_by is not None


def _is_live(entry: _Entry) -> bool:
    request = entry.request
    if entry.is_for_queue and request.scheduled_at is not None:
        return False
    return request.status is not RequestStatus.FINISHED
