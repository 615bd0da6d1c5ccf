"""The sampler's contract: independence of rows, resuming, extremes, faults of single rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace._native import RowSampler
from headrace.errors import EngineGenerateError, ValidationError
from headrace.sampling_params import SamplingParams
from headrace.worker.sampler import SampledRows, Sampler
from headrace.worker.sampling_state import SamplingState
from tests.oracles.sampler import log_softmax

VOCAB_SIZE = 50_257
MANY_PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 50, "logprobs": 5},
    {"temperature": 1.8, "top_p": 0.97, "repetition_penalty": 1.1},
    {"min_p": 0.05, "logprobs": 0, "frequency_penalty": 0.5},
    {"temperature": 0.0, "logprobs": 3, "presence_penalty": -1.0},
    {"top_k": 900, "top_p": 0.8, "logit_bias": {7: 3.0, 9: -100.0}},
    {"allowed_token_ids": list(range(100, 8000, 7)), "top_p": 0.5},
]


def make_logits(num_rows: int, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(0.0, 3.0, (num_rows, vocab_size)).astype(np.float32)


def make_states(count: int, vocab_size: int = VOCAB_SIZE) -> list[SamplingState]:
    return [
        SamplingState(
            SamplingParams(**MANY_PARAMS[i % len(MANY_PARAMS)]),
            seed=1000 + i,
            stop_token_ids=[2],
            prompt_token_ids=[i, 5, 17, 5],
            vocab_size=vocab_size,
            output_token_ids=[11, 12, 11][: i % 4],
        )
        for i in range(count)
    ]


def one_row(sampler: Sampler, row: np.ndarray, **values: Any) -> SampledRows:
    state = SamplingState(SamplingParams(**values), 1, [], [], len(row))
    return sampler.sample(row[None].copy(), [state])


def test_sample_of_a_row_beside_any_others_is_the_same_to_the_bit() -> None:
    count = 27
    logits, states = make_logits(count), make_states(count)
    single = Sampler(VOCAB_SIZE, num_threads=1)
    alone = [single.sample(logits[i : i + 1].copy(), states[i : i + 1]) for i in range(count)]
    expected = [(row.token_ids[0], row.logprobs[0]) for row in alone]
    assert len({token_id for token_id, _ in expected}) > count // 2

    order = np.random.default_rng(1).permutation(count)
    for sampler in (single, Sampler(VOCAB_SIZE, num_threads=4), Sampler(VOCAB_SIZE)):
        together = sampler.sample(logits[order].copy(), [states[i] for i in order])
        assert together.errors == {}
        for place, i in enumerate(order):
            assert (together.token_ids[place], together.logprobs[place]) == expected[i]


def test_sample_on_any_instruction_set_is_the_same_to_the_bit() -> None:
    logits, states = make_logits(27), [state.native for state in make_states(27)]
    results = [
        RowSampler(VOCAB_SIZE, 1, portable=portable).sample(logits.copy(), states)
        for portable in (False, True)
    ]
    assert results[0] == results[1]


def test_sample_of_many_steps_on_threads_repeats_itself() -> None:
    size, count = 8192, 200
    logits, states = make_logits(count, size), make_states(count, size)
    single, threaded = Sampler(size, num_threads=1), Sampler(size, num_threads=3)
    expected = single.sample(logits.copy(), states)
    for _ in range(20):
        assert threaded.sample(logits.copy(), states) == expected


@pytest.mark.parametrize("values", [*MANY_PARAMS[:8], {"bad_words": ["x"], "min_tokens": 9}])
def test_state_rebuilt_after_a_preemption_goes_on_identically(values: dict[str, Any]) -> None:
    size, prompt, stop_ids = 600, [4, 8, 8, 599], [0, 3]
    params = SamplingParams(**values)
    if params.bad_words:
        params.bad_words_token_ids = [[5], [7, 9], [1, 2, 3]]
    steps = make_logits(24, size, seed=9)
    sampler = Sampler(size, num_threads=1)
    state = SamplingState(params, 77, stop_ids, prompt, size)
    results: list[SampledRows] = []
    for row in steps:
        results.append(sampler.sample(row[None].copy(), [state]))
        state.append(results[-1].token_ids[0])
    output = [result.token_ids[0] for result in results]

    for cut in range(len(steps)):
        resumed = SamplingState(params, 77, stop_ids, prompt, size, output[:cut])
        assert resumed.num_output_tokens == cut
        for row, expected in list(zip(steps, results, strict=True))[cut : cut + 3]:
            assert sampler.sample(row[None].copy(), [resumed]) == expected
            resumed.append(expected.token_ids[0])


@pytest.mark.parametrize("size", [1, 16, 255, 256, 257, 3000])
def test_greedy_with_equal_maxima_takes_the_lowest_id(size: int) -> None:
    sampler = Sampler(size, num_threads=1)
    for first in {0, size // 2, size - 1}:
        row = np.full(size, -5.0, np.float32)
        row[first:] = 2.5
        assert one_row(sampler, row, temperature=0.0).token_ids == [first]
        assert one_row(sampler, row, top_k=1).token_ids == [first]
        assert one_row(sampler, row, temperature=1e-4).token_ids == [first]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0},
        {"temperature": 0.01},
        {"temperature": 2.0},
        {"temperature": 2.0, "top_p": 1e-6},
        {"temperature": 2.0, "top_p": 0.999},
        {"min_p": 1.0},
        {"top_k": 10**15},
        {"top_k": 3, "logprobs": -1},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 5e-324},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 1e30, 3e38])
def test_sample_of_extreme_numbers_finds_a_possible_token(
    values: dict[str, Any], scale: float
) -> None:
    size = 777
    rng = np.random.default_rng(5)
    row = (rng.uniform(-1.0, 1.0, size) * scale).astype(np.float32)
    impossible = rng.random(size) < 0.3
    row[impossible] = -np.inf
    state = SamplingState(SamplingParams(**values), 3, [], list(range(0, size, 2)), size)
    sampled = Sampler(size, num_threads=1).sample(row[None].copy(), [state])
    assert sampled.errors == {}
    assert not impossible[sampled.token_ids[0]]
    if scale > 1.0 and values.get("repetition_penalty") is None:
        assert sampled.token_ids == [int(np.argmax(row))]
    for entry in sampled.logprobs:
        if entry is not None:
            assert len(entry.token_ids) == 1 + size
            assert not np.isnan(entry.logprobs).any()
            assert max(entry.logprobs) <= 0.0


def test_sample_with_one_allowed_token_gives_it() -> None:
    row = make_logits(1, 300)[0]
    sampler = Sampler(300, num_threads=1)
    for values in MANY_PARAMS[:3]:
        sampled = one_row(sampler, row, **values, allowed_token_ids=[299], logprobs=1)
        assert sampled.token_ids == [299]
        entry = sampled.logprobs[0]
        assert entry is not None
        assert entry.token_ids == [299, int(np.argmax(row))]
        assert entry.rank == 1 + int((row > row[299]).sum())


def test_logprobs_are_of_the_raw_logits_whatever_changes_them() -> None:
    row = make_logits(1, 1000)[0]
    params = SamplingParams(
        temperature=0.0,
        logprobs=4,
        logit_bias={3: 100.0, 4: -100.0},
        repetition_penalty=2.0,
        presence_penalty=2.0,
    )
    state = SamplingState(params, 0, [], [3, 10], 1000, [3, 3, 900])
    entry = Sampler(1000, num_threads=1).sample(row[None].copy(), [state]).logprobs[0]
    assert entry is not None
    assert entry.token_ids == [3, *np.argsort(-row)[:4].tolist()]
    np.testing.assert_allclose(entry.logprobs, log_softmax(row)[entry.token_ids], atol=1e-6)


def test_sample_with_a_faulty_row_leaves_the_others_unharmed() -> None:
    size = 400
    logits = make_logits(6, size)
    clean = logits.copy()
    logits[1, 399] = np.nan
    logits[2, 7] = np.inf
    logits[3] = -np.inf
    params = [SamplingParams(temperature=0.0, logprobs=1)] * 4 + [SamplingParams(temperature=0.0)]
    states = [SamplingState(p, 1, [], [], size) for p in params]
    banned = SamplingParams(allowed_token_ids=[4, 5])
    banned.bad_words_token_ids = [[4], [5]]
    states.append(SamplingState(banned, 1, [], [], size))
    sampled = Sampler(size, num_threads=1).sample(logits, states)
    best = clean.argmax(axis=1).tolist()
    assert sampled.token_ids == [best[0], -1, -1, -1, best[4], -1]
    assert sorted(sampled.errors) == [1, 2, 3, 5]
    assert "not numbers" in sampled.errors[1]
    assert "not numbers" in sampled.errors[2]
    assert "probability of zero" in sampled.errors[3]
    assert "no token may be generated" in sampled.errors[5]
    assert [entry is None for entry in sampled.logprobs] == [False, True, True, True, True, True]


@pytest.mark.parametrize("position", [0, 15, 16, 299])
@pytest.mark.parametrize("values", MANY_PARAMS[:4], ids=str)
def test_sample_with_a_nan_anywhere_is_an_error(position: int, values: dict[str, Any]) -> None:
    row = make_logits(1, 300)[0]
    row[position] = np.nan
    sampled = one_row(Sampler(300, num_threads=1), row, **values)
    assert sampled.token_ids == [-1]
    assert "not numbers" in sampled.errors[0]


def test_sample_without_rows_gives_nothing() -> None:
    sampled = Sampler(10, num_threads=1).sample(np.empty((0, 10), np.float32), [])
    assert sampled == SampledRows([], [], {})


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_prompt_logprobs_of_given_tokens_agree_with_log_softmax(count: int) -> None:
    size, num_rows = 3000, 400
    logits = make_logits(num_rows, size)
    logits[5, 2000:] = -np.inf
    targets = np.random.default_rng(2).integers(0, size, num_rows).tolist()
    targets[5] = 2500
    before = logits.copy()
    single = Sampler(size, num_threads=1).prompt_logprobs(logits, targets, count)
    np.testing.assert_array_equal(logits, before)
    assert Sampler(size, num_threads=4).prompt_logprobs(logits, targets, count) == single
    for row, target, entry in list(zip(logits, targets, single, strict=True))[:20]:
        order = np.lexsort((np.arange(size), -row))[: size if count == -1 else count]
        assert entry.token_ids == [target, *order.tolist()]
        assert entry.rank == 1 + int((row > row[target]).sum())
        np.testing.assert_allclose(
            entry.logprobs, log_softmax(row)[entry.token_ids], rtol=0, atol=2e-6
        )


def test_prompt_logprobs_of_a_faulty_row_raises() -> None:
    logits = make_logits(3, 50)
    logits[1, 1] = np.nan
    with pytest.raises(EngineGenerateError, match="not numbers"):
        Sampler(50, num_threads=1).prompt_logprobs(logits, [0, 1, 2], 1)


def test_sampler_with_arrays_of_another_shape_refuses_them() -> None:
    sampler = Sampler(50, num_threads=1)
    state = SamplingState(SamplingParams(), 0, [], [], 50)
    with pytest.raises(ValueError, match="logits must be"):
        sampler.sample(make_logits(2, 50), [state])
    with pytest.raises(ValueError, match="logits must be"):
        sampler.sample(make_logits(1, 49), [state])
    with pytest.raises(ValueError, match="another vocabulary"):
        sampler.sample(make_logits(1, 50), [SamplingState(SamplingParams(), 0, [], [], 51)])
    with pytest.raises(TypeError):
        sampler.sample(make_logits(1, 50).astype(np.float64), [state])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sampler.sample(make_logits(50, 50).T, [state] * 50)
    for target in (-1, 50):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            sampler.prompt_logprobs(make_logits(1, 50), [target], 0)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"logit_bias": {50: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [0, 50]}, "allowed_token_ids"),
    ],
)
def test_state_with_ids_outside_the_vocabulary_names_the_field(
    values: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError, match=field):
        SamplingState(SamplingParams(**values), 0, [], [], 50)


def test_state_with_impossible_bad_words_or_output_is_refused() -> None:
    for words in ([[1, 50]], [[]], [[-1]]):
        params = SamplingParams()
        params.bad_words_token_ids = words
        with pytest.raises(ValidationError, match="bad_words"):
            SamplingState(params, 0, [], [], 50)
    with pytest.raises(ValidationError, match="generated text"):
        SamplingState(SamplingParams(), 0, [], [], 50, [50])
    state = SamplingState(SamplingParams(), 0, [], [], 50)
    with pytest.raises(ValueError, match="generated text"):
        state.append(-1)
    assert state.num_output_tokens == 0


def test_state_with_prompt_and_stop_ids_beyond_the_logits_passes_over_them() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5, min_tokens=1)
    state = SamplingState(params, 0, [60], [49, 70], 50)
    row = np.zeros((1, 50), np.float32)
    row[0, [48, 49]] = 2.0, 2.5
    assert Sampler(50, num_threads=1).sample(row, [state]).token_ids == [48]
