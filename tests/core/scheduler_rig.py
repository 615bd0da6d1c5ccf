"""A scheduler beside an executor that checks what it is told, for tests."""

from __future__ import annotations

from typing import Any

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.scheduler import Scheduler
from headrace.messages.outputs import EngineCoreOutput
from headrace.messages.step import SchedulerOutput
from tests.fakes import RecordingExecutor, make_core_request


class Rig:
    """A scheduler with an executor that checks what it is told."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 64,
        caching: bool = True,
        seed: int = 0,
        script: dict[str, list[int]] | None = None,
        **limits: Any,
    ) -> None:
        self.time = 0.0
        self.scheduler = Scheduler(
            SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **limits}),
            CacheConfig(block_size=block_size, enable_prefix_caching=caching),
            num_blocks,
            max_model_len,
            now=lambda: self.time,
            seed=seed,
        )
        self.executor = RecordingExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            script=script,
        )
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(self, request_id: str, prompt: list[int], **options: Any) -> None:
        self.scheduler.add_request(make_core_request(request_id, prompt, **options))

    def step(self, max_prefill_tokens: int | None = None) -> SchedulerOutput:
        order = self.scheduler.schedule(max_prefill_tokens)
        for output in self.scheduler.update(order, self.executor.execute(order)):
            self.outputs.setdefault(output.request_id, []).append(output)
        return order

    def run(self) -> None:
        for _ in range(1000):
            if not self.scheduler.roster.has_work():
                return
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def tokens(self, request_id: str) -> list[int]:
        return [t for o in self.outputs[request_id] for t in o.new_token_ids]
