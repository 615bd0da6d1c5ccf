"""The grammars of a worker: when the library is loaded, and the masks of a step."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import ValidationError
from headrace.messages.requests import Vocabulary
from headrace.worker import grammar_masks
from headrace.worker.grammar_masks import Grammars

VOCABULARY = Vocabulary([b"a", b"b", b"c", b""], [3], [3])
AB = '%llguidance {"no_forcing": true}\nstart: /a[bc]/\n'


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    made = Grammars(40, num_threads=2)
    yield made
    made.shutdown()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is made in place of a compiler."""
    calls: list[Any] = []

    class Compiler:
        def __init__(self, *args: Any) -> None:
            calls.append(args)

    def find(name: str) -> SimpleNamespace:
        calls.append(name)
        return SimpleNamespace(GrammarCompiler=Compiler)

    monkeypatch.setattr(grammar_masks, "import_module", find)
    return calls


def test_vocabulary_alone_loads_nothing(grammars: Grammars, made: list[Any]) -> None:
    grammars.set_vocabulary(VOCABULARY)
    assert made == []


def test_vocabulary_that_is_used_now_is_prepared(grammars: Grammars, made: list[Any]) -> None:
    vocabulary = msgspec.structs.replace(VOCABULARY, is_used_now=True)
    grammars.set_vocabulary(vocabulary)
    assert made == ["headrace.structured.compiler", (vocabulary, 40, 2)]


def test_grammar_before_the_vocabulary_is_refused(grammars: Grammars) -> None:
    with pytest.raises(ValidationError, match="before the vocabulary"):
        grammars.prepare(AB)


def test_masks_of_a_step_are_those_of_its_states(grammars: Grammars) -> None:
    grammars.set_vocabulary(VOCABULARY)
    grammars.prepare(AB)
    begun, fresh = grammars.start(AB, [0]), grammars.start(AB, [])
    step = grammars.begin([None, begun, None, fresh])
    assert step is not None
    step.wait()
    assert step.rows == [-1, 0, -1, 1]
    assert step.masks.tolist() == [[0b0110, 0], [0b0001, 0]]
    assert not np.shares_memory(step.masks, grammars.begin([fresh]).masks)  # type: ignore[union-attr]


def test_step_without_grammars_has_no_masks(grammars: Grammars) -> None:
    assert grammars.begin([None, None]) is None
    assert grammars.begin([]) is None


def test_tokens_that_leave_the_grammar_are_refused(grammars: Grammars) -> None:
    grammars.set_vocabulary(VOCABULARY)
    with pytest.raises(ValidationError, match="does not follow"):
        grammars.start(AB, [1])
