"""NgramIndex beside a scan of all tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ngram_index import NgramIndex
from tests.oracles.ngrams import continuation

SIZES = st.tuples(st.integers(1, 5), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    # How many tokens come between two look-ups, and how long the guesses are.
    growth=st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(1, 9))),
    sizes=SIZES,
)
def test_continuations_of_a_growing_sequence_equal_those_of_a_scan(
    prompt: list[int], growth: list[tuple[list[int], int]], sizes: tuple[int, int]
) -> None:
    index = NgramIndex(*sizes)
    tokens = list(prompt)
    for more, count in growth:
        tokens += more
        assert index.continuation(tokens, count) == continuation(tokens, count, *sizes)


def test_the_longest_run_wins_over_a_later_one() -> None:
    tokens = [1, 2, 3, 50, 9, 3, 60, 1, 2, 3]
    assert NgramIndex(1, 3).continuation(tokens, 2) == [50, 9]
    assert NgramIndex(1, 1).continuation(tokens, 2) == [60, 1]


def test_of_equal_runs_the_last_one_wins() -> None:
    assert NgramIndex(2, 2).continuation([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([5, 5], [5, 5, 5, 5, 5]), ([1, 2, 1], [2, 1, 2, 1, 2]), ([1, 2, 3, 1], [2, 3, 1, 2, 3])],
)
def test_a_pattern_goes_on_beyond_what_is_known(tokens: list[int], expected: list[int]) -> None:
    assert NgramIndex(1, 3).continuation(tokens, 5) == expected


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4]])
def test_nothing_that_stood_before_gives_no_guess(tokens: list[int]) -> None:
    assert NgramIndex(1, 3).continuation(tokens, 5) == []
