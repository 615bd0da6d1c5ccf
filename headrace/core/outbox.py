"""What the core says to the front process: encoded, and sent in order.

The caller's own thread does it, since waking another one costs more than the sending; a thread
takes over only while the front process does not read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace.ipc.codec import RecordEncoder
from headrace.ipc.sockets import Sender
from headrace.messages.outputs import CoreOutput, EngineCoreOutputs

HOLD_SECONDS = 0.1
"""How long outputs that nobody waits for are kept, to wake the front process once for many."""
LINGER_SECONDS = 4.0
"""How long the last messages may take to leave."""


class Outbox:
    """The way to the front process, for one thread.

    Args:
        sender: owned from here on.
        on_fault: told, in another thread, why nothing can be sent any more.
    """

    def __init__(self, sender: Sender, on_fault: Callable[[BaseException], None]) -> None:
        self._sender = sender
        self._on_fault = on_fault
        self._encoder = RecordEncoder()
        self._held: list[EngineCoreOutputs] = []
        self._sent_at = 0.0
        self._backlog: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._num_left_over = 0
        """Frames given to the thread; written by the caller only."""
        self._num_caught_up = 0
        """Frames the thread has sent; written by the thread only."""

    def put(self, record: CoreOutput) -> None:
        """Say this now, after what was held. Never waits."""
        self.flush()
        if isinstance(record, EngineCoreOutputs):
            self._sent_at = record.timestamp
            if not record.outputs and not record.num_step_tokens:
                self._put_beat(record)
                return
        self._put_frame(self._encoder.encode(record))

    def hold(self, outputs: EngineCoreOutputs) -> None:
        """Say this together with what comes in the next HOLD_SECONDS."""
        if outputs.timestamp - self._sent_at >= HOLD_SECONDS:
            self.put(outputs)
        else:
            self._held.append(outputs)

    def flush(self) -> None:
        """Say what was held."""
        if self._held:
            held, self._held = self._held, []
            for outputs in held:
                self._put_frame(self._encoder.encode(outputs))

    def close(self) -> None:
        """Say the rest and close the sender, within LINGER_SECONDS."""
        self.flush()
        if self._thread is None:
            self._sender.close(linger=LINGER_SECONDS)
        else:
            self._backlog.put(None)
            self._thread.join(LINGER_SECONDS)

    @property
    def _is_behind(self) -> bool:
        return self._num_left_over != self._num_caught_up

    def _put_beat(self, beat: EngineCoreOutputs) -> None:
        """A sign of life is left out while others wait to be read."""
        if not self._is_behind:
            self._sender.try_send(self._encoder.encode(beat))

    def _put_frame(self, frame: bytes) -> None:
        if not self._is_behind and self._sender.try_send(frame):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._catch_up, name="core-output", daemon=True)
            self._thread.start()
        self._num_left_over += 1
        self._backlog.put(frame)

    def _catch_up(self) -> None:
        try:
            while (frame := self._backlog.get()) is not None:
                self._sender.send(frame)
                self._num_caught_up += 1
        except BaseException as error:
            self._on_fault(error)
        finally:
            self._sender.close(linger=LINGER_SECONDS)
