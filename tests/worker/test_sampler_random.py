"""The random numbers: the generator's published values, and the distributions that come of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace._native import philox4x32_10, uniform_draw
from headrace.sampling_params import SamplingParams
from headrace.worker.sampler import Sampler
from headrace.worker.sampling_state import SamplingState
from tests.oracles.sampler import kept_probabilities

NUM_DRAWS = 100_000
SLICE = 20_000
"""Rows that are sampled at once, to bound memory."""


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_with_published_inputs_gives_published_numbers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    assert list(philox4x32_10(counter, key)) == expected


def test_uniform_draw_uses_seed_as_key_and_index_as_counter() -> None:
    seed, index = 0x299F31D0_A4093822, 0x85A308D3_243F6A88
    low, high, *_ = philox4x32_10([0x243F6A88, 0x85A308D3, 0, 0], [0xA4093822, 0x299F31D0])
    assert uniform_draw(seed, index) == (((high << 32 | low) >> 12) + 0.5) / 2**52
    draws = [uniform_draw(seed, i) for seed in range(100) for i in range(100)]
    assert len(set(draws)) == len(draws)
    assert 0.0 < min(draws) < 0.001
    assert 0.999 < max(draws) < 1.0


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells of few expected hits are joined."""
    expected = probabilities * counts.sum()
    rare = expected < 10
    cells = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    cells, wanted = cells[wanted > 0], wanted[wanted > 0]
    return float(((cells - wanted) ** 2 / wanted).sum()), len(cells) - 1


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_k": 150},
        {"top_p": 0.7},
        {"top_p": 0.95, "temperature": 1.7},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 20, "min_p": 0.05, "temperature": 0.7},
        {"top_p": 0.8, "min_p": 0.05},
        {"min_p": 0.02, "top_k": 30, "top_p": 0.9, "temperature": 1.2},
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["seed", "position"])
def test_sample_over_many_draws_follows_the_distribution(values: dict[str, Any], by: str) -> None:
    vocab_size = 200
    logits = np.random.default_rng(3).normal(0.0, 2.0, vocab_size).astype(np.float32)
    params = SamplingParams(**values)
    probabilities = kept_probabilities(
        logits.astype(np.float64), params, params.top_p, params.min_p
    )
    sampler = Sampler(vocab_size, num_threads=1)
    if by == "seed":
        tokens = []
        for first in range(0, NUM_DRAWS, SLICE):
            seeds = range(first, first + SLICE)
            states = [SamplingState(params, seed, [], [], vocab_size) for seed in seeds]
            tokens += sampler.sample(np.tile(logits, (SLICE, 1)), states).token_ids
    else:
        state = SamplingState(params, 42, [], [], vocab_size)
        tokens = []
        for _ in range(NUM_DRAWS // 5):
            tokens += sampler.sample(logits[None].copy(), [state]).token_ids
            state.append(tokens[-1])
    counts = np.bincount(tokens, minlength=vocab_size)
    assert (counts[probabilities == 0] == 0).all()
    statistic, freedom = chi_square(counts, probabilities)
    # Four standard deviations above the mean of the statistic; the draws are fixed.
    assert statistic < freedom + 4 * np.sqrt(2 * max(freedom, 1))
    assert freedom >= 1


def test_sample_with_other_seeds_or_positions_gives_other_tokens() -> None:
    size = 4096
    sampler = Sampler(size, num_threads=1)
    params = SamplingParams()
    seeds = [0, 1, 2**32, 2**63 - 1, -1, -(2**63)]
    states = [SamplingState(params, seed, [], [], size) for seed in seeds]
    states.append(SamplingState(params, 0, [], [], size, output_token_ids=[5]))
    tokens = sampler.sample(np.zeros((len(states), size), np.float32), states).token_ids
    assert len(set(tokens)) == len(tokens)
