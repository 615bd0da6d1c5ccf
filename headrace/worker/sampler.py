"""Turns a step's logits into tokens and log-probabilities. Keeps nothing between steps.

The order, for each row: log-probabilities are those of the model's own logits; then
allowed_token_ids, bad words, min_tokens, logit_bias and penalties change the logits; the likeliest
token is taken, or one is drawn after temperature, min_p, top_k and top_p. (min_p comes before the
other two, which matters for top_p alone: its share is one of what min_p and top_k left.)

A draw depends on the request's seed and on how many tokens it has generated, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace._native import RowSampler
from headrace.errors import EngineGenerateError
from headrace.messages.outputs import TokenLogprobs
from headrace.ops.ops import F32
from headrace.worker.sampling_state import SamplingState


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What one step sampled, by row."""

    token_ids: list[int]
    """-1 for a row that failed."""
    logprobs: list[TokenLogprobs | None]
    """None for rows that did not ask, or failed."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why a row failed, fit for the caller to read. The other rows are unharmed."""


class Sampler:
    """Samples rows of logits; for one thread at a time.

    Args:
        vocab_size: number of logits in a row.
        num_threads: how many threads of the process's pool share the rows of a large step; 0 is
            one per core.
    """

    def __init__(self, vocab_size: int, num_threads: int = 0) -> None:
        self._native = RowSampler(vocab_size, num_threads)

    def sample(self, logits: F32, rows: Sequence[SamplingState]) -> SampledRows:
        """Choose the next token of each request.

        A token is not added to its request's state: that is for the caller, who may reject it.

        Args:
            logits: float32 [len(rows), vocab_size], C-contiguous; changed in place.
            rows: the requests, in the order of the rows.

        Raises:
            ValueError: a shape does not fit. TypeError: not float32 or not C-contiguous.
        """
        token_ids, records, errors = self._native.sample(logits, [row.native for row in rows])
        return SampledRows(
            token_ids,
            [None if record is None else TokenLogprobs(*record) for record in records],
            dict(errors),
        )

    def prompt_logprobs(
        self, logits: F32, target_ids: Sequence[int], num_logprobs: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens that really follow.

        Args:
            logits: float32 [len(target_ids), vocab_size], C-contiguous; unchanged.
            target_ids: the token after each row's position.
            num_logprobs: how many of the likeliest tokens to report; -1 is all.

        Raises:
            EngineGenerateError: a row has no log-probabilities (NaN, infinity).
            ValueError: a shape does not fit or a target is outside the vocabulary.
            TypeError: not float32 or not C-contiguous.
        """
        records, errors = self._native.score(logits, list(target_ids), num_logprobs)
        if errors:
            raise EngineGenerateError(errors[0][1])
        return [TokenLogprobs(*record) for record in records]
