"""The sampler beside its slow oracle: random rows, random parameters, all of them combined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import uniform_draw
from headrace.sampling_params import SamplingParams
from headrace.worker.sampler import Sampler
from headrace.worker.sampling_state import SamplingState
from tests.oracles.sampler import acceptable_tokens, edited_logits, log_softmax

SEED = 20_240_601
STEPS = 8


def quarters(count: int) -> float:
    return count / 4


def params_of(**values: Any) -> SamplingParams:
    bad_words = values.pop("bad_words_token_ids", None)
    params = SamplingParams(**values)
    params.bad_words_token_ids = bad_words
    return params


def check_steps(
    rows: np.ndarray, params: SamplingParams, stop_ids: list[int], prompt: list[int], seed: int
) -> None:
    """Generate a token from each row [num_steps, vocab_size] in turn, each against the oracle."""
    vocab_size = rows.shape[1]
    sampler = Sampler(vocab_size, num_threads=1)
    state = SamplingState(params, seed, stop_ids, prompt, vocab_size)
    output: list[int] = []
    for row in rows:
        edited = edited_logits(row, params, stop_ids, prompt, output)
        sampled = sampler.sample(row[None].copy(), [state])
        if np.isneginf(edited).all():
            assert "no token may be generated" in sampled.errors[0]
            assert sampled.token_ids == [-1]
            return
        assert sampled.errors == {}
        draw = uniform_draw(seed % 2**64, len(output))
        assert sampled.token_ids[0] in acceptable_tokens(edited, params, draw)
        if params.logprobs is not None:
            check_logprobs(sampled.logprobs[0], row, sampled.token_ids[0], params.logprobs)
        state.append(sampled.token_ids[0])
        output += sampled.token_ids
    assert state.num_output_tokens == len(output)


def check_logprobs(entry: Any, row: np.ndarray, chosen: int, count: int) -> None:
    expected = log_softmax(row)
    order = np.lexsort((np.arange(len(row)), -row))[: len(row) if count == -1 else count]
    assert entry.token_ids == [chosen, *order.tolist()]
    np.testing.assert_allclose(entry.logprobs, expected[entry.token_ids], rtol=0, atol=2e-6)
    assert entry.rank == 1 + int((row > row[chosen]).sum())


@st.composite
def logit_rows(draw: st.DrawFn) -> np.ndarray:
    """[STEPS, vocab_size]: smooth rows, rows full of ties, rows with impossible tokens."""
    vocab_size = draw(st.sampled_from([1, 2, 15, 16, 17, 100, 255, 256, 257, 600, 1030]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 0.3, 2.0, 10.0]))
    rows = rng.normal(0.0, spread, (STEPS, vocab_size))
    kind = draw(st.sampled_from(["smooth", "ties", "holes"]))
    if kind == "ties":
        rows = np.round(rows)
    if kind == "holes":
        rows[:, rng.random(vocab_size) < 0.5] = -np.inf
        rows[:, rng.integers(vocab_size)] = 1.0
    return rows.astype(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, SamplingParams, list[int], list[int], int]:
    rows = draw(logit_rows())
    vocab_size = rows.shape[1]
    ids = st.integers(0, vocab_size - 1)
    values: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0])),
        "top_k": draw(st.sampled_from([0, 0, 1, 3, 20, 300, 5000])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.999_999, 1e-9])),
        "min_p": draw(st.sampled_from([0.0, 0.0, 0.02, 0.4, 1.0])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.5])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.7, -2.0])),
        "presence_penalty": draw(st.sampled_from([0.0, 2.0, -0.4])),
        "min_tokens": draw(st.integers(0, 4)),
        "logprobs": draw(st.sampled_from([None, 0, 1, 5, -1])),
        "logit_bias": draw(st.dictionaries(ids, st.integers(-400, 400).map(quarters), max_size=4)),
        "allowed_token_ids": draw(st.none() | st.lists(ids, min_size=1, max_size=40)),
        "bad_words_token_ids": draw(
            st.lists(st.lists(ids, min_size=1, max_size=3), max_size=6 if vocab_size < 20 else 2)
        ),
    }
    stop_ids = draw(st.lists(ids, max_size=3))
    prompt = draw(st.lists(ids, max_size=20))
    return rows, params_of(**values), stop_ids, prompt, draw(st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=250, derandomize=True)
@given(cases())
def test_sample_with_any_parameters_agrees_with_the_oracle(
    case: tuple[np.ndarray, SamplingParams, list[int], list[int], int],
) -> None:
    rows, params, stop_ids, prompt, seed = case
    check_steps(rows, params, stop_ids, prompt, seed)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.2},
        {"top_k": 50},
        {"top_k": 190},
        {"top_k": 3000},
        {"top_p": 0.9},
        {"top_p": 0.3, "temperature": 2.0},
        {"top_p": 0.999_999_9},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.01, "temperature": 0.7},
        {"logprobs": 5},
        {"logprobs": 1000, "presence_penalty": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_sample_of_a_large_vocabulary_agrees_with_the_oracle(
    values: dict[str, Any], spread: float
) -> None:
    rng = np.random.default_rng(7)
    rows = rng.normal(0.0, spread, (4, 49_152)).astype(np.float32)
    check_steps(rows, params_of(**values), [2], rng.integers(0, 49_152, 300).tolist(), SEED)


def test_sample_of_equal_logits_keeps_the_lowest_ids() -> None:
    size = 3000
    sampler = Sampler(size, num_threads=1)
    for values, num_kept in (({"top_k": 700}, 700), ({"top_p": 0.25}, 750)):
        states = [SamplingState(params_of(**values), seed, [], [], size) for seed in range(400)]
        tokens = sampler.sample(np.zeros((400, size), np.float32), states).token_ids
        assert max(tokens) < num_kept
        assert max(tokens) > 0.9 * num_kept


def test_bad_word_of_several_tokens_is_banned_only_after_its_start() -> None:
    params = params_of(temperature=0.0, bad_words_token_ids=[[3, 4, 5], [4, 6]])
    row = np.array([[0, 0, 0, 0, 0, 2, 3, 1]], np.float32)
    sampler = Sampler(8, num_threads=1)

    def next_token(output: list[int]) -> int:
        state = SamplingState(params, 0, [], [3, 4], 8, output)
        return sampler.sample(row.copy(), [state]).token_ids[0]

    assert next_token([]) == 6  # the prompt does not count as a start
    assert next_token([4]) == 5  # 6 would complete [4, 6]
    assert next_token([3, 4]) == 7  # 5 would complete [3, 4, 5]
    assert next_token([4, 3]) == 6


def test_min_tokens_is_reached_stop_ids_return() -> None:
    params = params_of(temperature=0.0, min_tokens=2)
    state = SamplingState(params, 0, [1, 2, 99], [], 4)
    sampler = Sampler(4, num_threads=1)
    row = np.array([[0, 5, 4, 3]], np.float32)
    tokens = []
    for _ in range(3):
        tokens += sampler.sample(row.copy(), [state]).token_ids
        state.append(tokens[-1])
    assert tokens == [3, 3, 1]
