"""Steps with grammars: masks are found while the model runs, and each request has its own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from headrace.messages.requests import Vocabulary
from headrace.messages.step import CachedRequest, NewRequest, SchedulerOutput
from headrace.ops.ops import StepInputs
from headrace.sampling_params import SamplingParams
from headrace.worker.grammar_masks import Grammars
from headrace.worker.input_batch import InputBatch
from headrace.worker.model_runner import ModelRunner
from headrace.worker.sampler import Sampler

SIZE = 40
EOS = 3
VOCABULARY = Vocabulary([b"a", b"b", b"c", b""], [EOS], [EOS])
LINE = '%llguidance {{"no_forcing": true}}\nstart: /{}/\n'


class Model:
    """Wants the tokens in the order of their ids, the last first."""

    def __init__(self) -> None:
        self.ran = threading.Event()

    def forward(self, step: StepInputs) -> None:
        self.ran.set()

    def logits(self, rows: Any) -> Any:
        return np.tile(np.arange(SIZE, dtype=np.float32), (len(rows), 1))


class Runner:
    """A runner of requests that all have a prompt of one token, and its orders."""

    def __init__(self) -> None:
        self.grammars = Grammars(SIZE, num_threads=2)
        self.grammars.set_vocabulary(VOCABULARY)
        batch = InputBatch(max_num_seqs=4, max_model_len=32, max_num_tokens=32, block_size=32,
                           vocab_size=SIZE, grammars=self.grammars)  # fmt: skip
        self.batch = batch
        self.model = Model()
        self.runner = ModelRunner(self.model, batch, Sampler(SIZE, 1))
        self._lengths: dict[str, int] = {}

    def add(self, **grammars: str | None) -> Any:
        new = [
            NewRequest(name, [0], 1, SamplingParams(temperature=0.0, max_tokens=9), [EOS], 1,
                       [len(self._lengths) + i], 0, grammar)
            for i, (name, grammar) in enumerate(grammars.items())
        ]  # fmt: skip
        self._lengths |= dict.fromkeys(grammars, 1)
        counts = dict.fromkeys(grammars, 1)
        return self.runner.execute(SchedulerOutput(new, [], counts, len(counts), []))

    def step(self, *names: str, finished: tuple[str, ...] = ()) -> Any:
        cached = [CachedRequest(name, [], self._lengths[name]) for name in names]
        for name in names:
            self._lengths[name] += 1
        counts = dict.fromkeys(names, 1)
        order = SchedulerOutput([], cached, counts, len(names), list(finished))
        return self.runner.execute(order)


@pytest.fixture
def runner() -> Any:
    made = Runner()
    yield made
    made.grammars.shutdown()


def test_each_request_follows_its_own_grammar_to_its_end(runner: Runner) -> None:
    output = runner.add(ab=LINE.format("ab"), free=None, cab=LINE.format("cab"))
    assert output.sampled_token_ids == {"ab": [0], "free": [39], "cab": [2]}
    assert output.grammar_ended == set()
    output = runner.step("ab", "free", "cab")
    assert output.sampled_token_ids == {"ab": [1], "free": [39], "cab": [0]}
    assert output.grammar_ended == {"ab"}
    output = runner.step("cab", finished=("ab", "free"))
    assert (output.sampled_token_ids, output.grammar_ended) == ({"cab": [1]}, {"cab"})
    runner.step(finished=("cab",))
    assert runner.batch.num_grammars == 0


def test_each_token_of_a_draft_meets_the_grammar_behind_those_before_it(runner: Runner) -> None:
    runner.add(cab=LINE.format("cab"), free=None)
    cached = [CachedRequest("cab", [], 1), CachedRequest("free", [], 1)]
    drafts = {"cab": [0, 1, 2], "free": [39, 5]}
    order = SchedulerOutput([], cached, {"cab": 4, "free": 3}, 7, [], drafts)
    output = runner.runner.execute(order)
    # Nothing follows the end of the grammar, nor a wrong token.
    assert output.sampled_token_ids == {"cab": [0, 1], "free": [39, 39]}
    assert output.grammar_ended == {"cab"}


def test_request_that_comes_back_goes_on_in_its_grammar(runner: Runner) -> None:
    new = NewRequest("r", [0, 2, 0], 1, SamplingParams(temperature=0.0), [EOS], 1, [0], 0,
                     LINE.format("cab"))  # fmt: skip
    output = runner.runner.execute(SchedulerOutput([new], [], {"r": 3}, 3, []))
    assert (output.sampled_token_ids, output.grammar_ended) == ({"r": [1]}, {"r"})


def test_grammar_that_cannot_be_compiled_fails_its_request_alone(runner: Runner) -> None:
    output = runner.add(bad="start: (", good=LINE.format("b"))
    assert set(output.errors) == {"bad"}
    assert output.sampled_token_ids == {"good": [1]}


def test_request_that_rules_out_every_token_is_itself_at_fault(runner: Runner) -> None:
    params = SamplingParams(temperature=0.0, allowed_token_ids=[2])
    words = SamplingParams(temperature=0.0, allowed_token_ids=[2])
    words.bad_words_token_ids = [[2]]
    new = [
        NewRequest("grammar", [0], 1, params, [EOS], 1, [0], 0, LINE.format("ab")),
        NewRequest("words", [0], 1, words, [EOS], 1, [1], 0, None),
        NewRequest("good", [0], 1, SamplingParams(temperature=0.0), [EOS], 1, [2], 0, None),
    ]
    counts = {"grammar": 1, "words": 1, "good": 1}
    output = runner.runner.execute(SchedulerOutput(new, [], counts, 3, []))
    assert set(output.errors) == {"grammar", "words"}
    assert output.error_params == {"grammar": "structured_outputs", "words": "allowed_token_ids"}
    assert output.sampled_token_ids == {"good": [39]}


def test_masks_are_found_while_the_model_runs(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.grammars.prepare(LINE.format("b"))
    seen: list[bool] = []
    begin = runner.grammars.begin

    def begin_late(states: Any) -> Any:
        step = begin(states)
        assert step is not None
        wait = step.wait

        class Late:
            masks, rows = step.masks, step.rows

            def wait(self) -> None:
                seen.append(runner.model.ran.is_set())
                wait()

        seen.append(runner.model.ran.is_set())
        return Late()

    monkeypatch.setattr(runner.grammars, "begin", begin_late)
    assert runner.add(b=LINE.format("b")).sampled_token_ids == {"b": [1]}
    assert seen == [False, True]  # begun before the model, waited for behind it


def test_logits_that_are_no_numbers_end_their_request_and_are_told(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = runner.model.logits

    def logits(rows: Any) -> Any:
        values = good(rows)
        values[0, 7] = np.nan
        return values

    monkeypatch.setattr(runner.model, "logits", logits)
    output = runner.add(bad=None, good=None)
    assert set(output.errors) == output.corrupted == {"bad"}
    assert output.sampled_token_ids == {"good": [39]}
    assert runner.step("good").corrupted == {"good"}
