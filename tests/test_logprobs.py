"""The flat container of log-probabilities is a list of maps to whoever looks at it."""

from __future__ import annotations

import pytest

from headrace.logprobs import FlatLogprobs, Logprob, TokenLogprobMap

MAPS: list[TokenLogprobMap | None] = [
    None,
    {5: Logprob(-0.5, 1, "a"), 6: Logprob(-1.5, 2, None)},
    {7: Logprob(-2.0, 9, "b")},
]


@pytest.fixture
def flat() -> FlatLogprobs:
    made = FlatLogprobs()
    made.extend(MAPS)
    return made


def test_positions_are_maps(flat: FlatLogprobs) -> None:
    assert len(flat) == 3
    assert list(flat) == MAPS
    assert flat == MAPS
    assert flat[-1] == MAPS[-1]
    with pytest.raises(IndexError):
        flat[3]


def test_columns_are_flat(flat: FlatLogprobs) -> None:
    assert (flat.start_indices, flat.end_indices) == ([0, 0, 2], [0, 2, 3])
    assert flat.token_ids == [5, 6, 7]
    assert flat.logprobs == [-0.5, -1.5, -2.0]
    assert flat.ranks == [1, 2, 9]
    assert flat.decoded_tokens == ["a", None, "b"]


def test_slices_are_flat_and_share_nothing(flat: FlatLogprobs) -> None:
    part = flat[1:]
    assert isinstance(part, FlatLogprobs)
    assert part == MAPS[1:]
    part.append({1: Logprob(0.0)})
    assert flat == MAPS


def test_extending_by_another_joins_them(flat: FlatLogprobs) -> None:
    joined = flat[:2]
    joined.extend(flat[2:])
    assert joined == flat
    assert joined != flat[:2]
    assert flat != 5
