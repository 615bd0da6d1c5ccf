"""What the handlers of one server share: the engine, the settings, where start-up stands."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import time

from starlette.requests import Request

import headrace
from headrace.engine.client import EngineClient
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.access.caller import caller_of
from headrace.server.access.deadline import timeout_ms
from headrace.server.access.keys import KeyRing
from headrace.server.access.open_requests import OpenRequest, OpenRequests
from headrace.server.errors import RETRY_AFTER, NotFoundError, NotReadyError, server_is_ending
from headrace.server.settings.server import ServerSettings

TEXT_SLOTS = 2
"""Of the threads that asyncio has (as many as processors, and 4): the others are for chats."""


@dataclass
class ServerState:
    """One server's shared state. Lives on the event loop; nothing here is touched by threads.

    Attributes:
        client: the engine, once it is ready.
        stage: what start-up is doing, for /startupz.
        fraction: how much of start-up is done, 0 to 1.
        is_draining: whether the server is ending and takes no new work.
        load: requests for text that are being answered.
        reading: time limits of the bodies that are being read.
    """

    settings: ServerSettings
    metrics: PrometheusStatLogger | None = None
    client: EngineClient | None = None
    stage: str = "starting"
    fraction: float = 0.0
    is_draining: bool = False
    load: int = 0
    reading: set[asyncio.Timeout] = field(default_factory=set)
    started: int = field(default_factory=lambda: int(time()))
    fingerprint: str = f"headrace-{headrace.__version__}"

    keys: KeyRing | None = field(init=False)
    """None: everybody may use every route."""

    open_requests: OpenRequests = field(default_factory=OpenRequests)
    progress_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who asks the engine how far requests are."""
    parse_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who parses a large body."""
    text_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TEXT_SLOTS))
    """Held by who tokenises much, or for nobody's answer, which takes seconds of a thread."""

    _cut: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.keys = None
        if settings.needs_keys:
            self.keys = KeyRing(settings.api_key, settings.api_key_file)
        self.open_requests.on_end.append(self._measure)

    def _measure(self, request: OpenRequest) -> None:
        """Count what a request of a key took."""
        if self.metrics is not None and request.caller.name is not None:
            metrics = [stream.metrics for stream in request.streams]
            num_generated = sum(one.num_generation_tokens for one in metrics)
            self.metrics.keys.record(request.caller.name, request.num_prompt_tokens, num_generated)

    @property
    def cut(self) -> asyncio.Future[None]:
        """Done when running requests get no more time: the server ends now."""
        if self._cut is None:
            self._cut = asyncio.get_running_loop().create_future()
        return self._cut

    def drain(self) -> None:
        """Take no new work; nobody waits for bodies that have not come to their end."""
        self.is_draining = True
        for limit in self.reading:
            limit.reschedule(0)

    def cut_off(self) -> None:
        """End running requests; their clients are told."""
        if not self.cut.done():
            self.cut.set_result(None)

    def attach(self, engine: EngineClient) -> None:
        """The engine is ready: from now on requests are served."""
        config = engine.config
        told = repr((config.model.path, config.model.format, config.cache, config.device))
        digest = hashlib.sha256(told.encode()).hexdigest()[:8]
        self.fingerprint = f"headrace-{headrace.__version__}-{digest}"
        self.client = engine
        self.stage, self.fraction = "ready", 1.0

    @property
    def engine(self) -> EngineClient:
        """The engine of a server that takes requests.

        Raises:
            NotReadyError: it is still starting, or the server is ending.
            EngineDeadError: it ended.
        """
        if self.client is None:
            raise NotReadyError(
                f"the engine is still starting ({self.stage}, {self.fraction:.0%})",
                retry_after=RETRY_AFTER,
            )
        if self.is_draining:
            raise server_is_ending()
        if self.client.errored:
            raise self.client.dead_error
        return self.client

    @contextlib.contextmanager
    def admit(self, request: Request, num_answers: int) -> Iterator[None]:
        """Let answers come, before work is done for them: they count as queued inside the `with`
        block.

        Raises:
            AdmissionError: with them the engine, or the caller's key, would pass a limit.
            ValidationError: a time limit in a header that is none.
        """
        timeout_ms(request.headers)
        with (
            self.open_requests.admit(caller_of(request.scope), num_answers),
            self.engine.admit(num_answers),
        ):
            yield

    def model_name(self, asked: str | None) -> str:
        """The name to report for the model a request asks for; the first served one.

        Raises:
            NotFoundError: a model that is not served here.
        """
        names = self.engine.config.model.served_names
        if asked is not None and asked not in names:
            raise NotFoundError(
                f"the model {asked!r} is not served here; there is: {', '.join(names)}",
                param="model",
                value=asked,
            )
        return names[0]
