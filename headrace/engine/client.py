"""What the server and other programs see of an engine: `AsyncLLM`, or a fake in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.config.engine import EngineConfig
from headrace.inputs import EngineInput, PromptType
from headrace.messages.outputs import RequestProgress, SchedulerStats
from headrace.messages.requests import PauseMode
from headrace.outputs import RequestMetrics, RequestOutput
from headrace.sampling_params import SamplingParams
from headrace.text.renderer import Renderer
from headrace.text.tokenizer import Tokenizer


class RequestOutputStream(Protocol):
    """The one holder of a live request: iterate it to the end, or close it, which aborts."""

    request_id: str

    metrics: RequestMetrics
    """What it took until now."""

    @property
    def core_ids(self) -> Sequence[str]:
        """In the core; n of them."""
        ...

    def __aiter__(self) -> RequestOutputStream: ...

    async def __anext__(self) -> RequestOutput:
        """The next output. What piled up since the last call comes merged as one.

        Raises:
            EngineDeadError: the core ended.
            EngineGenerateError: this request failed.
            StopAsyncIteration: after the output with `finished`.
        """
        ...

    def push_to(self, take: Callable[[RequestOutput], bool]) -> None:
        """Let outputs that come while the reader waits be given to `take` at once, which spares
        waking it. Never the last one, and none that `take` refuses by False; what it raises is
        raised to the reader. A stream is free to leave all to the reader."""
        ...

    async def aclose(self) -> None:
        """Let go of the request: aborts it in the core unless it has finished. Idempotent."""
        ...


class EngineClient(Protocol):
    """An engine as an asynchronous service. All handlers of one server share one."""

    config: EngineConfig
    renderer: Renderer
    max_model_len: int
    """As the core settled it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        ...

    @property
    def is_running(self) -> bool: ...

    @property
    def is_stopped(self) -> bool: ...

    @property
    def errored(self) -> bool: ...

    @property
    def dead_error(self) -> BaseException: ...

    @property
    def scheduler_stats(self) -> SchedulerStats:
        """The latest the core told."""
        ...

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType | EngineInput,
        params: SamplingParams,
        arrival_time: float | None = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
    ) -> RequestOutputStream:
        """Check everything that can be known now, then queue the request.

        Args:
            tenant: whose it is: the waiting requests of several tenants are started in fair turns.

        Raises ValidationError, UnsupportedError, AdmissionError or EngineDeadError before anything
        has been queued.
        """
        ...

    def generate(
        self,
        prompt: PromptType | EngineInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """add_request and iterate. Leaving the generator early aborts the request."""
        ...

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End every live request with this caller's id; its reader gets finish_reason `abort`.

        Args:
            internal: they are ids in the core.
        """
        ...

    async def progress(self, core_ids: Sequence[str]) -> dict[str, RequestProgress]:
        """How far requests are, by their ids in the core; those that have ended are left out."""
        ...

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raise AdmissionError when n more requests would pass the queue limits."""
        ...

    def admit(self, n: int = 1) -> AbstractContextManager[None]:
        """check_admission, and n requests count as queued inside the `with` block.

        For work before `add_request` that takes time; without a wait in between, the request that
        was let in is not refused by it.
        """
        ...

    async def check_health(self) -> None:
        """Raise EngineDeadError when the core has ended or gives no sign of life."""
        ...

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool: ...

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Schedule nothing more; new requests are queued meanwhile."""
        ...

    async def resume_generation(self) -> None: ...

    async def is_paused(self) -> bool: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Stop, and give memory back: of the KV cache (1), of the weights too (2)."""
        ...

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take it back. Whether all is awake."""
        ...

    async def is_sleeping(self) -> bool: ...

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Raises ProfilerAlreadyActiveError when a profile is being taken."""
        ...

    async def stop_profile(self) -> list[str]: ...

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as programs of this field know it
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call an entry of every worker's table of methods."""
        ...

    async def do_log_stats(self) -> None: ...

    def shutdown(self, timeout: float | None = None) -> None: ...
