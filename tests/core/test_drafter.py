"""Drafter: how long drafts are, and when there is none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.config.engine import SpeculativeConfig
from headrace.core.drafter import MAX_REST, Drafter

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
    assert make_drafter().draft(PATTERN, 100) == [1, 2, 3]
    assert make_drafter(2).draft(PATTERN, 100) == [1, 2]


@pytest.mark.parametrize("limit", [-1, 0, 1, 5])
def test_a_draft_keeps_the_limit(limit: int) -> None:
    drafter = make_drafter()
    drafter.note(8, len(PATTERN))
    assert len(drafter.draft(PATTERN, limit)) == max(0, limit)


@pytest.mark.parametrize(("num_accepted", "length"), [(0, 1), (1, 3), (2, 5), (3, 7), (4, 8)])
def test_the_next_draft_is_at_most_twice_what_was_right_and_one(
    num_accepted: int, length: int
) -> None:
    drafter = make_drafter()
    drafter.note(num_accepted, len(PATTERN))
    assert len(drafter.draft(PATTERN, 100)) == length


def test_drafts_without_a_right_token_come_more_and_more_rarely() -> None:
    drafter = make_drafter()
    tokens = [0, 0]
    drafted_at: list[int] = []
    for _ in range(1000):
        if drafter.draft(tokens, 100):
            drafted_at.append(len(tokens))
            tokens.append(0)
            drafter.note(0, len(tokens))
        else:
            tokens.append(0)
    waits = [b - a for a, b in pairwise(drafted_at)]
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 64, 64]
    assert set(waits[7:]) == {MAX_REST}


def test_a_right_token_ends_the_rests() -> None:
    drafter = make_drafter()
    for _ in range(5):
        drafter.note(0, len(PATTERN))
    assert drafter.draft(PATTERN, 100) == []
    drafter.note(3, len(PATTERN))
    drafter.note(0, len(PATTERN))
    assert len(drafter.draft(PATTERN, 100)) == 1
