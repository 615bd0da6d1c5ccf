"""What is measured: plain records, filled by the output processor, read by stat loggers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.messages.outputs import SchedulerStats
from headrace.metrics.records import Metric


@dataclass(slots=True)
class FinishedRequestStats:
    """One finished request. Times in seconds; None where the request never got so far."""

    finish_reason: str
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    max_tokens_param: int | None
    n_param: int
    e2e_latency: float
    queue_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    inference_time: float | None = None
    time_per_output_token: float | None = None
    max_num_generation_tokens: int | None = None
    """Of the n requests that were asked for as one: those of the longest; set on the last."""


@dataclass(slots=True)
class IterationStats:
    """What one batch of core outputs meant, as the front process saw it."""

    num_step_tokens: int = 0
    num_generation_tokens: int = 0
    num_prompt_tokens: int = 0
    """Prompt tokens of requests whose first token came in this iteration."""
    num_cached_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished: list[FinishedRequestStats] = field(default_factory=list)


class StatLogger(Protocol):
    """Somewhere measurements go. Called on the thread that processes outputs; must be quick."""

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take in one iteration."""
        ...

    def log(self) -> None:
        """Called every `stats_interval` seconds: say what is worth saying."""
        ...


class ReadableStatLogger(StatLogger, Protocol):
    """One that keeps what it is told."""

    def read(self) -> list[Metric]:
        """All of it now."""
        ...
