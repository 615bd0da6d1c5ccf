"""Children that end when they should, however their parents end."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from headrace.ipc.process import ChildProcess, is_readable, start_process

CHILD = "tests.ipc.children"


def _start(behaviour: str) -> ChildProcess:
    child = start_process("the child", CHILD, [behaviour])
    assert psutil.pid_exists(child.pid)
    return child


def _wait_until_gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_child_that_leaves_is_noticed_with_its_status() -> None:
    child = _start("leave")
    assert is_readable(child.life, 20.0)
    assert not child.is_alive()
    assert child.describe_end() == "the child ended with exit status 3"
    child.stop(0.0)


def test_child_that_is_killed_is_noticed_with_the_signal() -> None:
    child = _start("sleep")
    assert child.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    assert is_readable(child.life, 5.0)
    assert "SIGKILL" in child.describe_end()
    child.stop(0.0)


@pytest.mark.parametrize("behaviour", ["sleep", "deaf", "native"])
def test_stop_child_in_any_state_ends_it_and_leaves_no_descriptor(behaviour: str) -> None:
    before = _open_descriptors()
    child = _start(behaviour)
    child.stop(0.0)
    assert not psutil.pid_exists(child.pid)
    assert not child.is_alive()
    child.stop(0.0)
    assert _open_descriptors() == before


def test_stop_called_again_while_it_waits_ends_the_child_by_force() -> None:
    child = _start("deaf")
    waiting = threading.Thread(target=child.stop, args=(600.0,))
    waiting.start()
    while child.is_alive():  # until the first call has begun
        time.sleep(0.01)
    child.stop(600.0)
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert not psutil.pid_exists(child.pid)


PARENT = """
import sys, time, os
from headrace.ipc.process import start_process
child = start_process("the child", "tests.ipc.children", [sys.argv[1]])
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(600)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("behaviour", ["sleep", "deaf", "native"])
def test_child_of_a_killed_parent_ends(behaviour: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, behaviour, ""], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.0)  # the child has started to watch
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _wait_until_gone(pid)


def test_child_of_a_killed_parent_with_a_fork_alive_ends() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "sleep", "fork"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.0)
    forks = [p for p in psutil.Process(parent.pid).children() if p.pid != pid]
    assert len(forks) == 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        assert _wait_until_gone(pid)
    finally:
        forks[0].kill()


def test_child_in_its_own_session_gets_no_signal_of_our_terminal() -> None:
    child = _start("sleep")
    try:
        assert os.getsid(child.pid) != os.getsid(0)
    finally:
        child.stop(0.0)
