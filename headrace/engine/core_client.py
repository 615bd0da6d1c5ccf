"""How the front half reaches an engine core: two small Protocols, and who implements them.

Both speak in the same records; whoever holds a client is its only user, in one thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, Protocol, overload

from headrace.config.engine import EngineConfig
from headrace.engine.launch import EXECUTOR_FACTORY, OnStage
from headrace.errors import UnsupportedError
from headrace.messages.outputs import EngineCoreOutputs
from headrace.messages.requests import EngineCoreRequest, Verb, Vocabulary
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

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Give the core the tokens' bytes, before the first request that has a grammar.

        Raises:
            EngineDeadError: the core is not running any more.
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

    @property
    def worker(self) -> Any:
        """The executor, where the core is in this process; else None."""
        ...

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
        """As in SyncEngineCoreClient. One task at a time. The loop has a turn even when outputs are
        there already."""
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


@overload
def make_client(
    config: EngineConfig,
    *,
    asynchronous: Literal[False],
    multiprocess: bool,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> SyncEngineCoreClient: ...


@overload
def make_client(
    config: EngineConfig,
    *,
    asynchronous: Literal[True],
    multiprocess: bool,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> AsyncEngineCoreClient: ...


def make_client(
    config: EngineConfig,
    *,
    asynchronous: bool,
    multiprocess: bool,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> SyncEngineCoreClient | AsyncEngineCoreClient:
    """Start a core and give the client for it; which one is fixed from here on.

    Args:
        asynchronous: whether tasks of an event loop use it (none need be running yet), or a caller
            that waits.
        multiprocess: whether the core gets a process of its own, or lives in this one.
        on_stage: told about the start as it goes on, in this thread.
        executor_factory: `module:function` of the core's executor; the seam for tests.

    Raises:
        UnsupportedError: an asynchronous client of a core in this process.
        ConfigError, ModelError, EngineStartError: it cannot be started, in one line.
    """
    if asynchronous and not multiprocess:
        raise UnsupportedError("AsyncLLM needs a core in a process of its own (multiprocess)")
    kind = "async" if asynchronous else "sync" if multiprocess else "inproc"
    module, name = _CLIENTS[kind]
    client: SyncEngineCoreClient | AsyncEngineCoreClient = getattr(import_module(module), name)(
        config, on_stage, executor_factory
    )
    return client
