"""Turns of fake engines, and the whole program once on a real model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import peers
import pytest
from peer_parts.engines import OfflineEngine, StartingEngine
from peer_parts.environments import (
    ENVIRONMENTS,
    STAMP,
    Environment,
    InstallFailed,
    make_environment,
    requirements_of,
)
from peer_parts.models import CONFIG_7B, find_trial_model
from peer_parts.processes import Child, EngineFailed, descendants
from peer_parts.results import Results
from peer_parts.works import CELLS, HEADRACE, LLAMA_7B, LLAMA_CPP, OPENVINO, VLLM, Cell

from headrace.hub.lookup import find_model
from headrace.weights.gguf import read_gguf_tensors
from tests.benchmarks.runners import CRASH, MODEL, SHORT, fake_launch
from tests.waiting import PATIENCE, wait_until

QUICK = replace(CELLS["W2 gguf"], job=CELLS["W2 gguf"].job.quick())


@contextlib.contextmanager
def no_gate() -> Iterator[None]:
    yield


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside others; no turn is tried again for that."""
    monkeypatch.setattr(peers, "MAX_OTHERS", 1.0)


def test_engines_take_turns_and_failures_stop_nothing(tmp_path: Path) -> None:
    cell = replace(QUICK, engines=(HEADRACE, OPENVINO, VLLM, LLAMA_CPP))
    launches = {
        HEADRACE: fake_launch(HEADRACE, tmp_path),
        OPENVINO: fake_launch(OPENVINO, tmp_path, SHORT),
        VLLM: fake_launch(VLLM, tmp_path, CRASH),
        LLAMA_CPP: fake_launch(LLAMA_CPP, tmp_path, model="missing"),
    }
    results = Results(runs=[{}])
    peers.run_cell(cell, MODEL, lambda name, _: launches[name], results, 2, no_gate)
    assert [engine for _, _, engine, _ in results.samples] == [HEADRACE, HEADRACE]
    assert results.facts[cell.key][HEADRACE] == {"version": "7"}
    assert results.failures[cell.key] == {
        OPENVINO: "asked for 1 x 8 tokens, got 1 answers of [7]",
        VLLM: "ZeroDivisionError: division by zero",
        LLAMA_CPP: "FileNotFoundError: no such model",
    }
    assert descendants(os.getpid()) == [os.getpid()]


def test_turns_of_several_engines_alternate(tmp_path: Path) -> None:
    launches = {name: fake_launch(name, tmp_path) for name in (HEADRACE, OPENVINO)}
    cell = replace(QUICK, engines=(HEADRACE, OPENVINO))
    results = Results(runs=[{}])
    peers.run_cell(cell, MODEL, lambda name, _: launches[name], results, 2, no_gate)
    assert [engine for _, _, engine, _ in results.samples] == [HEADRACE, OPENVINO] * 2


def test_peer_that_cannot_be_installed_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    def launches(name: str, _model: object) -> object:
        raise InstallFailed("not installed: no such package")

    results = Results(runs=[{}])
    cell = replace(QUICK, engines=(OPENVINO,))
    peers.run_cell(cell, MODEL, launches, results, 1, no_gate)  # type: ignore[arg-type]
    assert results.failures[cell.key] == {OPENVINO: "not installed: no such package"}


def test_engine_stands_still_between_its_turns(tmp_path: Path) -> None:
    engine = OfflineEngine(fake_launch(OPENVINO, tmp_path), QUICK)
    engine.start()
    try:
        (pid,) = descendants(os.getpid())[1:]
        wait_until(lambda: state_of(pid) == "T")
        assert engine.run([[5] * 32])["rate"] > 0
        wait_until(lambda: state_of(pid) == "T")
    finally:
        engine.stop()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_start_is_timed_from_a_fresh_process(tmp_path: Path) -> None:
    cell = replace(QUICK, kind="start")
    engine = StartingEngine(fake_launch(OPENVINO, tmp_path), cell)
    assert engine.start() == {"version": "7"}
    assert 0.01 < engine.run([[5] * 32])["first_token_seconds"] < PATIENCE
    engine.stop()


def test_silent_process_is_an_error_in_time(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path / "log")
    try:
        with pytest.raises(EngineFailed, match="no answer after"):
            child.hear(0.05)
        os.kill(child.pid, signal.SIGTERM)
        with pytest.raises(EngineFailed, match="it ended: it said nothing"):
            child.hear(PATIENCE)
    finally:
        child.end()


def test_disturbed_turn_is_tried_again_and_the_quietest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = iter([0.5, 0.2, 0.3])
    rates = iter([1.0, 2.0, 3.0])

    class Noisy:
        def share(self) -> float:
            return next(shares)

    class Engine:
        def run(self, _prompts: object) -> dict[str, float]:
            return {"rate": next(rates)}

    monkeypatch.setattr(peers, "MAX_OTHERS", 0.05)
    monkeypatch.setattr(peers, "Disturbance", Noisy)
    values = peers.take_turn(Engine(), [], no_gate)  # type: ignore[arg-type]
    assert values == {"rate": 2.0, "others": 0.2}


def test_prompts_differ_between_turns_and_not_between_engines() -> None:
    assert peers.make_prompts(QUICK, 0) == peers.make_prompts(QUICK, 0)
    assert peers.make_prompts(QUICK, 0) != peers.make_prompts(QUICK, 1)
    assert [len(prompt) for prompt in peers.make_prompts(QUICK, 0)] == [QUICK.job.input_len]


def test_gate_is_held_during_a_turn_only(tmp_path: Path) -> None:
    flag = tmp_path / "held"
    script = f"import sys; open({str(flag)!r}, 'w'); print('go', flush=True); sys.stdin.read(); "
    script += f"import os; os.remove({str(flag)!r})"
    gate = peers.make_gate(f'{sys.executable} -c "{script}"')
    with gate():
        assert flag.exists()
    assert not flag.exists()


def test_requirements_leave_out_extras_and_pytorch(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    text = "Name: x\nRequires-Dist: numpy>=1\nRequires-Dist: torch==9\n"
    text += 'Requires-Dist: torchvision\nRequires-Dist: pytest; extra == "test"\n\nbody\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", text)
    assert requirements_of(wheel) == ["numpy>=1"]


def test_complete_environment_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make_venv(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "venv", "--clear"]
        (Path(command[4]) / "bin").mkdir(parents=True, exist_ok=True)
        (Path(command[4]) / "bin/python").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", make_venv)
    environment = Environment("fake==1", lambda folder, torch: made.append(folder))
    monkeypatch.setitem(ENVIRONMENTS, OPENVINO, environment)
    for _ in range(2):
        assert make_environment(OPENVINO, tmp_path, []).is_file()
    assert made == [tmp_path / OPENVINO]
    (tmp_path / OPENVINO / STAMP).write_text("fake==0")
    make_environment(OPENVINO, tmp_path, [])
    assert len(made) == 2


def test_random_4_bit_file_is_one_that_headrace_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 320,
             "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    for key, value in small.items():
        monkeypatch.setitem(CONFIG_7B, key, value)
    model = find_trial_model(LLAMA_7B, tmp_path, tmp_path)
    facts = find_model(str(model.path))
    tensors = read_gguf_tensors(model.path).tensors
    assert {key: facts.hf_config[key] for key in small} == small
    stored = sum(
        tensor.data.nbytes
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2 and "embed" not in name
    )
    assert model.cost.weight_bytes == stored


FAKE_OPENVINO = "class Tensor:\n    def __init__(self, values): self.values = values\n"
FAKE_GENAI = """
__version__ = "fake"
class SchedulerConfig: pass
class GenerationConfig: pass
class Result:
    def __init__(self, length): self.m_generation_ids = [[0] * length]
class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, properties): assert model.endswith(".gguf")
    def generate(self, inputs, configs): return [Result(c.max_new_tokens) for c in configs]
"""


@pytest.mark.model
def test_whole_program_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_dir: Callable[[str], Path]
) -> None:
    models = model_dir("smollm2-135m-instruct-gguf").parent
    (tmp_path / "openvino.py").write_text(FAKE_OPENVINO)
    (tmp_path / "openvino_genai.py").write_text(FAKE_GENAI)
    root = Path(peers.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{root}")
    quick_w5 = replace(CELLS["W5 gguf"], job=CELLS["W5 gguf"].job.quick())
    cells = [replace(QUICK, engines=(HEADRACE, OPENVINO)), quick_w5]
    monkeypatch.setattr(peers, "plan", lambda *_works, **_options: cells)
    out, state = tmp_path / "page.md", tmp_path / "state.json"
    words = [
        "--quick", "--work", "W2", "W5", "--peers", "openvino", "--models", str(models),
        "--python", f"openvino={sys.executable}", "--envs", str(tmp_path / "envs"),
        "--out", str(out), "--state", str(state),
    ]  # fmt: skip
    assert peers.main(words) == 0
    results = Results.read(state)
    assert results.failures == {}
    assert results.facts["W2 gguf"][OPENVINO] == {"version": "fake"}
    assert set(results.engines("W2 gguf")) == {HEADRACE, OPENVINO}
    assert results.facts["W5 gguf"][HEADRACE]["template_tokens"] == 30
    assert results.median("W5 gguf", HEADRACE, "front_us_per_token") > 0
    page = out.read_text()
    assert "(shortened to 1 x 32, 8 out)" in page
    assert "the job was shortened" in page
    assert "nan" not in page


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--python", "cuda=x"], ["--repeat", "0"], ["--work", "W99"]):
        with pytest.raises(SystemExit):
            peers.parse(words)
    assert "usage:" in capsys.readouterr().err


def test_cells_of_every_kind_tell_a_main_figure() -> None:
    figures = {cell.kind: cell.figure for cell in CELLS.values()}
    assert figures == {"offline": "rate", "serving": "rate", "start": "first_token_seconds"}
    assert all(isinstance(cell, Cell) for cell in CELLS.values())
