"""Starting and ending a core process, in good and bad ways. Nothing may stay behind."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from headrace.config.engine import FrontConfig
from headrace.engine.launch import EngineHandle, launch_core
from headrace.errors import ConfigError, EngineStartError, ModelError
from tests.engine.fakes import FACTORY, make_config
from tests.waiting import PATIENCE, wait_until


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", tempfile.mkdtemp(dir="/tmp"))
    children, threads = _children(), threading.active_count()
    yield
    wait_until(lambda: _children() <= children)
    wait_until(lambda: threading.active_count() <= threads)
    assert os.listdir(tempfile.gettempdir()) == []
    os.rmdir(tempfile.gettempdir())


def _launch(**options: object) -> EngineHandle:
    return launch_core(make_config(**options), executor_factory=FACTORY)


def test_launch_ready_core_tells_stages_and_leaves_no_files() -> None:
    stages: list[tuple[str, float]] = []
    handle = launch_core(
        make_config(),
        on_stage=lambda stage, fraction: stages.append((stage, fraction)),
        executor_factory=FACTORY,
    )
    try:
        assert stages == [("loading", 0.0), ("loading weights", 0.5)]
        assert handle.ready.isa == "fake"
        assert os.listdir(tempfile.gettempdir()) == []
        assert handle.child.is_alive()
    finally:
        handle.stop()
    assert handle.child.exit_status() == 0
    handle.stop()


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        ("model", ModelError, "no weights in here"),
        ("config", ConfigError, "max_model_len must be less"),
        ("fault", EngineStartError, "RuntimeError: out of luck"),
        ("die", EngineStartError, "SIGKILL"),
        ("leave", EngineStartError, "exit status 7"),
    ],
)
def test_launch_core_that_fails_raises_its_one_line(
    start: str, error: type[Exception], message: str
) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        _launch(start=start)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 2 * PATIENCE  # of the time a good start may take


def test_launch_with_an_executor_that_is_not_there_raises() -> None:
    with pytest.raises(EngineStartError, match="no_such_module"):
        launch_core(make_config(), executor_factory="no_such_module:make")


def test_launch_core_that_is_too_slow_raises() -> None:
    config = make_config(start_seconds=600.0, front=FrontConfig(ready_timeout=3.0))
    with pytest.raises(EngineStartError, match="not ready after 3 s"):
        launch_core(config, executor_factory=FACTORY)


def test_launch_without_an_interpreter_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(EngineStartError, match="could not be started"):
        _launch()


@pytest.fixture
def _heeds_interrupts() -> Iterator[None]:
    """Whoever started the tests may have them ignored, as shells do in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeds_interrupts")
def test_launch_interrupted_leaves_nothing() -> None:
    def interrupt(stage: str, fraction: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        launch_core(make_config(start_seconds=600.0), on_stage=interrupt, executor_factory=FACTORY)


def test_handle_nobody_holds_ends_the_core() -> None:
    handle = _launch()
    pid = handle.child.pid
    del handle
    assert not psutil.pid_exists(pid)


def test_two_cores_started_at_the_same_moment_both_serve() -> None:
    handles: list[EngineHandle] = []
    threads = [threading.Thread(target=lambda: handles.append(_launch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert len(handles) == 2
    assert len({handle.child.pid for handle in handles}) == 2
    for handle in handles:
        handle.stop()


SCRIPT = """
import os
from headrace.engine.launch import launch_core
from tests.engine.fakes import FACTORY, make_config
handle = launch_core(make_config(), executor_factory=FACTORY)
print(handle.child.pid, flush=True)
"""


def _run_script(text: str, *arguments: str, stdin: str | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": tempfile.gettempdir(), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    process.stdin.write(stdin or "")
    process.stdin.close()
    return process


def _first_number(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def _end(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    process.wait(PATIENCE)
    errors = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return errors


@pytest.mark.parametrize("arguments", [["-"], ["-c", SCRIPT]], ids=["stdin", "command"])
def test_script_without_main_guard_works_and_ends_clean(arguments: list[str]) -> None:
    process = _run_script(SCRIPT, *arguments, stdin=SCRIPT if arguments == ["-"] else None)
    pid = _first_number(process)
    assert _end(process) == ""
    assert process.returncode == 0
    assert not psutil.pid_exists(pid)


def test_script_killed_while_it_serves_leaves_no_child() -> None:
    process = _run_script("", "-c", SCRIPT + "import time; time.sleep(600)")
    pid = _first_number(process)
    assert psutil.pid_exists(pid)
    process.kill()
    _end(process)
    wait_until(lambda: not psutil.pid_exists(pid))


STARTING = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from headrace.engine.launch import launch_core
from tests.engine.fakes import FACTORY, make_config
launch_core(
    make_config(start_seconds=600.0),
    on_stage=lambda stage, fraction: print(os.getpid(), flush=True),
    executor_factory=FACTORY,
)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_script_ended_while_the_core_starts_leaves_no_child(number: int) -> None:
    process = _run_script("", "-c", STARTING)
    assert _first_number(process) == process.pid
    [child] = psutil.Process(process.pid).children()
    process.send_signal(number)
    _end(process)
    wait_until(lambda: not child.is_running())


def test_use_of_an_engine_in_a_fork_is_refused_and_the_owner_goes_on() -> None:
    script = f"""
import os
from headrace.engine.llm_engine import LLMEngine
from headrace.errors import EngineDeadError
from headrace.sampling_params import SamplingParams
from tests.engine.fakes import make_config
engine = LLMEngine(make_config(), multiprocess=True, executor_factory={FACTORY!r})
pid = os.fork()
try:
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=2))
    while engine.has_unfinished_requests():
        engine.step()
except EngineDeadError as error:
    print(7 if "belongs to the process that started it" in str(error) else 8, flush=True)
    raise SystemExit(0)
os.waitpid(pid, 0)
print(1, flush=True)
engine.shutdown()
"""
    process = _run_script("", "-c", script)
    assert [_first_number(process), _first_number(process)] == [7, 1]
    assert len(_end(process).splitlines()) == 1


def test_fork_of_the_owner_that_ends_leaves_the_core_alone() -> None:
    fork = (
        SCRIPT
        + """
pid = os.fork()
if pid == 0:
    raise SystemExit(0)
os.waitpid(pid, 0)
print(int(handle.child.is_alive()), flush=True)
"""
    )
    process = _run_script("", "-c", fork)
    _first_number(process)
    assert _first_number(process) == 1
    assert _end(process) == ""
