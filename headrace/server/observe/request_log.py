"""What each request took, as lines of JSON in a file; written beside the event loop.

Bounded: when the disk cannot follow, lines are left out and counted. A file that was moved away is
made anew.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from headrace.errors import ConfigError
from headrace.logger import make_logger
from headrace.server.access.open_requests import OpenRequest
from headrace.server.protocol.usage import UsageDetails, usage_details

logger = make_logger(__name__)

MAX_WAITING = 10_000
"""Lines that may wait to be written."""
LAST_WORD_SECONDS = 0.5
"""How long a line waits for what the engine core says last of a request that was cut short."""


class LogLine(msgspec.Struct, kw_only=True):
    """One line: a request that reached the engine."""

    time: float
    """When it ended; wall clock, seconds."""
    id: str
    key: str | None
    route: str
    arrived: float
    seconds: float
    finish_reasons: list[str]
    """Of its answers, as they ended; `abort` also where the client went away."""
    num_answers: int
    prompt_tokens: int
    completion_tokens: int
    details: UsageDetails


class RequestLog:
    """The file of one server. `add` is for the event loop, the rest for any thread.

    Args:
        path: appended to.
        clock: seconds, monotonic; given by tests.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._queue: queue.Queue[tuple[float, float, OpenRequest] | None] = queue.Queue(MAX_WAITING)
        self._wants_reopening = threading.Event()
        self._num_lost = 0
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open while we serve
        except OSError as error:
            raise ConfigError(f"request_log {path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    def add(self, request: OpenRequest) -> None:
        """Write a line about a request that has ended. Never waits."""
        try:
            self._queue.put_nowait((self._clock(), time.time(), request))
        except queue.Full:
            self._num_lost += 1
            logger.warning_once("the request log cannot keep up: lines are left out")

    def reopen(self) -> None:
        """Go on in a new file of the same name: this one is being moved away."""
        self._wants_reopening.set()

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, and end."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    # In the thread

    def _write_all(self) -> None:
        waiting: deque[tuple[float, float, OpenRequest]] = deque()
        is_open = True
        while is_open or waiting:
            try:
                item = self._queue.get(timeout=LAST_WORD_SECONDS / 2) if is_open else None
            except queue.Empty:
                pass
            else:
                if item is None:
                    is_open = False
                else:
                    waiting.append(item)
            lines = []
            due = self._clock() - LAST_WORD_SECONDS
            while waiting and (waiting[0][0] <= due or not is_open):
                _, ended, request = waiting.popleft()
                lines.append(msgspec.json.encode(line_of(request, ended)) + b"\n")
            if lines:
                self._write(b"".join(lines))
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            if self._wants_reopening.is_set() or self._has_moved():
                self._wants_reopening.clear()
                new = open(self._path, "ab", buffering=0)  # noqa: SIM115
                self._file.close()
                self._file = new
            self._file.write(data)
        except OSError as error:
            self._num_lost += data.count(b"\n")
            logger.warning_once("the request log cannot be written: %s", error.strerror)
        if self._num_lost:
            logger.warning("%d lines of the request log were left out", self._num_lost)
            self._num_lost = 0

    def _has_moved(self) -> bool:
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True


def line_of(request: OpenRequest, ended: float) -> LogLine:
    """The line about a request that ended at this time of the wall clock."""
    metrics = [stream.metrics for stream in request.streams]
    return LogLine(
        time=ended,
        id=request.id,
        key=request.caller.name,
        route=request.route,
        arrived=request.caller.arrived,
        seconds=round(ended - request.caller.arrived, 6),
        finish_reasons=[reason for one in metrics for reason in one.finish_reasons],
        num_answers=request.num_answers,
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=sum(one.num_generation_tokens for one in metrics),
        details=usage_details(metrics),
    )
