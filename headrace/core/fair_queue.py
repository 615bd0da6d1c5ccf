"""The waiting requests of several tenants, shared fairly: deficit round robin, by tokens.

Within a priority, the tenants that have requests waiting take turns. Each has a balance of tokens.
While it is in credit its requests go, and each is charged for the tokens it is known to have; what
it answers is charged when it ends. A tenant without credit gets QUANTUM tokens and goes to the end
of the round. Nothing is charged while no other tenant waits: what nobody else wanted is free. So
with one tenant the order is the policy's own.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from headrace.core.request import Request
from headrace.core.request_queue import RequestQueue, make_request_queue

QUANTUM = 128
"""Tokens of credit per round: of the size of a short request, so that turns are short."""
RECENT_ANSWERS = 16
Tenant: TypeAlias = str | None


class FairQueue:
    """A `RequestQueue` that is fair between tenants.

    A request is announced by `join` before it is first pushed, and `leave` is called once at its
    end, wherever it was: balances are kept as long as a tenant has live requests.

    No operation depends on the number of waiting requests; where the turn passes on, it may look at
    each tenant that waits.

    Args:
        policy: in which order the requests of one tenant wait; priorities stand above tenants.
    """

    def __init__(self, policy: Literal["fcfs", "priority"]) -> None:
        self._policy = policy
        self._rounds: dict[int, OrderedDict[Tenant, RequestQueue]] = {}
        """Per priority: the tenants that wait, in the order of their turns."""
        self._priorities: list[int] = []
        """A heap. Some may have nobody any more."""
        self._balances: dict[Tenant, int] = {}
        self._num_live: dict[Tenant, int] = {}
        self._num_waiting: dict[Tenant, int] = {}
        """Only of tenants that wait."""
        self._len = 0
        self.mean_answer = 0.0
        """Tokens of an answer, of late."""

    def __len__(self) -> int:
        return self._len

    # The life of a request

    def join(self, request: Request) -> None:
        """A request comes to live here."""
        tenant = request.tenant
        self._balances.setdefault(tenant, QUANTUM)
        self._num_live[tenant] = self._num_live.get(tenant, 0) + 1

    def push(self, request: Request) -> None:
        """Add a request that is new; a tenant that did not wait comes last in the round."""
        self._queue_for(request).push(request)
        self._note_waiting(request.tenant, 1)

    def put_back(self, request: Request) -> None:
        """Return a request that was popped before: ahead of all of its tenant that came after it,
        and its tenant's turn is next. What it was charged is given back."""
        tenant = request.tenant
        self._queue_for(request).put_back(request)
        self._rounds[request.order[0]].move_to_end(tenant, last=False)
        self._balances[tenant] += request.num_charged
        request.num_charged = 0
        self._note_waiting(tenant, 1)

    def peek(self) -> Request:
        """The next request. Raises IndexError when empty."""
        turns = self._best_round()
        _find_turn(turns, self._balances)
        return next(iter(turns.values())).peek()

    def pop(self) -> Request:
        """Take out the next request. Raises IndexError when empty."""
        request = self.peek()
        self.remove(request)
        request.num_charged = self._charge(request.tenant, len(request.token_ids))
        return request

    def remove(self, request: Request) -> None:
        """Take out this request, wherever it is. Raises KeyError when it is not here."""
        tenant, priority = request.tenant, request.order[0]
        turns = self._rounds[priority]
        queue = turns[tenant]
        queue.remove(request)
        if not len(queue):
            del turns[tenant]
        if not turns:
            del self._rounds[priority]
            if len(self._priorities) > 2 * len(self._rounds):
                self._priorities = sorted(self._rounds)
        self._note_waiting(tenant, -1)

    def leave(self, request: Request) -> None:
        """A request has ended and waits no more; its answer is charged."""
        tenant = request.tenant
        num_answered = len(request.token_ids) - request.num_prompt_tokens
        self._charge(tenant, num_answered)
        self.mean_answer += (num_answered - self.mean_answer) / RECENT_ANSWERS
        self._num_live[tenant] -= 1
        if not self._num_live[tenant]:
            del self._num_live[tenant], self._balances[tenant]

    # State

    def in_order(self, num_answered: int = 0) -> Iterator[Request]:
        """All of them, in the order in which they go if nothing else comes.

        Args:
            num_answered: tokens of answer that each is taken to be charged for, too.
        """
        balances = self._balances.copy()
        num_waiting = self._num_waiting.copy()
        for priority in sorted(self._rounds):
            turns = OrderedDict(
                (tenant, list(queue.in_order())[::-1])
                for tenant, queue in self._rounds[priority].items()
            )
            while turns:
                _find_turn(turns, balances)
                tenant, requests = next(iter(turns.items()))
                request = requests.pop()
                if not requests:
                    del turns[tenant]
                num_waiting[tenant] -= 1
                if not num_waiting[tenant]:
                    del num_waiting[tenant]
                if _others_wait(tenant, num_waiting):
                    balances[tenant] -= len(request.token_ids) + num_answered
                yield request

    @property
    def num_entries(self) -> int:
        """Entries held in memory, those of removed requests included."""
        return sum(q.num_entries for turns in self._rounds.values() for q in turns.values())

    @property
    def num_tenants(self) -> int:
        """Tenants with live requests."""
        return len(self._balances)

    def _queue_for(self, request: Request) -> RequestQueue:
        priority = request.order[0]
        turns = self._rounds.get(priority)
        if turns is None:
            turns = self._rounds[priority] = OrderedDict()
            heapq.heappush(self._priorities, priority)
        queue = turns.get(request.tenant)
        if queue is None:
            queue = turns[request.tenant] = make_request_queue(self._policy)
        return queue

    def _best_round(self) -> OrderedDict[Tenant, RequestQueue]:
        """The tenants that wait at the best priority."""
        if not self._len:
            raise IndexError("no request is waiting")
        while (turns := self._rounds.get(self._priorities[0])) is None:
            heapq.heappop(self._priorities)
        return turns

    def _note_waiting(self, tenant: Tenant, change: int) -> None:
        self._len += change
        num = self._num_waiting.get(tenant, 0) + change
        if num:
            self._num_waiting[tenant] = num
        else:
            del self._num_waiting[tenant]

    def _charge(self, tenant: Tenant, num_tokens: int) -> int:
        """Take tokens off a balance if another tenant waits; how many were taken."""
        if not _others_wait(tenant, self._num_waiting):
            return 0
        self._balances[tenant] -= num_tokens
        return num_tokens


def _others_wait(tenant: Tenant, num_waiting: dict[Tenant, int]) -> bool:
    return len(num_waiting) > (tenant in num_waiting)


def _find_turn(turns: OrderedDict[Tenant, Any], balances: dict[Tenant, int]) -> None:
    """Bring a tenant that is in credit to the front."""
    while True:
        for _ in range(len(turns)):
            tenant = next(iter(turns))
            if balances[tenant] > 0:
                return
            balances[tenant] += QUANTUM
            turns.move_to_end(tenant)
        debt = min(-balances[tenant] for tenant in turns)
        if debt >= 0:  # the rounds in which nobody would come into credit, and the one after them
            credit = (debt // QUANTUM + 1) * QUANTUM
            for tenant in turns:
                balances[tenant] += credit
