"""The core process: `python -m headrace.core.proc`, started by `engine/launch.py`.

Says hello, learns what to be, loads it, then runs the engine loop until it is told to end or the
front process has ended.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TypeAlias, cast

from headrace.config.engine import EngineConfig
from headrace.core.engine_core import EngineCore, ignore_stage, pinned
from headrace.core.loop import CoreLoop, one_line
from headrace.core.outbox import LINGER_SECONDS
from headrace.errors import HeadraceError
from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.ipc.process import LIFE_PIPE, PARENT_PIPE, ParentWatch
from headrace.ipc.sockets import CORE_SOCKET, FRONT_SOCKET, Receiver, Sender, SocketFolder, Sockets
from headrace.logger import make_logger, set_up_logging
from headrace.messages.startup import EngineFailed, EngineHello, EngineSetup
from headrace.worker.executor import Executor, OnStage

logger = make_logger(__name__)

ExecutorFactory: TypeAlias = Callable[[EngineConfig, OnStage], Executor]

OUTPUT_LIMIT = 1000
"""Messages kept for a front process that does not read, before signs of life are left out and
the sending thread waits."""
TERMINATED_STATUS = 128 + signal.SIGTERM


def main(arguments: list[str] | None = None) -> int:
    """Run the core process. Returns its exit status: 0 only when the front process ended it."""
    options = _parse(arguments)
    set_up_logging(role="engine")
    # Ctrl-C is the front process's business; it ends this one in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    folder = SocketFolder(options.sockets)
    watch = ParentWatch(options.parent_pipe, options.life_pipe, folder.remove)
    sockets = Sockets()
    receiver = sockets.receiver(folder.address(CORE_SOCKET))
    sender = sockets.sender(folder.address(FRONT_SOCKET), limit=OUTPUT_LIMIT)
    core = _start(options.executor_factory, watch, receiver, sender)
    if core is None:
        receiver.close()
        sender.close(linger=LINGER_SECONDS)
        status = 1
    else:
        status = _serve(core, receiver, sender)
    sockets.close()
    return status


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace.core.proc", description=__doc__)
    parser.add_argument(PARENT_PIPE, dest="parent_pipe", type=int, required=True)
    parser.add_argument(LIFE_PIPE, dest="life_pipe", type=int, required=True)
    parser.add_argument("--sockets", required=True, help="the folder of the two sockets")
    parser.add_argument(
        "--executor-factory",
        required=True,
        help="module:function that makes the executor from a config; tests put their own here",
    )
    return parser.parse_args(arguments)


def _leave(number: int, frame: FrameType | None) -> None:
    """SIGTERM before the loop runs: nothing is served yet, so there is nothing to finish."""
    os._exit(TERMINATED_STATUS)


def _start(
    factory: str, watch: ParentWatch, receiver: Receiver, sender: Sender
) -> EngineCore | None:
    """Shake hands and load. None when that failed; the front process then knows why."""
    encoder = RecordEncoder()

    def tell_stage(stage: str, fraction: float) -> None:
        sender.send(encoder.encode(EngineHello(os.getpid(), stage, fraction)))

    tell_stage("starting", 0.0)
    config = _receive_config(receiver)
    tell_stage("loading", 0.0)
    watch.use_signal()
    try:
        module, name = factory.split(":")
        make_executor = cast(ExecutorFactory, getattr(import_module(module), name))
        executor = make_executor(config, tell_stage)
        again = partial(make_executor, pinned(config, executor.ready), ignore_stage)
        core = EngineCore(config, executor, make_executor=again)
    except HeadraceError as error:
        failed = EngineFailed(" ".join(str(error).split()), True, type(error).__name__)
    except Exception as error:
        logger.exception("the engine could not be started")
        failed = EngineFailed(one_line(error), False)
    else:
        # What loading made lives to the end: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        return core
    sender.send(encoder.encode(failed))
    return None


def _receive_config(receiver: Receiver) -> EngineConfig:
    """What to run. There is no time limit: a front process that has ended ends this one, and one
    that was stopped for a while is no fault."""
    decoder: RecordDecoder[EngineSetup] = RecordDecoder(EngineSetup, "the front process")
    while True:
        receiver.wait(None)
        for frame in receiver.drain():
            setup = decoder.decode(frame)
            if setup is not None:
                return setup.config


def _serve(core: EngineCore, receiver: Receiver, sender: Sender) -> int:
    """Say that the core is ready and run the loop to its end; the exit status."""
    loop = CoreLoop(core, receiver, sender)

    def terminate(number: int, frame: FrameType | None) -> None:
        loop.terminate("the engine core was sent SIGTERM")

    signal.signal(signal.SIGTERM, terminate)
    sender.send(RecordEncoder().encode(core.ready))
    try:
        loop.run()
    except Exception:
        logger.exception("the engine loop failed")
        return 1
    finally:
        core.shutdown()
        gc.unfreeze()  # so that the interpreter can clear all of it away
    return TERMINATED_STATUS if loop.was_terminated else 0


if __name__ == "__main__":
    sys.exit(main())
