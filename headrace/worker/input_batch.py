"""The requests the worker knows, in persistent arrays that a step's inputs are sliced from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.errors import ValidationError
from headrace.messages.step import CachedRequest, NewRequest, SchedulerOutput
from headrace.ops.ops import I32, StepInputs
from headrace.worker.sampling_state import SamplingState


@dataclass(slots=True)
class RequestRow:
    """One request's place in the arrays, and what does not fit into arrays."""

    request_id: str
    row: int
    num_prompt_tokens: int
    num_blocks: int
    num_prompt_logprobs: int | None
    sampling: SamplingState


@dataclass(slots=True)
class PreparedStep:
    """A step's inputs, and which of its requests come to their next token."""

    inputs: StepInputs
    requests: list[RequestRow]
    """The step's requests, in the order of `query_start_loc`."""
    sampling_requests: list[RequestRow]
    logits_rows: I32
    """Last token of each of the sampling requests, as a row of the step."""


class InputBatch:
    """Token ids, block tables and counts by row; a row is a request's for as long as it is known.

    A step costs a fixed number of array operations over its tokens, whatever the number of
    requests, and touches nothing of requests that are not in it.
    """

    def __init__(
        self, *, max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        max_blocks = -(-max_model_len // block_size)
        # Untouched pages of these arrays cost no memory.
        self.token_ids = np.empty((max_num_seqs, max_model_len), np.int32)
        self.block_table = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed = np.zeros(max_num_seqs, np.int32)
        self.rows: dict[str, RequestRow] = {}
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
        for cached in order.cached_requests:
            self._extend(cached)
        return errors

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are fine."""
        request = self.rows.pop(request_id, None)
        if request is not None:
            self._free_rows.append(request.row)

    def append_token(self, request: RequestRow, token_id: int) -> None:
        """Note a token that was sampled for a request."""
        row = request.row
        count = self.num_tokens[row]
        # A request's last possible token is never computed with, so it needs no place.
        if count < self.token_ids.shape[1]:
            self.token_ids[row, count] = token_id
        self.num_tokens[row] = count + 1
        request.sampling.append(token_id)

    def prepare(self, num_scheduled_tokens: Mapping[str, int]) -> PreparedStep:
        """The inputs of a step over known requests, whose changes have been applied."""
        requests = [self.rows[request_id] for request_id in num_scheduled_tokens]
        num_seqs = len(requests)
        rows = np.fromiter((r.row for r in requests), np.int32, num_seqs)
        counts = np.fromiter(num_scheduled_tokens.values(), np.int32, num_seqs)
        query_start_loc = np.zeros(num_seqs + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        computed = self.num_computed[rows]
        seq_lens = computed + counts

        token_rows = np.repeat(rows, counts)
        positions = np.arange(query_start_loc[-1], dtype=np.int32)
        positions += np.repeat(computed - query_start_loc[:-1], counts)
        blocks = self.block_table[token_rows, positions // self.block_size]
        width = -(-int(seq_lens.max()) // self.block_size)
        inputs = StepInputs(
            input_ids=self.token_ids[token_rows, positions],
            positions=positions,
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=np.ascontiguousarray(self.block_table[rows, :width]),
        )
        samples = np.flatnonzero(seq_lens == self.num_tokens[rows])
        return PreparedStep(
            inputs,
            requests,
            [requests[i] for i in samples],
            query_start_loc[samples + 1] - np.int32(1),
        )

    def _add(self, new: NewRequest) -> None:
        params = new.sampling_params
        sampling = SamplingState(
            params,
            seed=new.seed,
            stop_token_ids=new.stop_token_ids,
            prompt_token_ids=new.token_ids[: new.num_prompt_tokens],
            output_token_ids=new.token_ids[new.num_prompt_tokens :],
            vocab_size=self.vocab_size,
        )
        row = self._free_rows.pop()
        count, num_blocks = len(new.token_ids), len(new.block_ids)
        self.token_ids[row, :count] = new.token_ids
        self.block_table[row, :num_blocks] = new.block_ids
        self.num_tokens[row] = count
        self.num_computed[row] = new.num_computed_tokens
        self.rows[new.request_id] = RequestRow(
            new.request_id, row, new.num_prompt_tokens, num_blocks, params.prompt_logprobs, sampling
        )

    def _extend(self, cached: CachedRequest) -> None:
        request = self.rows[cached.request_id]
        self.num_computed[request.row] = cached.num_computed_tokens
        blocks = cached.new_block_ids
        if blocks:
            first = request.num_blocks
            self.block_table[request.row, first : first + len(blocks)] = blocks
            request.num_blocks = first + len(blocks)
