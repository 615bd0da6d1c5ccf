"""Drafter: how long drafts are, and when there is none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.config.engine import SpeculativeConfig
from headrace.core.drafter import MAX_REST, PROBE_TOKENS, Drafter

PATTERN = [1, 2, 3] * 10


def make_drafter(num_tokens: int = 8) -> Drafter:
    return Drafter(
        SpeculativeConfig(
            num_speculative_tokens=num_tokens,
            prompt_lookup_min=1,
            prompt_lookup_max=3,
            disable_by_batch_size=8,
        )
    )


def test_the_first_draft_is_short() -> None:
    assert make_drafter().draft(PATTERN, 100, 1) == [1, 2, 3]
    assert make_drafter(2).draft(PATTERN, 100, 1) == [1, 2]


@pytest.mark.parametrize("limit", [-1, 0, 1, 5])
def test_a_draft_keeps_the_limit(limit: int) -> None:
    drafter = make_drafter()
    drafter.note(8, 8, len(PATTERN))
    assert len(drafter.draft(PATTERN, limit, 1)) == max(0, limit)


@pytest.mark.parametrize(("num_right", "length"), [(1, 3), (2, 5), (3, 7), (4, 8)])
def test_the_next_draft_is_at_most_twice_what_was_right_and_one(
    num_right: int, length: int
) -> None:
    drafter = make_drafter()
    drafter.note(num_right, num_right, len(PATTERN))
    assert len(drafter.draft(PATTERN, 100, 1)) == length


def test_drafts_without_a_right_token_come_more_and_more_rarely() -> None:
    drafter = make_drafter()
    tokens = [0, 0]
    drafted_at: list[int] = []
    for _ in range(1000):
        draft = drafter.draft(tokens, 100, 1)
        tokens.append(0)
        if draft:
            drafted_at.append(len(tokens))
            drafter.note(len(draft), 0, len(tokens))
    waits = [b - a for a, b in pairwise(drafted_at)]
    assert waits[:7] == [PROBE_TOKENS, 8, 8, 8, 16, 32, 64]
    assert set(waits[6:]) == {MAX_REST}


def test_a_right_token_ends_the_rests() -> None:
    drafter = make_drafter()
    for _ in range(5):
        drafter.note(1, 0, len(PATTERN))
    assert drafter.draft(PATTERN, 100, 1) == []
    drafter.note(3, 3, len(PATTERN))
    assert len(drafter.draft(PATTERN, 100, 1)) == 7


@pytest.mark.parametrize(
    ("num_right", "num_running", "pays"),
    [(2, 1, False), (3, 1, True), (3, 2, False), (5, 2, True), (5, 4, False), (7, 4, True)],
)
def test_a_draft_must_be_right_the_more_often_the_more_requests_run(
    num_right: int, num_running: int, pays: bool
) -> None:
    drafter = make_drafter()
    for _ in range(100):
        drafter.note(10, num_right, len(PATTERN) - 20)
    assert (len(drafter.draft(PATTERN, 100, num_running)) > 1) == pays


def test_while_drafts_do_not_pay_one_token_is_tried_now_and_then() -> None:
    drafter = make_drafter()
    for _ in range(100):
        drafter.note(10, 3, 20)
    drafted = [len(drafter.draft(PATTERN[:length], 100, 4)) for length in range(20, 30)]
    assert drafted == [0] * 7 + [1, 1, 1]
    drafter.note(1, 1, 28)
    assert drafter.draft(PATTERN[:28], 100, 4) == []
