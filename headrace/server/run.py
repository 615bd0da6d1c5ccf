"""The life of a serving process: bind, answer at once, start the engine, serve, drain, end.

The exit status tells the cause: 0 for a signal, 1 when the engine died.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from headrace.config.args import AsyncEngineArgs
from headrace.config.engine import EngineConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.client import EngineClient
from headrace.engine.setup import make_engine_config
from headrace.errors import ConfigError, UnsupportedError, ValidationError
from headrace.logger import make_logger, set_up_logging
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.metrics.stats import StatLogger
from headrace.sampling_params import SamplingParams
from headrace.server.app import build_app
from headrace.server.keys import read_key_file
from headrace.server.middleware import DirectSend
from headrace.server.request_log import RequestLog
from headrace.server.settings import ServerSettings
from headrace.server.state import ServerState
from headrace.server.table import log_settings
from headrace.server.watch import watch_files

logger = make_logger(__name__)

BACKLOG = 2048
WATCH_INTERVAL = 0.5
CUT_SECONDS = 1.0
"""How long clients get to take in that they were cut off, once the end cannot wait."""
SLOW_CLIENT_SECONDS = 5
"""The same when it can."""
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
    _check_tls(settings)
    if settings.api_key_file is not None:
        read_key_file(settings.api_key_file)
    with contextlib.closing(bind(settings)) as listener, _removed_at_end(settings.uds):
        config = make_engine_config(args)
        _check_defaults(config)
        # Only now: until here a setting that cannot work shall be the one line on the screen.
        set_up_logging(role="server")
        log_settings(config, settings)
        metrics = PrometheusStatLogger(config, prefix=settings.metrics_prefix)
        app = build_app(None, settings, metrics)
        log = None if settings.request_log is None else RequestLog(settings.request_log)
        server = Server(_uvicorn_config(app, settings, config.front.shutdown_timeout))
        process = ServingProcess(app.state.server, server, config, metrics, begin, log)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            return runner.run(process.run(listener))


def _check_tls(settings: ServerSettings) -> None:
    """Refuse a certificate that cannot be used, before uvicorn stumbles over it."""
    if settings.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"ssl_certfile {settings.ssl_certfile} and ssl_keyfile {settings.ssl_keyfile} "
            f"cannot be used: {error.strerror or error}"
        ) from None


def _check_defaults(config: EngineConfig) -> None:
    """Refuse generation defaults with which every request that keeps them would fail."""
    try:
        SamplingParams.from_optional(**config.model.generation_config)
    except (ValidationError, UnsupportedError) as error:
        raise ConfigError(f"generation_config: {error}") from None


def bind(settings: ServerSettings) -> socket.socket:
    """A listening socket, so that a taken address is noticed before anything else is done.

    Raises:
        ConfigError: the address cannot be used.
    """
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    host = settings.host or "0.0.0.0"  # as servers of this field do; the log says so
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{settings.port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from None
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on --uds {path}: {error.strerror or error}") from None
    return listener


def _is_stale_socket(path: str) -> bool:
    """Whether a socket file lies there that nobody listens on."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) != 0


@contextlib.contextmanager
def _removed_at_end(path: str | None) -> Iterator[None]:
    try:
        yield
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)


def _uvicorn_config(
    app: FastAPI, settings: ServerSettings, shutdown_timeout: float
) -> uvicorn.Config:
    _set_up_uvicorn_logging(settings)
    return uvicorn.Config(
        DirectSend(app),
        log_config=None,
        log_level=None,
        access_log=not settings.disable_uvicorn_access_log,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(shutdown_timeout) + SLOW_CLIENT_SECONDS,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        server_header=False,
    )


def _set_up_uvicorn_logging(settings: ServerSettings) -> None:
    """Let uvicorn's lines look like ours and go where ours go; we tell of start and end."""
    ours = logging.getLogger("headrace")
    for name in ("uvicorn.error", "uvicorn.access"):
        theirs = logging.getLogger(name)
        theirs.handlers = list(ours.handlers)
        theirs.propagate = False
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    level = settings.uvicorn_log_level.upper()
    if level == "INFO":
        level = "WARNING"
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    logging.getLogger("uvicorn.error").setLevel(logging.DEBUG if level == "TRACE" else level)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """A request that is cancelled because the server ends is no fault worth a trace."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Server(uvicorn.Server):
    """Uvicorn, with the signals left to us: it would end by the signal, we end with a status."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class ServingProcess:
    """One run of a server, on one event loop.

    Attributes:
        state: shared with the handlers; told when the engine is ready and when the end comes.
        begin: when the process began, for the line that says how long the start took.
        request_log: where a line is written for each request.
    """

    state: ServerState
    server: Server
    config: EngineConfig
    metrics: PrometheusStatLogger
    begin: float
    request_log: RequestLog | None = None
    exit_status: int = 0
    _num_signals: int = 0
    _interrupted: threading.Event = field(default_factory=threading.Event)

    async def run(self, listener: socket.socket) -> int:
        """Serve to the end; gives the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
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
        return self.exit_status

    def _watch_files(self) -> list[asyncio.Task[None]]:
        """Read again what may change while the server runs."""
        keys = self.state.keys
        tasks = []
        if keys is not None and keys.path is not None:
            tasks.append(asyncio.create_task(watch_files([keys.path], keys.reload)))
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
        self.state.is_draining = self.server.should_exit = True
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


def address_of(listener: socket.socket, settings: ServerSettings) -> str:
    """Where clients find the server."""
    if settings.uds is not None:
        return f"http+unix://{settings.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    shown = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    if ":" in shown:
        shown = f"[{shown}]"
    return f"{scheme}://{shown}:{port}{settings.root_path}"
