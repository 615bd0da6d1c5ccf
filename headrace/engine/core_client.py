"""How the front half reaches an engine core: two small Protocols, and who implements them.

Both speak in the same records; whoever holds a client is its only user, in one thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from headrace.config.engine import EngineConfig
from headrace.engine.launch import EXECUTOR_FACTORY, OnStage
from headrace.messages.outputs import EngineCoreOutputs
from headrace.messages.requests import EngineCoreRequest, Verb
from headrace.messages.startup import EngineReady


class EngineCoreClient(Protocol):
    """A core that has been started. What both kinds of client have in common."""

    ready: EngineReady

    @property
    def dead_error(self) -> BaseException | None:
        """Why the core is not running any more; None while it is."""
        ...

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request.

        Raises:
            EngineDeadError: the core is not running any more.
            ValidationError: the request holds something that cannot be sent.
        """
        ...

    def abort_requests(self, request_ids: list[str]) -> None:
        """Let the core forget these. Unknown ids are fine; a core that ended is not told."""
        ...

    def shutdown(self, timeout: float | None = None) -> None:
        """End the core, by force after `timeout` seconds. Idempotent; from any thread."""
        ...


class SyncEngineCoreClient(EngineCoreClient, Protocol):
    """A core for a caller that waits."""

    def get_outputs(self) -> EngineCoreOutputs:
        """Wait for the next outputs. Call only with live requests, else it waits for a beat.

        Raises:
            EngineDeadError: the core ended, and all that it said has been given.
        """
        ...

    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a control verb and wait for its result.

        Raises:
            EngineDeadError, TimeoutError, EngineGenerateError: the core ended, was too slow, or
                answered with this error.
        """
        ...


class AsyncEngineCoreClient(EngineCoreClient, Protocol):
    """A core for the tasks of one event loop."""

    async def get_outputs(self) -> EngineCoreOutputs:
        """As in SyncEngineCoreClient. One task at a time."""
        ...

    async def call(self, verb: Verb) -> Any:
        """As in SyncEngineCoreClient, without a limit of time."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether the core had nothing to do at its last word, and got nothing since."""
        ...

    def silence(self) -> float:
        """Seconds since the core's last word."""
        ...


_CLIENTS = {
    "inproc": ("headrace.engine.inproc_client", "InprocClient"),
    "sync": ("headrace.engine.mp_client", "SyncMPClient"),
    "async": ("headrace.engine.mp_client", "AsyncMPClient"),
}
"""Imported on use: the core, which comes with the in-process client, is not for every process."""


def make_sync_client(
    config: EngineConfig,
    *,
    multiprocess: bool,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> SyncEngineCoreClient:
    """Start a core for a caller that waits, in a process of its own or in this one.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot be started, in one line.
    """
    make = _load("sync" if multiprocess else "inproc")
    return cast(SyncEngineCoreClient, make(config, on_stage, executor_factory))


def make_async_client(
    config: EngineConfig,
    *,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> AsyncEngineCoreClient:
    """Start a core, in a process of its own, for tasks of an event loop. Needs no running loop.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot be started, in one line.
    """
    return cast(AsyncEngineCoreClient, _load("async")(config, on_stage, executor_factory))


def _load(kind: str) -> Any:
    module, name = _CLIENTS[kind]
    return getattr(import_module(module), name)
