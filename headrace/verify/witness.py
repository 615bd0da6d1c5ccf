"""What really happened to a request, noted where the scheduler's orders reach the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config.engine import EngineConfig
from headrace.messages.requests import Vocabulary
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from headrace.worker.executor import OnStage, make_executor


@dataclass(slots=True)
class Seen:
    """What the orders said of one request.

    Attributes:
        num_prompt_tokens: of its prompt.
        num_cached_tokens: found in the prefix cache when it was first started.
        num_starts: how often it was started: once, and once more after each preemption.
        num_steps: steps that computed something for it.
        num_pieces: steps that its prompt took when it was first computed.
        company: most requests in any of its steps, itself included.
        num_known: tokens of it that are in the cache after its last step.
        is_forgotten: whether the worker was last told to forget it.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_starts: int = 0
    num_steps: int = 0
    num_pieces: int = 0
    company: int = 0
    num_known: int = 0
    is_forgotten: bool = False

    @property
    def is_prefilling(self) -> bool:
        """Whether its prompt has not been computed to the end."""
        return self.num_known < self.num_prompt_tokens


class Witness:
    """An Executor that notes every order and passes it on.

    Raises: what loading the model raises.
    """

    def __init__(self, config: EngineConfig, on_stage: OnStage) -> None:
        self._executor = make_executor(config, on_stage)
        self.ready = self._executor.ready
        self.seen: dict[str, Seen] = {}

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        """See Executor."""
        self._note(order)
        return self._executor.execute(order)

    def _note(self, order: SchedulerOutput) -> None:
        for request_id in order.finished_ids:
            if request_id in self.seen:
                self.seen[request_id].is_forgotten = True
        computed: dict[str, int] = {}
        for new in order.new_requests:
            computed[new.request_id] = new.num_computed_tokens
            first = Seen(new.num_prompt_tokens, new.num_computed_tokens)
            seen = self.seen.setdefault(new.request_id, first)
            seen.num_starts += 1
            seen.is_forgotten = False
        for cached in order.cached_requests:
            computed[cached.request_id] = cached.num_computed_tokens
        for request_id, num in order.num_scheduled_tokens.items():
            seen = self.seen[request_id]
            seen.num_steps += 1
            seen.company = max(seen.company, len(order.num_scheduled_tokens))
            seen.num_known = computed[request_id] + num
            if seen.num_starts == 1 and computed[request_id] < seen.num_prompt_tokens:
                seen.num_pieces += 1

    def release_kv_cache(self) -> None:
        """See Executor."""
        self._executor.release_kv_cache()

    def call_worker(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See Executor."""
        return self._executor.call_worker(method, args, kwargs)

    def call_model(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See Executor."""
        return self._executor.call_model(function, args, kwargs)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See Executor."""
        self._executor.set_vocabulary(vocabulary)

    def prepare_grammar(self, grammar: str) -> None:
        """See Executor."""
        self._executor.prepare_grammar(grammar)

    def shutdown(self) -> None:
        """See Executor."""
        self._executor.shutdown()
