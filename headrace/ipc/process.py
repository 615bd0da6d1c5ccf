"""Child processes by module name: start, watch, stop; and the child's watch over its parent.

Two pipes tie the two together without threads, ports or polling: the parent holds an end that
nobody writes to, and so does the child. Whoever ends, in whatever way, closes its end.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

PARENT_PIPE = "--parent-pipe"
LIFE_PIPE = "--life-pipe"
TERMINATE_SECONDS = 2.0
"""How long a child that was sent SIGTERM may take before it is ended by force."""


class ChildProcess:
    """A running child. Owned by the process that started it; a fork of that one has no say.

    Attributes:
        name: for messages.
        life: file descriptor that becomes readable when the child has ended.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], life: int, parent_end: int
    ) -> None:
        self.name = name
        self.life = life
        self._process = process
        self._parent_end = parent_end
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._is_stopping = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether this process started it (and is not a fork of the one that did)."""
        return os.getpid() == self._owner

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return not self._is_stopping and not is_readable(self.life)

    def cpu_seconds(self) -> float | None:
        """Processor time it took until now; None where the system does not tell, or it is gone."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()  # its name may hold anything
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def exit_status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def describe_end(self) -> str:
        """How it ended, in words."""
        status = self._process.wait()
        if status == -signal.SIGKILL:
            return f"{self.name} was killed (SIGKILL); the system does so when memory runs out"
        if status < 0:
            return f"{self.name} was ended by {signal.Signals(-status).name}"
        return f"{self.name} ended with exit status {status}"

    def stop(self, timeout: float) -> None:
        """Wait for its end, ask for it by SIGTERM after `timeout` seconds, and then by force.

        Idempotent. A second call while the first waits, or a KeyboardInterrupt, ends it by force.
        """
        if not self.is_ours:
            return
        with self._lock:
            is_first, self._is_stopping = not self._is_stopping, True
        if not is_first:
            self._process.kill()
            return
        try:
            if not is_readable(self.life, timeout):
                self._process.terminate()
                is_readable(self.life, TERMINATE_SECONDS)
        finally:
            if not is_readable(self.life):
                self._process.kill()
            self._process.wait()
            os.close(self._parent_end)
            os.close(self.life)


def start_process(
    name: str, module: str, arguments: Sequence[str], *, keep: Sequence[int] = ()
) -> ChildProcess:
    """Run `python -m module` as a child that ends when this process does.

    The child finds the modules this process finds, has no standard input, writes to standard
    error only, and is in a session of its own, so that Ctrl-C in a terminal reaches only us.

    Args:
        keep: further descriptors of ours that the child shall have, under the same numbers.

    Raises:
        OSError: it could not be started.
    """
    if not sys.executable:
        raise OSError("no Python interpreter is known to start a child with (sys.executable)")
    child_watches, parent_end = os.pipe()
    life, child_end = os.pipe()
    pipes = [PARENT_PIPE, str(child_watches), LIFE_PIPE, str(child_end)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *pipes, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(child_watches, child_end, *keep),
            start_new_session=True,
            env=environment,
        )
    except BaseException:
        os.close(life)
        os.close(parent_end)
        raise
    finally:
        os.close(child_watches)
        os.close(child_end)
    return ChildProcess(name, process, life, parent_end)


class ParentWatch:
    """In the child: ends this process, hard, as soon as the parent has ended.

    Args:
        parent_pipe, life_pipe: the descriptors given by `start_process`.
        clean_up: called before the end; must be quick.
    """

    def __init__(self, parent_pipe: int, life_pipe: int, clean_up: Callable[[], None]) -> None:
        os.set_inheritable(parent_pipe, False)
        os.set_inheritable(life_pipe, False)
        self._pipe = parent_pipe
        self._parent = os.getppid()
        self._clean_up = clean_up
        threading.Thread(target=self._watch, name="parent-watch", daemon=True).start()

    def _watch(self) -> None:
        # A fork of the parent keeps the pipe open; the parent's id tells the truth as well.
        while not is_readable(self._pipe, 1.0) and os.getppid() == self._parent:
            pass
        self._end()

    def _end(self) -> None:
        self._clean_up()
        os._exit(1)

    def use_signal(self) -> None:
        """From now on end even inside a native call, without clean-up, where the system can.

        The watching thread needs Python's lock, which a long native call may hold. Linux sends
        SIGIO when the pipe ends, and the default of that signal is to end the process.
        """
        if sys.platform == "linux":
            fcntl.fcntl(self._pipe, fcntl.F_SETOWN, os.getpid())
            flags = fcntl.fcntl(self._pipe, fcntl.F_GETFL)
            fcntl.fcntl(self._pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
            # No signal comes for what happened before.
            if is_readable(self._pipe):
                self._end()


def is_readable(descriptor: int, timeout: float = 0.0) -> bool:
    """Whether a file descriptor becomes readable, or is at its end, within `timeout` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
