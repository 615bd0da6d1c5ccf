"""The HTTP requests whose answers are being made: whose they are, what they take, how to end them.

Holds each key to its limits. On the event loop only; each request is held by one `async with`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.engine.admission import ServedRate
from headrace.engine.client import EngineClient, RequestOutputStream
from headrace.errors import ValidationError
from headrace.sampling_params import SamplingParams
from headrace.server.access.caller import Caller
from headrace.server.errors import KeyLimitError

MAX_SHOWN_HANDLES = 20
_LIMITED_BY = {"max_num_reqs": "n", "max_num_queued_reqs": "n", "max_num_tokens": "max_tokens"}
"""A limit of a key -> the field a client may lower to stay within it."""


@dataclass(eq=False, slots=True)
class OpenRequest:
    """One of them.

    Attributes:
        id: as its answer names it; a client may have given it, so others may have the same.
        handle: what only it is called, for whoever wants to end it.
        num_answers, num_prompt_tokens, max_tokens: of its prompts together, each of which counts
            once for num_prompt_tokens; max_tokens is what prompts and answers may come to.
        trace_headers: `traceparent` and `tracestate`, where it has them.
        streams: its requests in the engine, once they are there.
        is_ended: somebody asked for its end.
    """

    id: str
    route: str
    caller: Caller
    num_answers: int
    num_prompt_tokens: int
    max_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    streams: list[RequestOutputStream] = field(default_factory=list)
    is_ended: bool = False
    began: float = field(default_factory=time.monotonic)
    handle: str = field(default_factory=lambda: f"req-{secrets.token_hex(8)}")

    @property
    def core_ids(self) -> list[str]:
        """Its ids in the core."""
        return [core_id for stream in self.streams for core_id in stream.core_ids]

    @property
    def num_queued_tokens(self) -> int:
        """What waits before its first tokens: each prompt once for each of its answers."""
        return self.num_prompt_tokens * self.params.n

    @property
    def is_queued(self) -> bool:
        """Whether no token of it has come yet."""
        return all(stream.metrics.first_token_ts is None for stream in self.streams)

    async def end(self, engine: EngineClient) -> None:
        """End it: its client gets what there is, and finish_reason `abort`."""
        self.is_ended = True
        if self.streams:
            await engine.abort(self.core_ids, internal=True)


def find_request(among: Iterable[OpenRequest], name: str) -> OpenRequest | None:
    """The one with this handle, or the only one with this id; None when there is none.

    Raises:
        ValidationError: several have this id; the message lists their handles.
    """
    found = [one for one in among if name in (one.handle, one.id)]
    if len(found) > 1:
        shown = ", ".join(one.handle for one in found[:MAX_SHOWN_HANDLES])
        left = len(found) - MAX_SHOWN_HANDLES
        more = f" and {left} more" if left > 0 else ""
        raise ValidationError(
            f"{len(found)} requests under way have this id; name one of them by its handle: "
            f"{shown}{more}",
            param="request_id",
        )
    return found[0] if found else None


class _Use:
    """What one key has under way."""

    def __init__(self) -> None:
        self.requests: dict[int, OpenRequest] = {}
        self.num_coming = 0
        """Answers of requests that are being read and rendered."""
        self.rate = ServedRate()


class OpenRequests:
    """All of one server."""

    def __init__(self) -> None:
        self.on_end: list[Callable[[OpenRequest], None]] = []
        """Told of each request that has ended. Must be quick."""
        self._uses: dict[str | None, _Use] = {}

    def __len__(self) -> int:
        return sum(len(use.requests) for use in self._uses.values())

    def of(self, caller: Caller) -> list[OpenRequest]:
        """What a caller may see: its own, and everything without keys or with the scope `admin`."""
        if caller.key is not None and "admin" not in caller.key.scopes:
            use = self._uses.get(caller.name)
            return [] if use is None else list(use.requests.values())
        return self.all()

    def all(self) -> list[OpenRequest]:
        """Everybody's."""
        return [one for use in self._uses.values() for one in use.requests.values()]

    @contextmanager
    def admit(self, caller: Caller, num_answers: int) -> Iterator[None]:
        """Let answers come: they count as queued inside the `with` block.

        Raises:
            KeyLimitError: with them the key would pass a limit.
            ValidationError: they alone would.
        """
        if caller.key is None:
            yield
            return
        use = self._use_of(caller)
        self._check(caller, use, num_answers, 0, 0)
        use.num_coming += num_answers
        try:
            yield
        finally:
            use.num_coming -= num_answers

    def open(self, request: OpenRequest) -> None:
        """Take in a request, until it is closed.

        Raises:
            KeyLimitError: with it the key would pass a limit.
            ValidationError: it alone would.
        """
        self.check([request])
        self._use_of(request.caller).requests[id(request)] = request

    def check(self, requests: Sequence[OpenRequest]) -> None:
        """Whether all of these, which are of one caller, may be opened.

        Raises:
            KeyLimitError: with them the key would pass a limit.
            ValidationError: they alone would.
        """
        caller = requests[0].caller
        self._check(
            caller,
            self._use_of(caller),
            sum(one.num_answers for one in requests),
            sum(one.num_queued_tokens for one in requests),
            sum(one.max_tokens for one in requests),
        )

    def close(self, request: OpenRequest) -> None:
        """Let go of a request. Idempotent."""
        use = self._uses.get(request.caller.name)
        if use is not None and use.requests.pop(id(request), None) is not None:
            use.rate.note(request.num_queued_tokens)
            if request.streams:
                for tell in self.on_end:
                    tell(request)

    def _use_of(self, caller: Caller) -> _Use:
        return self._uses.setdefault(caller.name, _Use())

    def _check(
        self, caller: Caller, use: _Use, num_answers: int, num_queued_tokens: int, max_tokens: int
    ) -> None:
        """Raise when this much more would pass a limit of the caller's key."""
        if caller.key is None:
            return
        limits, live = caller.key.limits, use.requests.values()
        if limits.max_num_reqs is not None:
            under_way = use.num_coming + sum(one.num_answers for one in live)
            _check_limit(use, "max_num_reqs", limits.max_num_reqs, under_way, num_answers)
        if limits.max_num_tokens is not None:
            tokens = sum(one.max_tokens for one in live)
            _check_limit(use, "max_num_tokens", limits.max_num_tokens, tokens, max_tokens)
        if limits.max_num_queued_reqs is None and limits.max_num_queued_tokens is None:
            return
        queued = [one for one in live if one.is_queued]
        if limits.max_num_queued_reqs is not None:
            waiting = use.num_coming + sum(one.num_answers for one in queued)
            _check_limit(
                use, "max_num_queued_reqs", limits.max_num_queued_reqs, waiting, num_answers
            )
        if limits.max_num_queued_tokens is not None:
            name, limit = "max_num_queued_tokens", limits.max_num_queued_tokens
            tokens = sum(one.num_queued_tokens for one in queued)
            _check_limit(use, name, limit, tokens, num_queued_tokens)


def _check_limit(use: _Use, name: str, limit: int, used: int, more: int) -> None:
    if used + more <= limit:
        return
    by_tokens = name.endswith("tokens")
    what = "tokens" if by_tokens else "answers"
    if more > limit:  # however long its client waited
        raise ValidationError(
            f"this key may have {limit} {what} under way ({name}), the request alone is for {more}",
            param=_LIMITED_BY.get(name),
        )
    raise KeyLimitError(
        f"this key is at its limit: {used} {what} are under way, {more} more would pass "
        f"{name} = {limit}",
        reason=f"key_{name}",
        retry_after=use.rate.seconds_for(used + more - limit, by_tokens=by_tokens),
    )


def total_tokens(
    num_prompt_tokens: Sequence[int], max_tokens: int | None, n: int, most: int
) -> int:
    """What prompts and their n answers each may come to.

    Args:
        most: tokens of the longest sequence.
    """
    return sum(n * min(most, num + (most if max_tokens is None else max_tokens))
               for num in num_prompt_tokens)  # fmt: skip
