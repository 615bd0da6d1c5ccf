"""Answers as plain values that are equal only when their bits are, and their first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.logprobs import PromptLogprobs, TokenLogprobMap, TokenLogprobs
from headrace.outputs import RequestOutput

Entry: TypeAlias = tuple[tuple[int, str, int | None], ...]
"""One position: token id, log-probability in hexadecimal (every bit of it) and rank of each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; `failure` is set when it did not end by its length."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Entry, ...]
    prompt_logprobs: tuple[Entry, ...]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part.

    Attributes:
        request: which subject, from 0.
        kind: its kind.
        place: `token` of the answer, or `prompt token`.
        position: of the token, from 0.
    """

    request: int
    kind: str
    place: str
    position: int
    expected: str
    got: str

    def __str__(self) -> str:
        where = f"differs at request {self.request} ({self.kind}) {self.place} {self.position}"
        return f"{where}: expected {self.expected}, got {self.got}"


def answer_of(output: RequestOutput) -> Answer:
    """The bits of a finished request."""
    one = output.outputs[0]
    failure = None
    if one.finish_reason != "length":
        failure = f"finish_reason {one.finish_reason}" + (f" ({one.error})" if one.error else "")
    return Answer(
        tuple(one.token_ids),
        _entries(one.logprobs),
        _entries(output.prompt_logprobs),
        failure,
    )


def first_difference(
    kinds: Sequence[str], expected: Sequence[Answer], got: Sequence[Answer]
) -> Difference | None:
    """The first request that differs, at the first token that does; None when all bits agree.

    Args:
        kinds: of the requests, in their order.
    """
    for request, (kind, right, found) in enumerate(zip(kinds, expected, got, strict=True)):
        if right == found:
            continue
        place, position, *values = _parting(right, found)
        return Difference(request, kind, place, position, *values)
    return None


def _parting(right: Answer, found: Answer) -> tuple[str, int, str, str]:
    """Place, position, and the two values there, of two answers that are not equal."""
    if len(right.prompt_logprobs) != len(found.prompt_logprobs):
        counts = (len(right.prompt_logprobs), len(found.prompt_logprobs))
        return "prompt token", 0, f"{counts[0]} log-probabilities", str(counts[1])
    for i, (a, b) in enumerate(zip(right.prompt_logprobs, found.prompt_logprobs, strict=True)):
        if a != b:
            return ("prompt token", i, *_entry_parting(a, b))
    for i, (left, other) in enumerate(zip(right.token_ids, found.token_ids, strict=False)):
        if left != other:
            return "token", i, str(left), str(other)
        a, b = _at(right.logprobs, i), _at(found.logprobs, i)
        if a != b:
            return ("token", i, *_entry_parting(a, b))
    shorter = min(len(right.token_ids), len(found.token_ids))
    return "token", shorter, _ending(right), _ending(found)


def _entry_parting(right: Entry, found: Entry) -> tuple[str, str]:
    for a, b in zip(right, found, strict=False):
        if a != b:
            return _shown(a), _shown(b)
    return f"{len(right)} log-probabilities", f"{len(found)}"


def _shown(one: tuple[int, str, int | None]) -> str:
    token_id, logprob, rank = one
    return f"log-probability {float.fromhex(logprob)!r} of {token_id} (rank {rank})"


def _ending(answer: Answer) -> str:
    end = answer.failure or "the end by length"
    return f"{end} after {len(answer.token_ids)} tokens"


def _at(entries: Sequence[Entry], position: int) -> Entry:
    return entries[position] if position < len(entries) else ()


def _entries(given: TokenLogprobs | PromptLogprobs | None) -> tuple[Entry, ...]:
    return tuple(_entry(one) for one in given or ())


def _entry(one: TokenLogprobMap | None) -> Entry:
    return tuple((i, entry.logprob.hex(), entry.rank) for i, entry in (one or {}).items())
