"""One-way sockets between the front process and the core. The only file that knows ZeroMQ.

Every receiver binds and every sender connects, so a stranger who reaches an address can at most
add messages, never take one. Addresses are `ipc://` paths in a folder of mode 0700.
"""

from __future__ import annotations

import select
import shutil
import tempfile
import threading
import time
from typing import cast

import zmq

CORE_SOCKET = "core"
"""What goes to the core; the core binds it."""
FRONT_SOCKET = "front"
"""What goes to the front process; the front process binds it."""
_READABLE = int(zmq.POLLIN)
"""As a plain number: the operators of flags are functions of Python."""
MAX_PATH = 100
"""Bytes of a socket's path; systems allow 104 to 108."""


class SocketFolder:
    """A private folder for socket files. Needed only until both ends are connected.

    Args:
        path: a folder that the other process made; None makes one.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path or _make_folder()

    def address(self, name: str) -> str:
        """The address of the socket with this name."""
        return f"ipc://{self.path}/{name}"

    def remove(self) -> None:
        """Delete the folder; connections that exist go on. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


def _make_folder() -> str:
    base = tempfile.gettempdir()
    if len(base.encode()) > MAX_PATH - 32:
        base = "/tmp"
    return tempfile.mkdtemp(prefix="headrace-", dir=base)


class Sockets:
    """A process's sockets of one engine, and the thread that moves their bytes."""

    def __init__(self) -> None:
        self._context = zmq.Context()

    def receiver(self, address: str, *, limit: int = 0) -> Receiver:
        """Bind a receiving socket. `limit`: messages kept unread before senders wait; 0 is none."""
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.RCVHWM, limit)
        try:
            socket.bind(address)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return Receiver(socket)

    def sender(self, address: str, *, limit: int = 0) -> Sender:
        """Connect a sending socket. `limit`: messages kept unsent; 0 is none."""
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, limit)
        socket.connect(address)
        return Sender(socket)

    def close(self) -> None:
        """End the thread; a receiver that waits in another thread raises SocketClosedError there.

        Returns when every socket is closed: close the others before, in their own threads.
        """
        self._context.term()


class SocketClosedError(Exception):
    """The sockets of this process have been closed."""


class Sender:
    """Sends frames in order. Any thread may send."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        """Queue one frame; waits only while the limit is reached.

        Raises:
            SocketClosedError: closed before.
        """
        with self._lock:
            if self._socket.closed:
                raise SocketClosedError
            self._socket.send(frame)

    def try_send(self, frame: bytes) -> bool:
        """Queue one frame unless the limit is reached; whether it was queued."""
        with self._lock:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                return False
            return True

    def close(self, *, linger: float = 0.0) -> None:
        """Close; frames not yet sent get `linger` more seconds. Idempotent."""
        with self._lock:
            self._socket.close(linger=int(linger * 1000))


class Receiver:
    """Receives frames, in one thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._poll = select.poll()
        self._poll.register(self.fileno(), select.POLLIN)
        self._other: int | None = None
        """What else `_poll` waits for."""

    def fileno(self) -> int:
        """Becomes readable when something happens; only once until `drain` has emptied it."""
        return self._socket.FD

    def receive(self) -> bytes:
        """Wait for one frame.

        Raises:
            SocketClosedError: the process closes its sockets.
        """
        try:
            return self._socket.recv()
        except zmq.ContextTerminated:
            raise SocketClosedError from None

    def wait(self, timeout: float | None, *, other: int | None = None) -> bool:
        """Wait for a frame, for `other` (a file descriptor) to become readable, or the timeout.

        Returns:
            Whether a frame is there.
        """
        if other != self._other:
            if self._other is not None:
                self._poll.unregister(self._other)
            if other is not None:
                self._poll.register(other, select.POLLIN)
            self._other = other
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_frame():
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = self._poll.poll(left)
            # The socket's descriptor also tells of things that are no frames.
            if not ready or any(descriptor == other for descriptor, _ in ready):
                return self._has_frame()
        return True

    def drain(self) -> list[bytes]:
        """All frames that are here now, without waiting."""
        frames: list[bytes] = []
        try:
            frames.append(self._socket.recv(zmq.NOBLOCK))  # most often there is one
            while self._has_frame():
                frames.append(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return frames

    def _has_frame(self) -> bool:
        return bool(cast(int, self._socket.getsockopt(zmq.EVENTS)) & _READABLE)

    def close(self) -> None:
        """Idempotent."""
        self._socket.close(linger=0)
