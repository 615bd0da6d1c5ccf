"""What all tests share: the real models and the values they are compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# An example of a busy machine may take any time, and so may the making of it.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    """Where a real model lies. A missing one fails the test: it never skips."""
    root = Path(os.environ.get("HEADRACE_TEST_MODELS") or "~/.cache/headrace-models").expanduser()

    def find(name: str) -> Path:
        path = root / name
        if not path.is_dir():
            pytest.fail(f"the model {name} is missing; run `python scripts/get_models.py {name}`")
        return path

    return find


_REPORTED: list[str] = []


@pytest.fixture(scope="session")
def report() -> Callable[[str], None]:
    """Say something in the summary at the end of the run."""
    return _REPORTED.append


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _REPORTED:
        terminalreporter.section("reported by tests")
        for line in _REPORTED:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def expected_gguf() -> dict[str, Any]:
    """The same for GGUF weights as they are: tests/fixtures/expected_gguf.json."""
    values: dict[str, Any] = json.loads((FIXTURES / "expected_gguf.json").read_text())
    return values


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """Reference values by model: tests/fixtures/expected.json."""
    values: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
    return values
