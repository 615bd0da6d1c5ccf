"""Choosing a home and an instruction set, and the errors that name the way out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.errors import ConfigError
from headrace.ops.dispatch import ISA_VARIABLE, available_isas, make_ops
from headrace.ops.native_ops import NativeOps
from tests.waiting import PATIENCE


def test_available_isas_always_has_the_portable_one() -> None:
    isas = available_isas()
    assert "portable" in isas
    assert len(set(isas)) == len(isas)


def test_make_ops_native_uses_the_best_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    assert make_ops("native", "cpu", 1).name == available_isas()[0]


@pytest.mark.parametrize("isa", available_isas())
def test_make_ops_with_a_forced_isa_uses_it(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    assert make_ops("native", "cpu", 1).name == isa


@pytest.mark.parametrize("isa", sorted({"mmx", "avx2", "avx512", "amx"} - {*available_isas()}))
def test_make_ops_with_an_isa_that_is_not_here_names_the_choices(
    monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    with pytest.raises(ConfigError, match=rf"HEADRACE_ISA={isa} is not available.*portable"):
        make_ops("native", "cpu", 1)


def test_make_ops_torch_is_named_by_its_device() -> None:
    assert make_ops("torch", "cpu", 0).name == "torch:cpu"


@pytest.mark.parametrize(
    ("backend", "device", "threads", "text"),
    [
        ("numpy", "cpu", 0, "use native or torch"),
        ("native", "cuda", 0, "needs the torch backend"),
        ("torch", "nonsense", 0, "device nonsense is not usable"),
        ("native", "cpu", -1, "num_threads is -1"),
    ],
)
def test_make_ops_refuses_what_it_cannot_make(
    backend: str, device: str, threads: int, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make_ops(backend, device, threads)


def test_make_ops_without_pytorch_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from headrace.ops.dispatch import make_ops\n"
        "try:\n"
        "    make_ops('torch', 'cpu', 0)\n"
        "except Exception as fault:\n"
        "    print(type(fault).__name__, fault)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert "ConfigError" in result.stdout
    assert "pip install headrace[torch]" in result.stdout


def test_native_ops_with_zero_threads_uses_the_available_cores() -> None:
    assert NativeOps(0).num_threads == len(os.sched_getaffinity(0))


def test_native_ops_after_a_fork_still_work_in_the_child() -> None:
    script = (
        "import os, sys\n"
        "from headrace.ops.native_ops import NativeOps\n"
        "from tests.ops.cases import AttentionCase\n"
        "from headrace.ops.ops import HeadShape\n"
        "case = AttentionCase(HeadShape(9, 3, 64), [300])\n"
        "run = lambda: case.run(NativeOps(2), case.at_once())[0].sum()\n"
        "before = run()\n"
        "pid = os.fork()\n"
        "same = run() == before\n"
        "if pid == 0:\n"
        "    os._exit(0 if same else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or not same)\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=False, timeout=PATIENCE
    )
    assert result.returncode == 0
