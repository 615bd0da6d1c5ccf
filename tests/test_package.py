"""The package's door: its names, what importing it costs in modules, and that the docs are true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parent.parent
DOCS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
PUBLIC = {
    "LLM", "AsyncLLM", "AsyncLLMEngine", "LLMEngine", "EngineArgs", "AsyncEngineArgs",
    "EngineClient", "SamplingParams", "BeamSearchParams", "StructuredOutputsParams",
    "RepetitionDetectionParams", "RequestOutputKind", "PromptType", "TextPrompt", "TokensPrompt",
    "RequestOutput", "CompletionOutput", "Logprob", "FlatLogprobs", "LogitsProcessor",
    "RequestMetrics", "ModelRegistry", "LoRARequest", "StreamingInput", "BeamSearchOutput",
    "BeamSearchSequence", "Metric", "Counter", "Gauge", "Histogram", "Vector",
    "QueueTimeoutError", "ProfilerAlreadyActiveError",
    "HeadraceError", "ConfigError", "ModelError", "ValidationError", "UnsupportedError",
    "AdmissionError", "EngineDeadError", "EngineGenerateError", "EngineStartError",
    "__version__", "__version_tuple__",
}  # fmt: skip


def modules_after(statement: str) -> set[str]:
    """Names of the modules loaded by a statement in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_public_names_are_exactly_the_listed_ones() -> None:
    assert set(headrace.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(headrace, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Engin"):
        _ = headrace.Engin


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = modules_after("import headrace")
    assert not loaded & {"numpy", "msgspec", "zmq", "tokenizers", "fastapi", "torch", "jinja2"}


def test_importing_the_offline_class_needs_neither_http_nor_torch() -> None:
    loaded = modules_after("from headrace import LLM, SamplingParams")
    assert not loaded & {"fastapi", "pydantic", "uvicorn", "torch", "transformers"}


def test_the_core_process_needs_neither_text_nor_http() -> None:
    loaded = modules_after("import headrace.core.proc, headrace.worker.uniproc")
    assert not loaded & {"fastapi", "pydantic", "tokenizers", "jinja2", "torch"}


def test_the_source_uses_nothing_that_runs_what_it_reads() -> None:
    pattern = re.compile(r"^\s*(import|from)\s+(pickle|cloudpickle|dill|marshal)\b|\b(eval|exec)\(")
    for path in (ROOT / "headrace").rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not pattern.search(line), f"{path}:{number}: {line}"


@pytest.mark.parametrize("name", DOCS)
def test_every_path_in_the_docs_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|json))`", text):
        assert (ROOT / path).exists() or (ROOT / "headrace" / path).exists(), path
    for target in re.findall(r"\]\(([A-Za-z_/]+\.md)", text):
        assert (ROOT / target).exists(), target


def test_every_flag_in_the_readme_exists() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--help=all"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    known = set(re.findall(r"--[a-z][a-z-]+", done.stdout)) | {"--config", "--help"}
    for flag in re.findall(r"headrace serve[^\n]*", (ROOT / "README.md").read_text()):
        assert set(re.findall(r"--[a-z][a-z-]+", flag)) <= known


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in DOCS:
        for block in re.findall(r"```\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
            assert set(re.findall(r"^make ([a-z0-9]+)", block, re.MULTILINE)) <= targets
