"""The life of a serving process: bind, answer at once, start the engine, serve, drain, end.

The exit status tells the cause: 0 for a signal, 1 when the engine died.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.config.args import AsyncEngineArgs
from headrace.config.engine import EngineConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.client import EngineClient
from headrace.engine.setup import make_engine_config
from headrace.errors import ConfigError, UnsupportedError, ValidationError
from headrace.logger import FORMAT_ENV, make_logger, set_up_logging
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.metrics.stats import StatLogger
from headrace.sampling_params import SamplingParams
from headrace.server.access.keys import read_key_file
from headrace.server.app import build_app
from headrace.server.http.listen import address_of, bind, removed_at_end
from headrace.server.http.tls import check_tls, reload_certificate, tls_files
from headrace.server.http.uvicorn_server import Server, uvicorn_config
from headrace.server.observe.request_log import RequestLog
from headrace.server.observe.tracing import Tracer
from headrace.server.settings.server import ServerSettings
from headrace.server.settings.table import log_settings
from headrace.server.state import ServerState
from headrace.server.watch import watch_files

logger = make_logger(__name__)

WATCH_INTERVAL = 0.5
CUT_SECONDS = 1.0
"""How long clients get to take in that they were cut off, once the end cannot wait."""
YOUNG_OBJECTS = 20_000
"""How many new objects make the collector look at them. A step of hundreds of streams makes more
than Python's 700 and lets go of nearly all by itself: looking took a seventh of this process's
time. What is in cycles is a few megabytes at most until then."""
INTERRUPT_SECONDS = 5.0
"""How long a start that was interrupted may take to clean up."""


class StartInterrupted(Exception):
    """A signal came while the engine was starting."""


def run_server(args: AsyncEngineArgs, settings: ServerSettings) -> int:
    """Serve until a signal comes or the engine dies; gives the exit status.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot start; one line, nothing left behind.
    """
    begin = time.monotonic()
    check_tls(settings)
    if settings.api_key_file is not None:
        read_key_file(settings.api_key_file)
    with contextlib.closing(bind(settings)) as listener, removed_at_end(settings.uds):
        config = make_engine_config(args)
        _check_defaults(config)
        if settings.log_format == "json":
            os.environ[FORMAT_ENV] = "json"  # for the core's process, too
        # Only now: until here a setting that cannot work shall be the one line on the screen.
        set_up_logging(role="server")
        log_settings(config, settings)
        metrics = PrometheusStatLogger(config, prefix=settings.metrics_prefix)
        app = build_app(None, settings, metrics)
        log = None if settings.request_log is None else RequestLog(settings.request_log)
        tracer = None
        if settings.otlp_traces_endpoint is not None:
            tracer = Tracer(settings.otlp_traces_endpoint, config.model.served_names[0])
        server = Server(uvicorn_config(app, settings, config.front.shutdown_timeout))
        process = ServingProcess(app.state.server, server, config, metrics, begin, log, tracer)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(process.run(listener))


def _check_defaults(config: EngineConfig) -> None:
    """Refuse generation defaults with which every request that keeps them would fail."""
    try:
        SamplingParams.from_optional(**config.model.generation_config)
    except (ValidationError, UnsupportedError) as error:
        raise ConfigError(f"generation_config: {error}") from None


@dataclass
class ServingProcess:
    """One run of a server, on one event loop.

    Attributes:
        state: shared with the handlers; told when the engine is ready and when the end comes.
        begin: when the process began, for the line that says how long the start took.
        request_log: where a line is written for each request.
        tracer: where a span of each request is sent.
    """

    state: ServerState
    server: Server
    config: EngineConfig
    metrics: PrometheusStatLogger
    begin: float
    request_log: RequestLog | None = None
    tracer: Tracer | None = None
    exit_status: int = 0
    _num_signals: int = 0
    _interrupted: threading.Event = field(default_factory=threading.Event)

    async def run(self, listener: socket.socket) -> int:
        """Serve to the end; gives the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if self.tracer is not None:
            self.state.open_requests.on_end.append(self.tracer.add)
        self.server.config.load()
        serving = asyncio.create_task(self.server.serve(sockets=[listener]))
        watching = self._watch_files()
        if self.request_log is not None:
            self.state.open_requests.on_end.append(self.request_log.add)
            loop.add_signal_handler(signal.SIGHUP, self.request_log.reopen)
        starting = self._start_engine(loop)
        try:
            both: set[asyncio.Future[Any]] = {serving, starting}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            elif not self._interrupted.is_set():
                await self._serve(starting.result(), serving, listener)
        finally:
            for task in watching:
                task.cancel()
            await self._end(starting, serving)
            await asyncio.gather(*watching, return_exceptions=True)
            if self.request_log is not None:
                await asyncio.to_thread(self.request_log.close)
            if self.tracer is not None:
                await asyncio.to_thread(self.tracer.close)
        return self.exit_status

    def _watch_files(self) -> list[asyncio.Task[None]]:
        """Read again what may change while the server runs."""
        keys = self.state.keys
        tasks = []
        if keys is not None and keys.path is not None:
            tasks.append(asyncio.create_task(watch_files([keys.path], keys.reload)))
        settings = self.state.settings
        if files := tls_files(settings):
            context = self.server.config.ssl
            assert context is not None
            reload = partial(reload_certificate, context, settings)
            tasks.append(asyncio.create_task(watch_files(files, reload)))
        return tasks

    # -- start ---------------------------------------------------------------------------------

    def _start_engine(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[AsyncLLM]:
        """Build the engine in a thread of its own, so that the port answers meanwhile."""
        done: asyncio.Future[AsyncLLM] = loop.create_future()

        def tell(stage: str, fraction: float) -> None:
            if self._interrupted.is_set():
                raise StartInterrupted
            loop.call_soon_threadsafe(self._note_stage, stage, fraction)

        def build() -> None:
            try:
                engine = self._build_engine(tell)
            except Exception as error:
                with contextlib.suppress(RuntimeError):  # nobody waits any more
                    loop.call_soon_threadsafe(done.set_exception, error)
                return
            try:
                loop.call_soon_threadsafe(done.set_result, engine)
            except RuntimeError:  # the loop has ended meanwhile
                engine.shutdown()

        threading.Thread(target=build, name="engine-start", daemon=True).start()
        return done

    def _build_engine(self, on_stage: Callable[[str, float], None]) -> AsyncLLM:
        loggers: list[StatLogger] = []
        if self.config.front.log_stats:
            loggers = [self.metrics, LoggingStatLogger()]
        return AsyncLLM(self.config, stat_loggers=loggers, on_stage=on_stage)

    def _note_stage(self, stage: str, fraction: float) -> None:
        self.state.stage, self.state.fraction = stage, min(fraction, 0.99)

    # -- serve ---------------------------------------------------------------------------------

    async def _serve(
        self, engine: AsyncLLM, serving: asyncio.Task[None], listener: socket.socket
    ) -> None:
        self.state.attach(engine)
        # What the start made stays: a collection that looks at it all holds up every stream.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        logger.info(
            "ready: %s/v1 (model %s, %.1f s)",
            address_of(listener, self.state.settings),
            ", ".join(self.config.model.served_names),
            time.monotonic() - self.begin,
        )
        watching = asyncio.create_task(self._watch(engine))
        try:
            await serving
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, engine: EngineClient) -> None:
        """End the server, with a status that says so, some time after the engine has died."""
        while not engine.errored:  # noqa: ASYNC110 - a property, not an event
            await asyncio.sleep(WATCH_INTERVAL)
        linger = self.state.settings.engine_death_linger
        logger.error("%s; the server ends in %g s", engine.dead_error, linger)
        self.exit_status = 1
        await asyncio.sleep(linger)
        self.server.should_exit = True

    # -- end -----------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        """The first signal drains, the second ends at once."""
        self._num_signals += 1
        self._interrupted.set()
        self.state.drain()
        self.server.should_exit = True
        loop = asyncio.get_running_loop()
        if self._num_signals == 1:
            timeout = self.config.front.shutdown_timeout
            logger.info("ending: running requests get %g s", timeout)
            loop.call_later(timeout, self.state.cut_off)
        else:
            logger.warning("ending at once")
            self.state.cut_off()
            loop.call_later(CUT_SECONDS, self._close_at_once)

    def _close_at_once(self) -> None:
        self.server.force_exit = True

    async def _end(self, starting: asyncio.Future[AsyncLLM], serving: asyncio.Task[None]) -> None:
        self.server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        if not starting.done():
            await asyncio.wait({starting}, timeout=INTERRUPT_SECONDS)
        if starting.done() and starting.exception() is None:
            engine = starting.result()
            if engine.errored:
                self.exit_status = 1
            engine.shutdown()
