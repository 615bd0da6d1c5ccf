"""One request as the sampler sees it: its parameters, its seed and the tokens it has.

Holds no logits and knows no model. Everything that can be prepared once is, so that a step does
nothing here but `append`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace._native import RowParams, RowState
from headrace.errors import ValidationError
from headrace.logits_processor import RowProcessor
from headrace.sampling_params import SamplingParams
from headrace.worker.thinking import ThinkingBudget


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
        processors: change the row before anything else does.
        scores_allowed: log-probabilities are among the tokens that its grammar allows.

    Raises:
        ValidationError: an id in logit_bias, allowed_token_ids, bad words or the output is outside
            the vocabulary, or a bad word is empty.
    """

    __slots__ = (
        "_thinking", "_thinking_end_id", "logprob_token_ids", "native", "num_logprobs",
        "output_token_ids", "processors", "scores_allowed",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        stop_token_ids: Sequence[int],
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        output_token_ids: Sequence[int] = (),
        processors: Sequence[RowProcessor] = (),
        *,
        scores_allowed: bool = False,
    ) -> None:
        self.processors = processors
        self.scores_allowed = scores_allowed
        self.output_token_ids = list(output_token_ids) if processors else None
        """Kept for the processors only."""
        self.logprob_token_ids = params.logprob_token_ids or []
        self.num_logprobs = params.logprobs if params.logprob_token_ids is None else 0
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
        self._thinking: ThinkingBudget | None = None
        if params.thinking_token_budget is not None and params.thinking_token_ids is not None:
            start_id, end_id = params.thinking_token_ids
            self._thinking_end_id = end_id
            self._thinking = ThinkingBudget(
                params.thinking_token_budget, start_id, end_id, prompt_token_ids
            )
            for token_id in output_token_ids:
                self._thinking.append(token_id)
            self._force_end_of_thinking(self._thinking)

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
        if self.output_token_ids is not None:
            self.output_token_ids.append(token_id)
        if self._thinking is not None:
            self._thinking.append(token_id)
            self._force_end_of_thinking(self._thinking)

    def _force_end_of_thinking(self, thinking: ThinkingBudget) -> None:
        if thinking.must_end:
            self.native.force_next(self._thinking_end_id)


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
    row.num_logprobs = params.logprobs if params.logprob_token_ids is None else 0
    row.logprob_ids = params.logprob_token_ids or []
    return row
