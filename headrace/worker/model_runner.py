"""Runs one step: inputs, forward, logits, sampling. Knows nothing of queues or clients."""

from __future__ import annotations

import numpy as np

from headrace.errors import EngineGenerateError
from headrace.messages.outputs import TokenLogprobs
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from headrace.ops.ops import Executable
from headrace.worker.grammar_masks import StepMasks
from headrace.worker.input_batch import InputBatch, PreparedStep, RequestRow
from headrace.worker.sampler import Sampler

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
            masks = self._begin_masks(step)
            self.executable.forward(step.inputs)
            self._sample(step, masks, output)
            for idx, request in enumerate(step.requests):
                if request.num_prompt_logprobs is not None:
                    self._prompt_logprobs(step, idx, request, output)
        return output

    def _begin_masks(self, step: PreparedStep) -> StepMasks | None:
        """Let the masks of grammars be found while the model runs."""
        if not self.batch.num_grammars or self.batch.grammars is None:
            return None
        return self.batch.grammars.begin([request.grammar for request in step.sampling_requests])

    def _sample(
        self, step: PreparedStep, masks: StepMasks | None, output: ModelRunnerOutput
    ) -> None:
        if masks is not None:
            masks.wait()
        for first in range(0, len(step.sampling_requests), self.slice_rows):
            end = first + self.slice_rows
            part = step.sampling_requests[first:end]
            logits = self.executable.logits(step.logits_rows[first:end])
            states = [request.sampling for request in part]
            if masks is None:
                sampled = self.sampler.sample(logits, states)
            else:
                sampled = self.sampler.sample(logits, states, masks.masks, masks.rows[first:end])
            for i, request in enumerate(part):
                error = sampled.errors.get(i)
                if request.grammar is not None and (fault := request.grammar.error) is not None:
                    error = f"structured_outputs: {fault}"
                if error is not None:
                    output.errors[request.request_id] = error
                    continue
                token_id = sampled.token_ids[i]
                self.batch.append_token(request, token_id)
                if request.grammar is not None and request.grammar.is_ended:
                    output.grammar_ended.add(request.request_id)
                output.sampled_token_ids[request.request_id] = token_id
                logprobs = sampled.logprobs[i]
                if logprobs is not None:
                    output.logprobs[request.request_id] = logprobs

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
                return
        output.prompt_logprobs[request.request_id] = entries
