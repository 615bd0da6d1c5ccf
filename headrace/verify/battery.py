"""The battery: each case runs the subjects under another schedule and tells what it saw.

A case that did not do what its name says is not exercised, whatever its answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.verify.answers import Answer
from headrace.verify.session import Session
from headrace.verify.settings import PREEMPTION_BLOCK_SIZE
from headrace.verify.witness import Seen
from headrace.verify.workload import Question, Workload

STEP_SIZES = (7, 32)
"""Tokens of a step: a prime, and a power of two."""
PIECE_SIZES = (13, 33)
"""Tokens of one prompt in a step, odd."""
THREADS = (1, 2)
NUM_NEIGHBOURS = 12
MAX_STEPS_BEFORE_ABORT = 6


@dataclass(frozen=True, slots=True)
class Evidence:
    """What happened, in words, and whether it is what the case is about."""

    words: str
    is_exercised: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        name: what is varied.
        run: asks the subjects; their answers in order, and what happened.
        options: of the engine, on top of the caller's.
    """

    name: str
    run: Callable[[Session, Workload], tuple[list[Answer], Evidence]]
    options: dict[str, Any] = field(default_factory=dict)


UNCACHED = {"enable_prefix_caching": False}


def make_cases(workload: Workload) -> list[Case]:
    """All cases; the first is what the others are compared with."""
    size = workload.settings.batch_size
    cases = [
        Case("alone", alone, UNCACHED),
        Case(f"in a batch of {size}", in_a_batch, UNCACHED | {"max_num_seqs": size}),
    ]
    for tokens in STEP_SIZES:
        limits = {"max_num_batched_tokens": tokens, "max_num_seqs": tokens}
        cases.append(Case(f"steps of at most {tokens} tokens", in_pieces, UNCACHED | limits))
    for tokens in PIECE_SIZES:
        limits = {"long_prefill_token_threshold": tokens}
        name = f"prompts in pieces of {tokens} tokens"
        cases.append(Case(name, in_pieces, UNCACHED | limits))
    cases += [
        Case("prefix cache, asked again", asked_again),
        Case("prefix cache, shared beginnings", with_shared_beginnings),
        Case("preemption, computed again", preempted, tiny_cache(workload) | UNCACHED),
        Case("preemption, with prefix cache", preempted, tiny_cache(workload)),
        Case(
            "neighbours aborted midway",
            with_aborted_neighbours,
            UNCACHED | {"max_num_batched_tokens": 64, "max_num_seqs": 64},
        ),
    ]
    for count in THREADS:
        name = f"{count} thread" + "s" * (count > 1)
        run = partial(on_threads, count=count)
        cases.append(Case(name, run, UNCACHED | {"num_threads": count}))
    return cases


def tiny_cache(workload: Workload) -> dict[str, Any]:
    """Options under which the first two subjects start together and cannot both be finished.

    They have one prompt; each answer takes three blocks or more, and two are left.
    """
    settings = workload.settings
    longest = settings.input_len + settings.output_len
    num_blocks = max(2 * _blocks(settings.input_len) + 2, _blocks(longest))
    return {
        "block_size": PREEMPTION_BLOCK_SIZE,
        "num_gpu_blocks_override": num_blocks,
        "max_model_len": longest,
    }


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // PREEMPTION_BLOCK_SIZE)


# -- how the subjects are asked ----------------------------------------------------------------


def alone(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """One after the other."""
    ids: list[str] = []
    answers: list[Answer] = []
    for subject in workload.subjects:
        ids.append(session.add(subject))
        answers += session.answer(ids[-1:])
    most = max(one.company for one in session.seen(ids))
    return answers, Evidence(f"{_count(most, 'request')} in a step", most == 1)


def in_a_batch(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """Spread among others, all of them at once."""
    size = workload.settings.batch_size
    others = workload.neighbours(size - len(workload.subjects))
    ids, _ = _add_among(session, workload.subjects, others)
    answers = session.answer(ids)
    least = min(one.company for one in session.seen(ids))
    return answers, Evidence(f"up to {least} requests in a step for each", least == size)


def in_pieces(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """All at once, where a prompt does not fit a step."""
    ids = [session.add(subject) for subject in workload.subjects]
    answers = session.answer(ids)
    pieces = [one.num_pieces for one in session.seen(ids)]
    cut = [count for count in pieces if count > 1]
    words = f"{len(cut)} of {len(pieces)} prompts in {_range(cut)} pieces"
    return answers, Evidence(words, len(cut) > 0)


def asked_again(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """All at once, after they have been answered before."""
    for _ in range(2):
        ids = [session.add(subject) for subject in workload.subjects]
        answers = session.answer(ids)
    return answers, _cache_evidence(session, workload, ids)


def with_shared_beginnings(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """All at once, after others that begin alike."""
    session.answer([session.add(one) for one in workload.beginnings()])
    ids = [session.add(subject) for subject in workload.subjects]
    answers = session.answer(ids)
    return answers, _cache_evidence(session, workload, ids)


def _cache_evidence(session: Session, workload: Workload, ids: Sequence[str]) -> Evidence:
    """What was found of the prompts that may be: scored ones are always computed."""
    counts = [
        seen.num_cached_tokens
        for seen, subject in zip(session.seen(ids), workload.subjects, strict=True)
        if subject.kind != "scored"
    ]
    found = [count for count in counts if count > 0]
    words = f"{_range(found)} cached tokens in {len(found)} of {len(counts)} prompts"
    return Evidence(words, len(found) > 0)


def preempted(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """All at once, in a cache that cannot hold them."""
    ids = [session.add(subject) for subject in workload.subjects]
    answers = session.answer(ids)
    again = [one.num_starts - 1 for one in session.seen(ids)]
    hit = sum(count > 0 for count in again)
    words = f"{_count(sum(again), 'preemption')} of {_count(hit, 'request')}"
    return answers, Evidence(words, hit > 0)


def with_aborted_neighbours(session: Session, workload: Workload) -> tuple[list[Answer], Evidence]:
    """Among others that are ended after a few steps, some within their prompts."""
    others = workload.long_neighbours(NUM_NEIGHBOURS)
    ids, other_ids = _add_among(session, workload.subjects, others)
    waiting = {name: 1 + i % MAX_STEPS_BEFORE_ABORT for i, name in enumerate(other_ids)}
    aborted: list[Seen] = []

    def abort_some() -> None:
        for name in list(waiting):
            seen = session.witness.seen.get(name)
            if seen is not None and (seen.num_steps >= waiting[name] or seen.is_forgotten):
                del waiting[name]
                if not seen.is_forgotten:
                    session.engine.abort_request([name], internal=True)
                    aborted.append(seen)

    answers = session.answer(ids, abort_some)
    running = sum(one.is_forgotten for one in aborted)
    prefilling = sum(one.is_prefilling for one in aborted)
    steps = _range([one.num_steps for one in aborted])
    words = f"{running} ended in steps {steps}, {prefilling} in the prompt"
    return answers, Evidence(words, running == len(others))


def on_threads(
    session: Session, workload: Workload, *, count: int
) -> tuple[list[Answer], Evidence]:
    """All at once, on so many threads."""
    ids = [session.add(subject) for subject in workload.subjects]
    answers = session.answer(ids)
    used = session.witness.call_worker("num_threads", (), {})
    return answers, Evidence(f"{_count(used, 'thread')} computed", used == count)


def _add_among(
    session: Session, subjects: Sequence[Question], others: Sequence[Question]
) -> tuple[list[str], list[str]]:
    """Queue both, the subjects evenly among the others; their ids."""
    ids: list[str] = []
    other_ids: list[str] = []
    for i, subject in enumerate(subjects):
        until = len(others) * (i + 1) // len(subjects)
        other_ids += [session.add(one) for one in others[len(other_ids) : until]]
        ids.append(session.add(subject))
    return ids, other_ids


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"
