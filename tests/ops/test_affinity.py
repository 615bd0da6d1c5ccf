"""Which processors threads stay on, and that they use none while there is nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.ops.affinity import choose_cpus, cores_first
from headrace.ops.dispatch import make_ops
from headrace.ops.native_ops import NativeOps
from tests.waiting import PATIENCE

ALLOWED = sorted(os.sched_getaffinity(0))


def test_no_affinity_binds_nothing() -> None:
    assert choose_cpus(None, 0) == []


@pytest.mark.parametrize("num_threads", [0, 1])
def test_auto_takes_one_available_processor_for_each_thread(num_threads: int) -> None:
    cpus = choose_cpus("auto", num_threads)
    assert len(cpus) == (num_threads or len(ALLOWED))
    assert set(cpus) <= set(ALLOWED)


def test_a_list_keeps_its_order() -> None:
    backwards = ALLOWED[::-1]
    assert choose_cpus(backwards, 0) == backwards
    assert choose_cpus(backwards, 1) == backwards[:1]


def test_processors_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(ConfigError, match="names processor 1000, which this process may not use"):
        choose_cpus([ALLOWED[0], 1000], 0)
    with pytest.raises(ConfigError, match="has 1 processors for 2 threads"):
        make_ops("native", "cpu", 2, [ALLOWED[0]])
    with pytest.raises(ValueError, match="processor 1000 cannot be used"):
        NativeOps(1, cpus=[1000])


def test_cores_come_before_their_second_threads(tmp_path: Path) -> None:
    for cpu, siblings in {0: "0-1", 1: "0-1", 2: "2,5", 5: "2,5"}.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert cores_first([5, 2, 1, 0, 7], tmp_path) == [0, 2, 7, 1, 5]


def _run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return done.stdout


_WORK = """
import os, time
import numpy as np
from headrace.ops.native_ops import NativeOps
from tests.ops.cases import run_rows
def work(ops):
    x = np.ones((400, 700), np.float32)
    run_rows(ops, lambda v: ops.rms_norm(v, np.ones(700, np.float32), 1e-5), x, 700)
def mask(task):
    try:
        name = open(f"/proc/self/task/{task}/comm").read()
        if int(task) == os.getpid() or name.startswith("headrace-"):
            return sorted(os.sched_getaffinity(int(task)))
    except OSError:  # it ends just now
        pass
def masks():
    return sorted(filter(None, map(mask, os.listdir("/proc/self/task"))))
def work_until(ops, expected):
    # A worker begins, and is bound, when the system lets it run; no call waits for that. Nor does
    # who waits for the end of a thread wait until it is off the list.
    until = time.monotonic() + 60
    while masks() != expected and time.monotonic() < until:
        work(ops)
"""


def test_threads_stay_on_their_processors_and_no_others_are_bound() -> None:
    cpus = ALLOWED[-2:]
    # The main thread is one of those that compute.
    bound = sorted([cpu] for cpu in cpus)
    script = f"{_WORK}\nops = NativeOps(cpus={cpus})\nwork_until(ops, {bound})"
    script += f"\nfor _ in range(99): work(NativeOps())\nwork_until(ops, {bound})"
    script += "\nprint(masks(), NativeOps().num_threads)"
    assert _run(script) == f"{bound} {len(ALLOWED)}\n"
    free = [ALLOWED] * 2
    assert _run(f"{_WORK}\nwork_until(NativeOps(2), {free})\nprint(masks())") == f"{free}\n"


def test_threads_with_nothing_to_do_use_no_processor() -> None:
    script = f"{_WORK}\nwork_until(NativeOps(4), [{ALLOWED}] * 4)\ntime.sleep(0.1)"
    script += "\nstart = time.process_time()\ntime.sleep(1.0)"
    script += "\nprint(len(masks()), time.process_time() - start)"
    threads, used = _run(script).split()
    assert threads == "4"
    assert float(used) < 0.01
