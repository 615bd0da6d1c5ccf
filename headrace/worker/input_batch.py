"""The requests the worker knows, and a step's inputs, gathered from their rows in native code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace._native import StepBatch
from headrace.errors import ValidationError
from headrace.logits_processor import LogitsProcessor, RowProcessor
from headrace.messages.step import NewRequest, SchedulerOutput
from headrace.ops.ops import F32, I32, StepInputs
from headrace.sampling_params import SamplingParams
from headrace.worker.grammar_masks import Grammars
from headrace.worker.prompt_embeds import take_embeds, with_given
from headrace.worker.sampling_state import SamplingState

_NO_DRAFT: list[int] = []


@dataclass(slots=True)
class RequestRow:
    """One request's place in the arrays, and what does not fit into arrays."""

    request_id: str
    row: int
    num_prompt_tokens: int
    num_prompt_logprobs: int | None
    sampling: SamplingState
    grammar: Any = None
    """Its `structured.compiler.GrammarState`, if it has a grammar."""
    embeds: F32 | None = None
    """Rows in place of the prompt's tokens [num_prompt_tokens, H]."""


@dataclass(slots=True)
class PreparedStep:
    """A step's inputs, and which of its requests come to their next token."""

    inputs: StepInputs
    requests: list[RequestRow]
    """The step's requests, in the order of `query_start_loc`."""
    sampling_requests: list[RequestRow]
    logits_rows: I32
    """Last token of each of the sampling requests, as a row of the step."""
    drafts: Mapping[str, Sequence[int]]
    """Request id -> guessed tokens, the last of those the step computes."""


class InputBatch:
    """Tokens, block tables and counts by row; a row is a request's for as long as it is known.

    A step touches nothing of requests that are not in it.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_num_tokens: int,
        block_size: int,
        vocab_size: int,
        hidden_size: int = 0,
        logits_processors: Sequence[LogitsProcessor] = (),
        grammars: Grammars | None = None,
    ) -> None:
        self._logits_processors = logits_processors
        self.grammars = grammars
        self.num_grammars = 0
        """Requests here that follow a grammar."""
        self._hidden_size = hidden_size
        self._num_with_embeds = 0
        """Rows that have embeddings: steps of others do not look for any."""
        self.vocab_size = vocab_size
        self.rows: dict[str, RequestRow] = {}
        self._batch = StepBatch(max_num_seqs, max_model_len, block_size, max_num_tokens)
        self._arrays = StepInputs(
            input_ids=self._batch.input_ids,
            positions=self._batch.positions,
            slot_mapping=self._batch.slot_mapping,
            query_start_loc=self._batch.query_start_loc,
            seq_lens=self._batch.seq_lens,
            block_table=self._batch.block_table,
        )
        self._inputs = self._slice(1, 1)
        self._logits_rows = self._batch.logits_rows
        self._drafts: Mapping[str, Sequence[int]] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def apply(self, order: SchedulerOutput) -> dict[str, str]:
        """Take in what changed: forget, add, extend (in this order).

        Returns why new requests could not be taken, by id; they stay unknown.
        """
        errors: dict[str, str] = {}
        for request_id in order.finished_ids:
            self.remove(request_id)
        for new in order.new_requests:
            try:
                self._add(new)
            except ValidationError as error:
                errors[new.request_id] = str(error)
        rows, extend = self.rows, self._batch.extend
        self._drafts = drafts = order.draft_token_ids
        for cached in order.cached_requests:
            row = rows[cached.request_id].row
            draft = drafts.get(cached.request_id, _NO_DRAFT)
            extend(row, cached.new_block_ids, cached.num_computed_tokens, draft)
        return errors

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are fine."""
        request = self.rows.pop(request_id, None)
        if request is not None:
            self._free_rows.append(request.row)
            self.num_grammars -= request.grammar is not None
            self._num_with_embeds -= request.embeds is not None

    def append_token(self, request: RequestRow, token_id: int) -> None:
        """Note a token that was sampled for a request."""
        self._batch.append(request.row, token_id)
        request.sampling.append(token_id)
        if request.grammar is not None:
            request.grammar.accept(token_id)

    def tokens(self, request: RequestRow, first: int, end: int) -> list[int]:
        """Tokens [first, end) of a request."""
        return self._batch.tokens(request.row, first, end)

    def prepare(self, num_scheduled_tokens: Mapping[str, int]) -> PreparedStep:
        """The inputs of a step over known requests, whose changes have been applied.

        Its arrays are written again by the next call; steps of one size share one StepInputs.
        """
        rows = self.rows
        requests = [rows[request_id] for request_id in num_scheduled_tokens]
        counts = list(num_scheduled_tokens.values())
        samples = self._batch.gather([request.row for request in requests], counts)
        num_tokens, num_seqs, num_samples = sum(counts), len(requests), len(samples)
        inputs = self._inputs
        if len(inputs.seq_lens) != num_seqs or len(inputs.input_ids) != num_tokens:
            inputs = self._inputs = self._slice(num_tokens, num_seqs)
        if len(self._logits_rows) != num_samples:
            self._logits_rows = self._batch.logits_rows[:num_samples]
        if self._num_with_embeds:
            inputs = with_given(inputs, requests)
        sampling = requests if num_samples == num_seqs else [requests[i] for i in samples]
        return PreparedStep(inputs, requests, sampling, self._logits_rows, self._drafts)

    def _slice(self, num_tokens: int, num_seqs: int) -> StepInputs:
        """The arrays of a step of this size. The block table's columns are not cut: those behind
        a sequence's blocks hold old numbers that nobody reads."""
        arrays = self._arrays
        return StepInputs(
            input_ids=arrays.input_ids[:num_tokens],
            positions=arrays.positions[:num_tokens],
            slot_mapping=arrays.slot_mapping[:num_tokens],
            query_start_loc=arrays.query_start_loc[: num_seqs + 1],
            seq_lens=arrays.seq_lens[:num_seqs],
            block_table=arrays.block_table[:num_seqs],
        )

    def _add(self, new: NewRequest) -> None:
        params = new.sampling_params
        embeds = take_embeds(new, self._hidden_size)
        sampling = SamplingState(
            params,
            seed=new.seed,
            stop_token_ids=new.stop_token_ids,
            prompt_token_ids=new.token_ids[: new.num_prompt_tokens] if embeds is None else (),
            output_token_ids=new.token_ids[new.num_prompt_tokens :],
            vocab_size=self.vocab_size,
            processors=self._processors(params),
            scores_allowed=new.num_answer_tokens is not None,
        )
        grammar = self._start_grammar(new)
        row = self._free_rows.pop()
        self._batch.set(row, new.token_ids, new.block_ids, new.num_computed_tokens)
        self._num_with_embeds += embeds is not None
        self.rows[new.request_id] = RequestRow(
            new.request_id, row, new.num_prompt_tokens, params.prompt_logprobs, sampling,
            grammar, embeds,
        )  # fmt: skip
        self.num_grammars += grammar is not None

    def _start_grammar(self, new: NewRequest) -> Any:
        if new.grammar is None:
            return None
        if self.grammars is None:
            raise ValidationError("this worker takes no grammars")
        begin = new.num_prompt_tokens - (new.num_answer_tokens or 0)
        return self.grammars.start(new.grammar, new.token_ids[begin:])

    def _processors(self, params: SamplingParams) -> list[RowProcessor]:
        """What the operator's processors want to do for one request."""
        try:
            made = [one.new_req_logits_processor(params) for one in self._logits_processors]
        except Exception as error:  # code of the operator: only this request fails
            raise ValidationError(f"a logits processor refused the request: {error}") from error
        return [processor for processor in made if processor is not None]
