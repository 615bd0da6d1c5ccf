"""One request as the sampler sees it: its parameters, its seed and the tokens it has.

Holds no logits and knows no model. Everything that can be prepared once is, so that a step does
nothing here but `append`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._native import RowParams, RowState
from headrace.errors import ValidationError
from headrace.sampling_params import SamplingParams


class SamplingState:
    """Built when the worker meets a request, and again, with its output, after a preemption.

    Two states with equal parameters, seed, prompt and output sample equal tokens, however they
    came to their output.

    Args:
        params: checked by itself; `bad_words_token_ids` stands for `bad_words`.
        seed: the caller's, or one drawn for the request; only its low 64 bits count.
        stop_token_ids: all ids that end the request, EOS included; masked before min_tokens.
        prompt_token_ids: seen by the repetition penalty.
        vocab_size: number of logits in a row. Prompt and stop ids beyond it have no logit and are
            passed over.
        output_token_ids: generated before, when the request is resumed.

    Raises:
        ValidationError: an id in logit_bias, allowed_token_ids, bad words or the output is outside
            the vocabulary, or a bad word is empty.
    """

    __slots__ = ("native",)

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        stop_token_ids: Sequence[int],
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        output_token_ids: Sequence[int] = (),
    ) -> None:
        # A long prompt is only handed over when it matters.
        seen_prompt = prompt_token_ids if params.repetition_penalty != 1.0 else ()
        try:
            self.native = RowState(
                _row_params(params, seed, stop_token_ids, vocab_size),
                list(seen_prompt),
                list(output_token_ids),
            )
        except ValueError as error:
            raise ValidationError(str(error)) from error

    @property
    def num_output_tokens(self) -> int:
        """How many tokens the request has generated."""
        return int(self.native.num_output_tokens)

    def append(self, token_id: int) -> None:
        """Add a token that was accepted as the next of the output.

        Raises:
            ValueError: it is outside the vocabulary.
        """
        self.native.append(token_id)


def _row_params(
    params: SamplingParams, seed: int, stop_token_ids: Sequence[int], vocab_size: int
) -> RowParams:
    row = RowParams()
    row.vocab_size = vocab_size
    row.seed = seed & 0xFFFF_FFFF_FFFF_FFFF
    row.temperature = 0.0 if params.is_greedy else params.temperature
    row.top_k = params.top_k
    row.top_p = params.top_p
    row.min_p = params.min_p
    row.repetition_penalty = params.repetition_penalty
    row.frequency_penalty = params.frequency_penalty
    row.presence_penalty = params.presence_penalty
    row.min_tokens = params.min_tokens
    row.stop_ids = list(stop_token_ids)
    row.logit_bias = list((params.logit_bias or {}).items())
    row.allowed_ids = params.allowed_token_ids
    row.bad_words = params.bad_words_token_ids or []
    row.num_logprobs = params.logprobs
    return row
