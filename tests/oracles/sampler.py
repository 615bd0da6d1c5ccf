"""The rules of sampling once more, slow and plain: whole sorts in float64.

It shares no code with the sampler; only the draw in (0, 1) is handed to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from headrace.sampling_params import SamplingParams

F64 = npt.NDArray[np.float64]


def edited_logits(
    logits: Sequence[float] | npt.NDArray[np.float32],
    params: SamplingParams,
    stop_ids: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
) -> F64:
    """The logits after masks, bias and penalties; rounded to float32 after each of these."""
    x = np.array(logits, np.float64)
    if params.allowed_token_ids is not None:
        allowed = np.zeros(len(x), bool)
        allowed[params.allowed_token_ids] = True
        x[~allowed] = -np.inf
    for *prefix, last in params.bad_words_token_ids or []:
        if list(output[len(output) - len(prefix) :]) == prefix:
            x[last] = -np.inf
    if len(output) < params.min_tokens:
        x[list(stop_ids)] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        x[token_id] = np.float32(x[token_id] + bias)
    counts = Counter(output)
    for token_id in set(prompt) | set(output):
        scale = params.repetition_penalty
        x[token_id] = x[token_id] / scale if x[token_id] > 0 else x[token_id] * scale
        if token_id in counts:
            x[token_id] -= params.frequency_penalty * counts[token_id]
            x[token_id] -= params.presence_penalty
        x[token_id] = np.float32(x[token_id])
    return x


def kept_probabilities(x: F64, params: SamplingParams, top_p: float, min_p: float) -> F64:
    """The distribution that is drawn from: [vocab_size], zeros for what was cut."""
    weights = np.exp((x - x.max()) / params.temperature)
    weights[weights < min_p] = 0.0
    ids = np.arange(len(x))
    if 0 < params.top_k < len(x):
        weights[np.lexsort((ids, -x))[params.top_k :]] = 0.0
    if top_p < 1.0:
        order = np.lexsort((ids, -weights.astype(np.float32)))
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= top_p * weights.sum()]] = 0.0
    return weights / weights.sum()


def acceptable_tokens(x: F64, params: SamplingParams, draw: float) -> set[int]:
    """The token a draw in (0, 1) means, and any that rounding at a border could make of it."""
    if params.is_greedy or params.top_k == 1:
        return {int(np.argmax(x))}
    tokens = set()
    for top_p, min_p in product(_nearby(params.top_p), _nearby(params.min_p)):
        probabilities = kept_probabilities(x, params, top_p, min_p)
        last = int(np.flatnonzero(probabilities)[-1])
        places = np.searchsorted(np.cumsum(probabilities), _nearby(draw), side="right")
        tokens |= {min(int(place), last) for place in places}
    return tokens


def _nearby(share: float) -> list[float]:
    if share in (0.0, 1.0):
        return [share]
    return [max(share - 1e-6, share / 2), share, min(share + 1e-6, (share + 1.0) / 2)]


def log_softmax(logits: npt.NDArray[np.float32]) -> F64:
    """Log-probabilities of a row, in float64."""
    x = logits.astype(np.float64)
    shifted = x - x.max()
    result: F64 = shifted - np.log(np.exp(shifted).sum())
    return result
