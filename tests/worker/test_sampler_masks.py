"""Masks of grammars in the sampler: the same as listing the allowed tokens, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.sampling_params import SamplingParams
from headrace.worker.sampler import Sampler
from headrace.worker.sampling_state import SamplingState

VOCAB_SIZE = 1003
WORDS = 32
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 2.0}, {"top_p": 0.8, "logprobs": 3},
    {"top_k": 5, "logprobs": 0, "repetition_penalty": 1.3}, {"min_p": 0.1},
    {"logit_bias": {5: 4.0, 900: 50.0}, "logprobs": -1},
]  # fmt: skip


def make_mask(ids: list[int]) -> np.ndarray:
    bits = np.zeros(WORDS * 32, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def make_state(seed: int = 3, **params: Any) -> SamplingState:
    return SamplingState(SamplingParams(**params), seed, [2], [1, 5, 7], VOCAB_SIZE, [7, 8])


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("size", [1, 40, 900, VOCAB_SIZE])
def test_mask_equals_a_list_of_allowed_tokens(params: dict[str, Any], size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 3, (1, VOCAB_SIZE)).astype(np.float32)
    ids = sorted(rng.choice(VOCAB_SIZE, size, replace=False).tolist())
    sampler = Sampler(VOCAB_SIZE)
    masked = sampler.sample(logits.copy(), [make_state(**params)], make_mask(ids)[None], [0])
    listed = sampler.sample(logits.copy(), [make_state(**params, allowed_token_ids=ids)])
    assert masked == listed
    assert masked.token_ids[0] in ids


def test_mask_and_allowed_tokens_hold_both() -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    state = make_state(temperature=0.0, allowed_token_ids=[3, 700, 1002])
    sampler = Sampler(VOCAB_SIZE)
    sampled = sampler.sample(logits.copy(), [state], make_mask([4, 700, 1001])[None], [0])
    assert sampled.token_ids == [700]
    nothing = sampler.sample(logits.copy(), [state], make_mask([4])[None], [0])
    assert "structured_outputs" in nothing.errors[0]


def test_end_of_thinking_is_put_only_where_the_mask_allows_it() -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, 5] = 1.0
    state = make_state(temperature=0.0, thinking_token_budget=0, thinking_token_ids=(7, 9))
    sampler = Sampler(VOCAB_SIZE)
    assert sampler.sample(logits.copy(), [state]).token_ids == [9]
    allows, forbids = make_mask([5, 9])[None], make_mask([5, 6])[None]
    assert sampler.sample(logits.copy(), [state], allows, [0]).token_ids == [9]
    assert sampler.sample(logits.copy(), [state], forbids, [0]).token_ids == [5]


def test_bits_beyond_the_vocabulary_are_not_read() -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    mask = np.zeros((1, WORDS), np.uint32)
    mask[0, -1] = 0xFFFFFFFF
    sampler = Sampler(VOCAB_SIZE)
    ids = [
        sampler.sample(logits.copy(), [make_state(seed)], mask, [0]).token_ids[0]
        for seed in range(60)
    ]
    assert set(ids) <= set(range(992, VOCAB_SIZE))
    assert len(set(ids)) > 5


def test_only_rows_with_a_mask_are_masked_and_others_keep_their_bits() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (40, VOCAB_SIZE)).astype(np.float32)
    states = [make_state(i, temperature=1.5, logprobs=2) for i in range(40)]
    masks = np.stack([make_mask([9, 10]), make_mask([500])])
    rows = [-1 if i % 3 else (i // 3) % 2 for i in range(40)]
    plain = Sampler(VOCAB_SIZE).sample(logits.copy(), states)
    mixed = Sampler(VOCAB_SIZE, num_threads=4).sample(logits.copy(), states, masks, rows)
    for i, row in enumerate(rows):
        if row < 0:
            assert mixed.token_ids[i] == plain.token_ids[i]
            assert mixed.logprobs[i] == plain.logprobs[i]
        else:
            assert mixed.token_ids[i] in ({9, 10}, {500})[row]
            # Log-probabilities are the model's own.
            assert mixed.logprobs[i].token_ids[1:] == plain.logprobs[i].token_ids[1:]


def test_empty_mask_fails_its_row_alone() -> None:
    logits = np.zeros((2, VOCAB_SIZE), np.float32)
    states = [make_state(), make_state()]
    sampled = Sampler(VOCAB_SIZE).sample(logits, states, make_mask([])[None], [0, -1])
    assert set(sampled.errors) == {0}
    assert sampled.token_ids[1] >= 0


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((1, WORDS - 1), [0]), ((1, WORDS), [1]), ((1, WORDS), []), ((0, WORDS), [0])],
)
def test_masks_that_do_not_fit_are_refused(shape: tuple[int, int], rows: list[int]) -> None:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    with pytest.raises(ValueError, match="mask"):
        Sampler(VOCAB_SIZE).sample(logits, [make_state()], np.zeros(shape, np.uint32), rows)


def test_scores_can_be_among_the_allowed_tokens() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (2, VOCAB_SIZE)).astype(np.float32)
    ids = [4, 700, 1002]
    params = SamplingParams(temperature=0.0, logprobs=8)
    states = [SamplingState(params, 3, [], [], VOCAB_SIZE, scores_allowed=i == 0) for i in (0, 1)]
    mask = make_mask(ids)[None]
    among, of_all = Sampler(VOCAB_SIZE).sample(logits.copy(), states, mask, [0, 0]).logprobs
    assert among is not None
    assert of_all is not None
    scores = dict(zip(among.token_ids, among.logprobs, strict=True))
    right = logits[0, ids].astype(np.float64)
    right -= np.log(np.exp(right).sum())
    assert [scores[i] for i in ids] == pytest.approx(right.tolist(), abs=1e-5)
    assert all(score == -np.inf for i, score in scores.items() if i not in ids)
    assert min(of_all.logprobs) > -np.inf
