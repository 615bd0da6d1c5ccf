"""Streams that outlive their connection for a short while, so that a client can go on reading.

Every event has an `id:`; a client that lost its connection sends the last one it has seen as
`Last-Event-ID` and gets what came after it. Bounded in time, in memory, and in number.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.errors import ValidationError
from headrace.server.errors import NotFoundError
from headrace.server.settings.server import ServerSettings
from headrace.server.streams.live import LiveRequests, unless_disconnected
from headrace.server.streams.sse import DONE, EVENT_HEADERS, KEEP_ALIVE, FrameMaker, failure_frames

EVENT_ID_HEADER = "Last-Event-ID"


class Replay:
    """The events of one stream, made whether or not somebody reads them.

    Of what was read, and of what is still to be read, about `size` bytes are kept each: a stream
    whose reader is behind, or gone, is made no further until he comes.

    Args:
        owner: the name of the key it belongs to.
        digest: of the body it was asked for with.
        live, cut, frames, keep_alive: as for EventStream.
    """

    def __init__(
        self,
        token: str,
        owner: str | None,
        digest: bytes | None,
        live: LiveRequests,
        cut: asyncio.Future[None],
        frames: FrameMaker,
        size: int,
        keep_alive: float = 0,
    ) -> None:
        self._keep_alive = keep_alive
        self.token = token
        self.owner = owner
        self.digest = digest
        self.is_done = False
        self.num_readers = 0
        self._live = live
        self._cut = cut
        self._frames = frames
        self._max_size = size
        self._events: deque[bytes] = deque()
        self._last = 0
        """Number of the last event there; they are numbered from 1."""
        self._read = 0
        """Number of the last event that was read."""
        self._read_size = self._unread_size = 0
        self._reader = 0
        """Counts them: the last one reads."""
        self._changed = asyncio.Event()

    async def make(self) -> None:
        """Make all events. Cancelled, it lets go of the requests behind them."""
        try:
            async with self._live:
                try:
                    await unless_disconnected(_never, self._cut, self._make_outputs())
                except Exception as error:
                    self._append(failure_frames(error))
                else:
                    self._append(self._frames.end() + DONE)
        finally:
            self.is_done = True
            self._notify()

    async def read(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events after this one, as they come. Whoever read before gets no more.

        Raises:
            ValidationError, NotFoundError: there is no such event, or it is not kept any more.
        """
        first = self._last - len(self._events) + 1
        if after > self._last:
            raise ValidationError(f"there is no event {after} yet", param=EVENT_ID_HEADER)
        if after < first - 1:
            raise NotFoundError(
                f"the events after {after} are not kept any more (--stream-resume-size)",
                param=EVENT_ID_HEADER,
            )
        self._reader += 1
        self._notify()
        return self._events_after(after, self._reader)

    async def _events_after(self, position: int, me: int) -> AsyncGenerator[bytes, None]:
        while self._reader == me:
            changed = self._changed
            num_new = self._last - position
            if num_new:
                count = len(self._events)
                new = b"".join([self._events[i] for i in range(count - num_new, count)])
                position = self._last
                self._note_read(position)
                yield new
            elif self.is_done:
                return
            else:
                try:
                    async with asyncio.timeout(self._keep_alive / 2 or None):
                        await changed.wait()
                except TimeoutError:
                    yield KEEP_ALIVE  # without a number: it is no event

    def _note_read(self, position: int) -> None:
        """Events up to this one were read; of those, forget the oldest."""
        count = len(self._events)
        for i in range(count - (self._last - self._read), count - (self._last - position)):
            self._read_size += len(self._events[i])
            self._unread_size -= len(self._events[i])
        self._read = max(self._read, position)
        while self._read_size > self._max_size:
            self._read_size -= len(self._events.popleft())
        self._notify()

    async def _make_outputs(self) -> None:
        take = self._frames.take
        async with aclosing(self._live.outputs()) as outputs:
            async for job, output in outputs:
                self._append(take(job, output))
                while self._unread_size > self._max_size:
                    await self._changed.wait()

    def _append(self, frames: bytes) -> None:
        for event in frames.split(b"\n\n"):
            if event:
                self._last += 1
                data = b"id: %s:%d\n%s\n\n" % (self.token.encode(), self._last, event)
                self._events.append(data)
                self._unread_size += len(data)
        if frames:
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class ResumableStreams:
    """Those of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._replays: dict[str, Replay] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._replays)

    @property
    def has_room(self) -> bool:
        """Whether one more can be kept; those that are over give way, the oldest first."""
        if len(self._replays) < self._settings.max_resumable_streams:
            return True
        over = next((one for one in self._replays.values() if one.is_done), None)
        if over is None:
            return False
        self._forget(over.token)
        return True

    async def start(
        self,
        owner: str | None,
        digest: bytes | None,
        live: LiveRequests,
        cut: asyncio.Future[None],
        frames: FrameMaker,
        headers: Mapping[str, str],
    ) -> Response:
        """Begin a stream; the answer that reads it."""
        token = secrets.token_urlsafe(12)
        settings = self._settings
        size, keep_alive = settings.stream_resume_size, settings.sse_keep_alive_interval
        replay = Replay(token, owner, digest, live, cut, frames, size, keep_alive)
        self._replays[token] = replay
        self._tasks[token] = asyncio.create_task(replay.make())
        self._expire_later(replay)  # should nobody come to read
        return ReplayResponse(self, replay, await replay.read(0), headers)

    async def resume(self, owner: str | None, event_id: str, digest: bytes | None) -> Response:
        """The answer that goes on after an event.

        Args:
            digest: of the body that was sent again, if one was.

        Raises:
            ValidationError, NotFoundError: no stream of this caller has such an event, or it is
                not kept any more, or another body asked for it.
        """
        token, _, number = event_id.strip().rpartition(":")
        if not token or not number.isascii() or not number.isdigit() or len(number) > 15:
            raise ValidationError(
                f"{EVENT_ID_HEADER} must be the id of an event of a stream", param=EVENT_ID_HEADER
            )
        replay = self._replays.get(token)
        if replay is None or replay.owner != owner:
            raise NotFoundError(
                "this stream is not kept any more (--stream-resume-seconds); ask anew",
                param=EVENT_ID_HEADER,
            )
        if digest is not None and digest != replay.digest:
            raise ValidationError(
                "this stream was asked for with another body: send the same bytes again, or no "
                f"body; for another answer leave out {EVENT_ID_HEADER}",
                param=EVENT_ID_HEADER,
            )
        return ReplayResponse(self, replay, await replay.read(int(number)), {})

    def attach(self, replay: Replay) -> None:
        """Somebody reads."""
        replay.num_readers += 1
        if (timer := self._timers.pop(replay.token, None)) is not None:
            timer.cancel()

    def detach(self, replay: Replay) -> None:
        """Somebody reads no more; a stream without a reader is kept for a while only."""
        replay.num_readers -= 1
        if not replay.num_readers and replay.token in self._replays:
            self._expire_later(replay)

    def _expire_later(self, replay: Replay) -> None:
        seconds = self._settings.stream_resume_seconds
        loop = asyncio.get_running_loop()
        self._timers[replay.token] = loop.call_later(seconds, self._forget, replay.token)

    def _forget(self, token: str) -> None:
        self._replays.pop(token, None)
        if (timer := self._timers.pop(token, None)) is not None:
            timer.cancel()
        if (task := self._tasks.pop(token, None)) is not None:
            task.cancel()


class ReplayResponse(Response):
    """Sends the events of a stream to one client."""

    media_type = "text/event-stream"

    def __init__(
        self,
        streams: ResumableStreams,
        replay: Replay,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
    ) -> None:
        self._streams = streams
        self._replay = replay
        self._events = events
        super().__init__(headers={**EVENT_HEADERS, **headers})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.attach(self._replay)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await unless_disconnected(receive, never, self._send_all(send))
        except (ClientDisconnect, OSError):
            return
        finally:
            await self._events.aclose()
            self._streams.detach(self._replay)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for events in self._events:
            await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _never() -> Message:
    """A `receive` of a client that never goes away."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing comes")
