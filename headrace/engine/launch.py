"""Starts an engine core in a process of its own and holds what there is to hold of it.

Start, watch and stop only; what is said once it serves is the clients' business.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

from headrace.config.engine import EngineConfig
from headrace.errors import ConfigError, EngineStartError, HeadraceError, ModelError
from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.ipc.process import ChildProcess, start_process
from headrace.ipc.sockets import CORE_SOCKET, FRONT_SOCKET, Receiver, Sender, SocketFolder, Sockets
from headrace.messages.requests import Shutdown
from headrace.messages.startup import (
    EngineFailed,
    EngineHello,
    EngineReady,
    EngineSetup,
    StartupMessage,
)

OnStage: TypeAlias = Callable[[str, float], None]
"""Told the name of each start-up stage and how much of the start is done, 0 to 1."""

CORE_MODULE = "headrace.core.proc"
EXECUTOR_FACTORY = "headrace.worker.executor:make_executor"
INPUT_LIMIT = 1000
"""Messages of the core kept unread in this process."""
LAST_WORDS_SECONDS = 0.3
"""How long the words of a core that has ended may take to arrive."""
STOP_SECONDS = 5.0
"""How long a core that was told to end may take."""
_ERRORS: dict[str, type[HeadraceError]] = {"ConfigError": ConfigError, "ModelError": ModelError}


class EngineHandle:
    """A running core: its process and the sockets to it.

    Attributes:
        child: the process; `child.life` becomes readable when it ends.
        ready: what the core learnt while loading.
        sender: takes encoded `CoreInput`s.
        receiver: gives encoded `CoreOutput`s.
    """

    def __init__(
        self,
        child: ChildProcess,
        sockets: Sockets,
        sender: Sender,
        receiver: Receiver,
        ready: EngineReady,
    ) -> None:
        self.child = child
        self.sender = sender
        self.receiver = receiver
        self.ready = ready
        self._sockets = sockets
        # Runs too when nobody holds the handle any more, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _stop, child, sockets, sender, receiver)

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the core, by force after `timeout` seconds, and close the sockets. Idempotent."""
        if self._finalizer.detach() is not None:
            _stop(self.child, self._sockets, self.sender, self.receiver, timeout)


def launch_core(
    config: EngineConfig,
    *,
    on_stage: OnStage | None = None,
    executor_factory: str = EXECUTOR_FACTORY,
) -> EngineHandle:
    """Start a core and wait until it serves. In case of failure nothing is left behind.

    Args:
        config: what the core is to be.
        on_stage: called in this thread as the start goes on.
        executor_factory: `module:function` of the core's executor; the seam for tests.

    Raises:
        ConfigError, ModelError: the core's own reason, one line.
        EngineStartError: it ended, or was not ready within `front.ready_timeout`.
    """
    with contextlib.ExitStack() as on_failure:
        folder = SocketFolder()
        on_failure.callback(folder.remove)
        sockets = Sockets()
        on_failure.callback(sockets.close)
        receiver = sockets.receiver(folder.address(FRONT_SOCKET), limit=INPUT_LIMIT)
        on_failure.callback(receiver.close)
        child = _start_child(folder, executor_factory)
        on_failure.callback(child.stop, 0.0)
        messages = _messages(child, receiver, config.front.ready_timeout)
        if not isinstance(next(messages), EngineHello):
            raise EngineStartError("the engine core did not begin with a hello")
        sender = sockets.sender(folder.address(CORE_SOCKET))
        on_failure.callback(sender.close)
        sender.send(RecordEncoder().encode(EngineSetup(config)))
        for message in messages:
            match message:
                case EngineHello():
                    # The answer to our setup: both ways are open, no file is needed any more.
                    folder.remove()
                    if on_stage is not None:
                        on_stage(message.stage, message.fraction)
                case EngineFailed():
                    raise _ERRORS.get(message.error, EngineStartError)(message.reason)
                case EngineReady():
                    on_failure.pop_all()
                    return EngineHandle(child, sockets, sender, receiver, message)
    raise AssertionError("unreachable: the messages end with an exception")


def _start_child(folder: SocketFolder, executor_factory: str) -> ChildProcess:
    arguments = ["--sockets", folder.path, "--executor-factory", executor_factory]
    try:
        return start_process("the engine core", CORE_MODULE, arguments)
    except OSError as error:
        raise EngineStartError(f"the engine core could not be started: {error}") from error


def _messages(child: ChildProcess, receiver: Receiver, timeout: float) -> Iterator[StartupMessage]:
    """What a starting core says.

    Raises:
        EngineStartError: it has ended, or the time is over.
    """
    decoder: RecordDecoder[StartupMessage] = RecordDecoder(StartupMessage, "the engine core")
    deadline = time.monotonic() + timeout
    while True:
        if not receiver.wait(deadline - time.monotonic(), other=child.life):
            if child.is_alive():
                raise EngineStartError(
                    f"the engine core was not ready after {timeout:g} s (ready_timeout)"
                )
            if not receiver.wait(LAST_WORDS_SECONDS):
                raise EngineStartError(f"{child.describe_end()} while it started")
        for frame in receiver.drain():
            message = decoder.decode(frame)
            if message is not None:
                yield message


def _stop(
    child: ChildProcess,
    sockets: Sockets,
    sender: Sender,
    receiver: Receiver,
    timeout: float = STOP_SECONDS,
) -> None:
    if not child.is_ours:  # a fork of the owner ends
        return
    try:
        if child.is_alive():
            sender.send(RecordEncoder().encode(Shutdown()))
        child.stop(timeout)
    finally:
        sender.close()
        receiver.close()
        sockets.close()
