"""Who may be scheduled: everybody, only those who came before the gate closed, or nobody."""

from __future__ import annotations

from headrace.core.request import Request
from headrace.core.request_queue import RequestQueue


class Gate:
    """Stands before the queue of waiting requests.

    Attributes:
        is_shut: nothing is scheduled, not even what is running; requests are still queued.
    """

    def __init__(self, waiting: RequestQueue) -> None:
        self.is_shut = False
        self._waiting = waiting
        self._held: dict[str, Request] | None = None
        """While the gate closes: those who came since, in their order."""

    @property
    def is_open(self) -> bool:
        """Whether everybody may be scheduled."""
        return not self.is_shut and self._held is None

    @property
    def is_closing(self) -> bool:
        """Whether those who came before are still let through."""
        return self._held is not None

    @property
    def num_held(self) -> int:
        """Requests that wait behind the gate."""
        return 0 if self._held is None else len(self._held)

    @property
    def held(self) -> list[Request]:
        """Those, in their order."""
        return list((self._held or {}).values())

    def push(self, request: Request) -> None:
        """Queue a new request, behind the gate while it closes."""
        if self._held is None:
            self._waiting.push(request)
        else:
            self._held[request.request_id] = request

    def remove(self, request: Request) -> None:
        """Take out a waiting request, on whichever side it is."""
        if self._held is None or self._held.pop(request.request_id, None) is None:
            self._waiting.remove(request)

    def close(self) -> None:
        """Let nobody else through from now on; who came before goes on."""
        if self._held is None and not self.is_shut:
            self._held = {}

    def shut(self) -> None:
        """Stop everything. Those behind the gate join the queue."""
        self._let_in()
        self.is_shut = True

    def open(self) -> None:
        """Let everybody through."""
        self._let_in()
        self.is_shut = False

    def _let_in(self) -> None:
        held, self._held = self._held, None
        for request in (held or {}).values():
            self._waiting.push(request)
