"""What all answers of the generating routes share: their head, their usage, how they are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from headrace.errors import EngineGenerateError
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
from headrace.server.protocol.common import (
    CompletionTokensDetails,
    PromptTokensDetails,
    StreamOptions,
    Usage,
)
from headrace.server.protocol.usage import usage_details
from headrace.server.settings.server import ServerSettings

Record = TypeVar("Record", bound=msgspec.Struct)


@dataclass
class Head:
    """The fields that stand in every answer and every chunk of a stream."""

    id: str
    model: str
    fingerprint: str
    created: int

    @classmethod
    def now(cls, id: str, model: str, fingerprint: str) -> Head:
        """A head with the present time."""
        return cls(id, model, fingerprint, int(time()))


class Tally:
    """Counts the tokens of one HTTP request: each prompt once, answers summed.

    Args:
        tells_cached: whether to tell how many prompt tokens came from the cache.
        tells_details: whether to tell what the request took.

    Attributes:
        reasoning_tokens: those of thoughts, among completion_tokens; None: not counted.
    """

    __slots__ = (
        "_cached", "_metrics", "_prompts", "_tells_cached", "_tells_details", "completion_tokens",
        "reasoning_tokens",
    )  # fmt: skip

    def __init__(self, *, tells_cached: bool, tells_details: bool = False) -> None:
        self._tells_cached = tells_cached
        self._tells_details = tells_details
        self._metrics: dict[int, RequestMetrics] = {}
        self._prompts: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self.completion_tokens = 0
        self.reasoning_tokens: int | None = None

    def add(self, job: int, output: RequestOutput) -> None:
        """Take in an output of the job at this position."""
        if job not in self._prompts:
            self._prompts[job] = len(output.prompt_token_ids)
            self._cached[job] = 0
            if output.metrics is not None:  # shared by all outputs of a job
                self._metrics[job] = output.metrics
        if output.num_cached_tokens and output.num_cached_tokens > self._cached[job]:
            self._cached[job] = output.num_cached_tokens
        for answer in output.outputs:
            self.completion_tokens += len(answer.token_ids)

    def usage(self) -> Usage:
        """The sums so far."""
        prompt_tokens = sum(self._prompts.values())
        details = PromptTokensDetails(sum(self._cached.values())) if self._tells_cached else UNSET
        return Usage(
            prompt_tokens,
            self.completion_tokens,
            prompt_tokens + self.completion_tokens,
            details,
            usage_details(self._metrics.values()) if self._tells_details else UNSET,
            UNSET
            if self.reasoning_tokens is None
            else CompletionTokensDetails(self.reasoning_tokens),
        )


@dataclass(frozen=True)
class UsagePlan:
    """Where a stream carries usage."""

    at_end: bool
    in_every_chunk: bool

    @classmethod
    def of(
        cls, options: StreamOptions | None, settings: ServerSettings, *, wants_details: bool = False
    ) -> UsagePlan:
        """As the request asks, or as the operator forces.

        Args:
            wants_details: the request asks for what usage tells.
        """
        if settings.enable_force_include_usage:
            return cls(True, True)
        if options is None:
            return cls(wants_details, False)
        asked = bool(options.include_usage)
        return cls(asked or wants_details, asked and bool(options.continuous_usage_stats))


def sum_usages(usages: Sequence[Usage]) -> Usage:
    """One count for several answers."""
    return _added(usages)


def _added(records: Sequence[Record]) -> Record:
    """A record of the same type with the sums of all integers and the longest of all times, also in
    records inside."""
    first = records[0]
    sums: dict[str, Any] = {}
    for name in first.__struct_fields__:
        values = [getattr(record, name) for record in records]
        if isinstance(values[0], msgspec.Struct):
            sums[name] = _added(values)
        elif isinstance(values[0], int):
            sums[name] = sum(values)
        elif isinstance(values[0], float):
            sums[name] = max(value for value in values if value is not None)
    return msgspec.structs.replace(first, **sums)


def json_response(record: object, headers: Mapping[str, str] | None = None) -> Response:
    """A whole answer."""
    return Response(
        msgspec.json.encode(record), headers=dict(headers or {}), media_type="application/json"
    )


def check_answer(answer: CompletionOutput) -> None:
    """An answer that failed is an error, not a text.

    Raises:
        EngineGenerateError: finish_reason is `error`.
    """
    if answer.finish_reason == "error":
        raise EngineGenerateError(answer.error or "the engine could not finish this request")
