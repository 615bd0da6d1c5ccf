"""Children that end when they should, however their parents end."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from headrace.ipc.process import ChildProcess, is_readable, start_process
from tests.waiting import PATIENCE, wait_until

CHILD = "tests.ipc.children"


def _start(behaviour: str) -> ChildProcess:
    child = start_process("the child", CHILD, [behaviour])
    assert psutil.pid_exists(child.pid)
    return child


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _open_descriptors() -> int:
    gc.collect()  # what earlier tests let go of closes now, and not between two counts
    return len(os.listdir("/proc/self/fd"))


def test_child_that_leaves_is_noticed_with_its_status() -> None:
    child = _start("leave")
    assert is_readable(child.life, PATIENCE)
    assert not child.is_alive()
    assert child.describe_end() == "the child ended with exit status 3"
    child.stop(0.0)


def test_child_that_is_killed_is_noticed_with_the_signal() -> None:
    child = _start("sleep")
    assert child.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    assert is_readable(child.life, PATIENCE)
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
    wait_until(lambda: not child.is_alive())  # until the first call has begun
    child.stop(600.0)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert not psutil.pid_exists(child.pid)


PARENT = """
import sys, time, os
from headrace.ipc.process import start_process
child = start_process("the child", "tests.ipc.children", [sys.argv[1], sys.argv[2]])
if sys.argv[3] == "fork" and os.fork() == 0:
    time.sleep(600)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("behaviour", ["sleep", "deaf", "native"])
def test_child_of_a_killed_parent_ends(behaviour: str, is_early: bool, tmp_path: Path) -> None:
    told = tmp_path / "told"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, behaviour, told, ""], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if not is_early:  # otherwise before the child has started to watch
        wait_until(told.exists)
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: _is_gone(pid))


def test_child_of_a_killed_parent_with_a_fork_alive_ends(tmp_path: Path) -> None:
    told = tmp_path / "told"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "sleep", told, "fork"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(told.exists)  # the child watches
    forks = [p for p in psutil.Process(parent.pid).children() if p.pid != pid]
    assert len(forks) == 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        wait_until(lambda: _is_gone(pid))
    finally:
        forks[0].kill()


def test_child_in_its_own_session_gets_no_signal_of_our_terminal() -> None:
    child = _start("sleep")
    try:
        assert os.getsid(child.pid) != os.getsid(0)
    finally:
        child.stop(0.0)
