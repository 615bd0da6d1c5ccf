"""Runs one step: inputs, forward, logits, sampling. Knows nothing of queues or clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import EngineGenerateError
from headrace.messages.outputs import TokenLogprobs
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from headrace.ops.ops import F32, Executable
from headrace.worker.draft_rows import DraftRows, cut
from headrace.worker.grammar_masks import StepMasks
from headrace.worker.input_batch import InputBatch, PreparedStep, RequestRow
from headrace.worker.sampler import NOT_NUMBERS, NOTHING_ALLOWED, Sampler

LOGITS_BYTES = 64 << 20
"""Logits are made and used in slices of about this size: 128 rows of 262k are 134 MB."""
MIN_SLICE_ROWS = 32
"""Below this many rows a slice would cost a whole pass over the output matrix for too little."""


class ModelRunner:
    """A loaded model and the requests it is working on.

    Args:
        executable: the model.
        batch: the requests' arrays.
        sampler: chooses tokens from logits.
    """

    def __init__(self, executable: Executable, batch: InputBatch, sampler: Sampler) -> None:
        self.executable = executable
        self.batch = batch
        self.sampler = sampler
        self.slice_rows = max(MIN_SLICE_ROWS, LOGITS_BYTES // (4 * batch.vocab_size))

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; see Executor.execute."""
        output = ModelRunnerOutput({}, {}, {}, self.batch.apply(order))
        scheduled = order.num_scheduled_tokens
        if output.errors:
            scheduled = {i: count for i, count in scheduled.items() if i not in output.errors}
        if scheduled:
            step = self.batch.prepare(scheduled)
            masks = self._begin_masks(step.sampling_requests)
            self.executable.forward(step.inputs)
            self._sample(step, masks, output)
            for idx, request in enumerate(step.requests):
                if request.num_prompt_logprobs is not None:
                    self._prompt_logprobs(step, idx, request, output)
        return output

    def _begin_masks(self, requests: Sequence[RequestRow]) -> StepMasks | None:
        """Let the masks of grammars be found, while the model runs or something else is done."""
        if not self.batch.num_grammars or self.batch.grammars is None:
            return None
        return self.batch.grammars.begin([request.grammar for request in requests])

    def _sample(
        self, step: PreparedStep, masks: StepMasks | None, output: ModelRunnerOutput
    ) -> None:
        if step.drafts:
            self._sample_with_drafts(step, masks, output)
            return
        requests = step.sampling_requests
        for first in range(0, len(requests), self.slice_rows):
            end = first + self.slice_rows
            logits = self.executable.logits(step.logits_rows[first:end])
            mask_rows = [] if masks is None else masks.rows[first:end]
            self._choose(requests[first:end], logits, masks, mask_rows, output, output.errors)

    def _sample_with_drafts(
        self, step: PreparedStep, masks: StepMasks | None, output: ModelRunnerOutput
    ) -> None:
        """Sample in rounds; see `DraftRows`."""
        requests = step.sampling_requests
        drafts = [step.drafts.get(request.request_id, ()) for request in requests]
        for first, end in cut([1 + len(draft) for draft in drafts], self.slice_rows):
            rows = DraftRows(step.logits_rows[first:end], drafts[first:end])
            logits = self.executable.logits(rows.rows)
            members = list(range(end - first))
            # A fault behind right tokens is left for the next step, which meets it first.
            errors, later_errors = output.errors, dict[str, str]()
            round_, part = 0, requests[first:end]
            part_masks, mask_rows = masks, [] if masks is None else masks.rows[first:end]
            while members:
                part_logits = rows.logits_of(round_, members, logits)
                chosen = self._choose(part, part_logits, part_masks, mask_rows, output, errors)
                pairs = zip(members, chosen, strict=True)
                members = [i for i, token_id in pairs if rows.is_right(round_, i, token_id)]
                part = [requests[first + i] for i in members]
                part_masks = self._begin_masks(part)
                mask_rows = [] if part_masks is None else part_masks.rows
                errors = later_errors
                round_ += 1

    def _choose(
        self,
        requests: Sequence[RequestRow],
        logits: F32,
        masks: StepMasks | None,
        mask_rows: Sequence[int],
        output: ModelRunnerOutput,
        errors: dict[str, str],
    ) -> list[int]:
        """Sample a token of each request and note it. Returns those that more may follow, and
        -1 for the others."""
        chosen: list[int] = []
        states = [request.sampling for request in requests]
        if masks is None:
            sampled = self.sampler.sample(logits, states)
        else:
            masks.wait()
            sampled = self.sampler.sample(logits, states, masks.masks, mask_rows)
        for i, request in enumerate(requests):
            error, param = sampled.errors.get(i), None
            has_grammar = request.grammar is not None
            if has_grammar and (fault := request.grammar.error) is not None:
                error, param = f"structured_outputs: {fault}", "structured_outputs"
            elif error is not None and error.startswith(NOTHING_ALLOWED):
                param = "structured_outputs" if has_grammar else "allowed_token_ids"
            if error is not None:
                errors[request.request_id] = error
                if error.startswith(NOT_NUMBERS):
                    output.corrupted.add(request.request_id)
                if param is not None:
                    output.error_params[request.request_id] = param
                chosen.append(-1)
                continue
            token_id = sampled.token_ids[i]
            self.batch.append_token(request, token_id)
            is_ended = request.grammar is not None and request.grammar.is_ended
            if is_ended:
                output.grammar_ended.add(request.request_id)
            chosen.append(-1 if is_ended else token_id)
            output.sampled_token_ids.setdefault(request.request_id, []).append(token_id)
            logprobs = sampled.logprobs[i]
            if logprobs is not None:
                output.logprobs.setdefault(request.request_id, []).append(logprobs)
        return chosen

    def _prompt_logprobs(
        self, step: PreparedStep, idx: int, request: RequestRow, output: ModelRunnerOutput
    ) -> None:
        """Score the prompt tokens that follow the positions computed in this step."""
        first, end = (int(i) for i in step.inputs.query_start_loc[idx : idx + 2])
        position = int(step.inputs.positions[first])
        end = min(end, first + request.num_prompt_tokens - 1 - position)
        if end <= first:
            return
        count = request.num_prompt_logprobs
        assert count is not None
        targets = self.batch.tokens(request, position + 1, position + 1 + end - first)
        entries: list[TokenLogprobs] = []
        for start in range(first, end, self.slice_rows):
            stop = min(start + self.slice_rows, end)
            logits = self.executable.logits(np.arange(start, stop, dtype=np.int32))
            ids = targets[start - first : stop - first]
            try:
                entries += self.sampler.prompt_logprobs(logits, ids, count)
            except EngineGenerateError as error:
                output.errors[request.request_id] = str(error)
                if str(error).startswith(NOT_NUMBERS):
                    output.corrupted.add(request.request_id)
                return
        output.prompt_logprobs[request.request_id] = entries
