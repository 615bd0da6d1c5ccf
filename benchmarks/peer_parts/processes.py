"""A child process with all its descendants: started, held still while others run, ended. Linux."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

END_TIMEOUT = 30.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class EngineFailed(Exception):
    """An engine did not do its work; the text says why, in a line."""


def descendants(pid: int) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def signal_tree(pid: int, number: signal.Signals) -> None:
    """To the process and all below it."""
    for one in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def cpu_seconds(pid: int, *, with_ended_children: bool = False) -> float:
    """Processor time of this process, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    last = 15 if with_ended_children else 13
    return sum(map(int, fields[11:last])) / CLOCK_TICKS


class Disturbance:
    """How much of the machine's processor time others than this process and its descendants took
    since this was made, other machines on the same hardware among them."""

    def __init__(self) -> None:
        self._start, self._all, self._own = time.monotonic(), _all_seconds(), _own_seconds()

    def share(self) -> float:
        """From 0 to 1; ticks are coarse, so short times may give a little less than 0 as 0."""
        others = _all_seconds() - self._all - (_own_seconds() - self._own)
        whole = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        return max(0.0, others / whole)


def _all_seconds() -> float:
    """Of all processors, what was not idle: user, nice, system, interrupts, stolen."""
    with open("/proc/stat") as file:
        fields = file.readline().split()[1:]
    return sum(int(fields[i]) for i in (0, 1, 2, 5, 6, 7)) / CLOCK_TICKS


def _own_seconds() -> float:
    seconds = 0.0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            seconds += cpu_seconds(pid, with_ended_children=True)
    return seconds


class Child:
    """A process that speaks lines of JSON, or says nothing at all.

    Args:
        log: its standard error goes to the end of this file.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, **env}, start_new_session=True,
            )  # fmt: skip
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def say(self, message: Mapping[str, Any]) -> None:
        """One line to it.

        Raises:
            EngineFailed: it is gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailed(f"it ended: {self.last_words()}") from None

    def hear(self, timeout: float) -> dict[str, Any]:
        """The next line from it.

        Raises:
            EngineFailed: none in time, the end, or a line that tells of an error.
        """
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise EngineFailed(f"no answer after {timeout:g} s")
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise EngineFailed(f"it ended: {self.last_words()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise EngineFailed(" ".join(str(message["error"]).split())[:300])
        return message

    def pause(self) -> None:
        """It and its descendants take no processor time until `resume`."""
        signal_tree(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        signal_tree(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Let it end by itself, then make it; with its descendants."""
        everyone = descendants(self.pid)
        self.resume()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            if not self._buffer and self.is_alive:
                self._wait_or(signal.SIGTERM)
        self._wait_or(signal.SIGKILL)
        self._process.stdout.close()
        for pid in everyone[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def last_words(self) -> str:
        """The last line of its log that says something."""
        lines = self._log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else "it said nothing"

    def _wait_or(self, number: signal.Signals) -> None:
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.send_signal(number)
            self._process.wait(END_TIMEOUT)
