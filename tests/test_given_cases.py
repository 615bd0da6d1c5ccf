"""The list of cases in given_cases.md names tests that exist, and a reason where it names none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = (Path(__file__).parent / "given_cases.md").read_text(encoding="utf-8").splitlines()
CASES = [line for line in LINES if line.startswith("- ")]
LATER = {
    "tool calls", "reasoning", "those routes", "images and audio", "adapters",
    "batch files", "pooling, distribution",
}  # fmt: skip
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the tests a file holds."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return frozenset(f.name for f in functions if f.name.startswith("test_"))


@pytest.mark.parametrize("line", CASES, ids=[line.partition(" -> ")[0][2:60] for line in CASES])
def test_case_names_tests_that_exist_or_what_it_waits_for(line: str) -> None:
    _, arrow, shown = line.partition(" -> ")
    assert arrow
    if shown.startswith("later: "):
        assert shown.removeprefix("later: ") in LATER
        return
    named = TEST.findall(shown)
    assert named
    assert ", ".join(f"`{path}::{name}`" for path, name in named) == shown
    for path, name in named:
        assert name in names_in(path), f"{path} has no {name}"


def test_list_is_read_whole() -> None:
    assert len(CASES) > 80
    assert len(CASES) == len(set(CASES))
