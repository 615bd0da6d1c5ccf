"""Turns a step's logits into tokens and log-probabilities. Keeps nothing between steps.

The order, for each row: log-probabilities are those of the model's own logits; then custom logits
processors, the mask of its grammar, allowed_token_ids, bad words, min_tokens, logit_bias and
penalties change the logits;
the likeliest token is taken, or one is drawn after temperature, min_p, top_k and top_p. (min_p
comes before the other two, which matters for top_p alone: its share is one of what min_p and top_k
left.)

A draw depends on the request's seed and on how many tokens it has generated, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace._native import RowSampler
from headrace.errors import EngineGenerateError
from headrace.logger import make_logger
from headrace.messages.outputs import TokenLogprobs
from headrace.ops.ops import F32
from headrace.worker.sampling_state import SamplingState

logger = make_logger(__name__)

NOTHING_ALLOWED = "no token may be generated"
"""How the error of a row begins whose request rules out every token."""
NOT_NUMBERS = "the model gave logits that are not numbers"
"""How the error of a row begins in which there is a NaN or plus infinity."""
_Record: TypeAlias = tuple[list[int], list[float], int]


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

    def sample(
        self,
        logits: F32,
        rows: Sequence[SamplingState],
        masks: npt.NDArray[np.uint32] | None = None,
        mask_rows: Sequence[int] = (),
    ) -> SampledRows:
        """Choose the next token of each request.

        A token is not added to its request's state: that is for the caller, who may reject it.

        Args:
            logits: float32 [len(rows), vocab_size], C-contiguous; changed in place.
            rows: the requests, in the order of the rows.
            masks: uint32 [any, ceil(vocab_size / 32)], C-contiguous: which tokens are allowed.
            mask_rows: with masks, for each row the index of its mask, or -1.

        Raises:
            ValueError: a shape does not fit. TypeError: not float32 or not C-contiguous.
        """
        processed = [i for i, row in enumerate(rows) if row.processors]
        faults, originals = self._process(logits, rows, processed) if processed else ({}, {})
        if masks is not None:
            for i, row in enumerate(rows):
                if row.scores_allowed and mask_rows[i] >= 0:
                    bits = np.unpackbits(masks[mask_rows[i]].view(np.uint8), bitorder="little")
                    logits[i][bits[: logits.shape[1]] == 0] = -np.inf
        token_ids, records, errors = self._native.sample(
            logits, [row.native for row in rows], masks, list(mask_rows)
        )
        for i, original in originals.items():
            if records[i] is not None:
                records[i] = self._score(original, token_ids[i], rows[i])
        return SampledRows(
            token_ids,
            [None if record is None else TokenLogprobs(*record) for record in records],
            {**dict(errors), **faults},
        )

    def _process(
        self, logits: F32, rows: Sequence[SamplingState], processed: Sequence[int]
    ) -> tuple[dict[int, str], dict[int, F32]]:
        """Run the custom processors of these rows.

        Returns:
            Why rows failed, and the model's own logits of those whose log-probabilities are
            wanted.
        """
        faults: dict[int, str] = {}
        originals: dict[int, F32] = {}
        for i in processed:
            state, row = rows[i], logits[i]
            if state.num_logprobs is not None:
                originals[i] = row.copy()
            try:
                for processor in state.processors:
                    changed = processor(state.output_token_ids or (), row)
                    if changed is not None and changed is not row:
                        row[:] = changed
            except Exception as error:
                logger.exception("a logits processor failed")
                faults[i] = f"a logits processor failed: {type(error).__name__}: {error}"
                row[:] = 0.0
        return faults, originals

    def _score(self, original: F32, token_id: int, state: SamplingState) -> _Record | None:
        """The record of a token under the model's own logits."""
        records, _ = self._native.score(
            original[np.newaxis], [token_id], state.num_logprobs or 0, state.logprob_token_ids
        )
        return records[0] if records else None

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
