"""Sampling with drafts: the same tokens and records as without, whatever the parameters.

A made-up model, whose logits follow from the last three tokens it finds in its cache, between the
real scheduler, input batch and sampler.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig, SpeculativeConfig
from headrace.core.scheduler import Scheduler
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from headrace.ops.ops import F32, I32, StepInputs
from headrace.sampling_params import RepetitionDetectionParams
from headrace.worker.draft_rows import DraftRows, cut
from headrace.worker.input_batch import InputBatch
from headrace.worker.model_runner import ModelRunner
from headrace.worker.sampler import Sampler
from tests.fakes import make_core_request

VOCAB_SIZE = 40
EOS = 39
PROMPTS = {
    "a": [1, 2, 3, 4, 5, 6] * 3,
    "b": [7, 8, 7, 8, 7],
    "c": list(range(10, 30)),
    "d": [3],
}
SPECULATIVE = SpeculativeConfig(
    num_speculative_tokens=5, prompt_lookup_min=1, prompt_lookup_max=3, disable_by_batch_size=8
)


class Model:
    """An Executable. Logits favour a token that follows from the last one, so that answers go in
    circles, and are bent a little by those before it."""

    def __init__(self, num_slots: int, broken_at: int | None = None) -> None:
        self.cache = np.full(num_slots, -1, np.int32)
        self.broken_at = broken_at
        """A position whose logits are no numbers."""
        self.positions: list[int] = []
        self.histories: list[list[int]] = []
        self.num_forwards = 0

    def forward(self, inputs: StepInputs) -> None:
        self.num_forwards += 1
        self.cache[inputs.slot_mapping] = inputs.input_ids
        block_size = 4
        self.histories = []
        self.positions = inputs.positions.tolist()
        for i in range(len(inputs.seq_lens)):
            first, end = inputs.query_start_loc[i : i + 2]
            for position in inputs.positions[first:end]:
                seen = range(max(0, position - 2), position + 1)
                slots = [
                    inputs.block_table[i][p // block_size] * block_size + p % block_size
                    for p in seen
                ]
                self.histories.append(self.cache[slots].tolist())

    def logits(self, rows: I32) -> F32:
        return np.stack([self._row(row) for row in rows.tolist()])

    def _row(self, number: int) -> F32:
        history = self.histories[number]
        if self.positions[number] == self.broken_at:
            return np.full(VOCAB_SIZE, np.nan, np.float32)
        row = np.zeros(VOCAB_SIZE, np.float32)
        for place, token_id in enumerate(reversed(history)):
            rng = np.random.default_rng(token_id + 1000 * place)
            row += rng.normal(0.0, 3.0 / (1 + 4 * place), VOCAB_SIZE).astype(np.float32)
        return row


class Engine:
    """The parts of a core, without its loop."""

    def __init__(self, speculative: SpeculativeConfig | None, **options: Any) -> None:
        num_blocks = options.pop("num_blocks", 200)
        processors = options.pop("processors", ())
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=options.pop("budget", 64)),
            CacheConfig(block_size=4),
            num_blocks,
            100,
            now=lambda: 0.0,
            speculative=speculative,
        )
        batch = InputBatch(
            max_num_seqs=4,
            max_model_len=100,
            max_num_tokens=64,
            block_size=4,
            vocab_size=VOCAB_SIZE,
            logits_processors=processors,
        )
        self.model = Model(num_blocks * 4, **options)
        self.runner = ModelRunner(self.model, batch, Sampler(VOCAB_SIZE, 1))

    def answers(self, **params: Any) -> dict[str, tuple[Any, ...]]:
        """All that callers learn of the answers to PROMPTS."""
        for name, prompt in PROMPTS.items():
            self.scheduler.add_request(
                make_core_request(
                    name, prompt, **({"max_tokens": 40, "eos_token_id": EOS} | params)
                )
            )
        outputs: dict[str, list[EngineCoreOutput]] = {name: [] for name in PROMPTS}
        while self.scheduler.roster.has_work():
            order = self.scheduler.schedule()
            for output in self.scheduler.update(order, self.runner.execute(order)):
                outputs[output.request_id].append(output)
        return {
            name: (
                [token_id for one in found for token_id in one.new_token_ids],
                [entry for one in found for entry in one.logprobs or ()],
                [one.prompt_logprobs for one in found if one.prompt_logprobs],
                found[-1].finish_reason,
                found[-1].stop_reason,
                found[-1].error,
            )
            for name, found in outputs.items()
        }


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "to the end": {"temperature": 0, "ignore_eos": True, "max_tokens": 60},
    "seeded": {"temperature": 0.5, "seed": 3},
    "drawn": {"temperature": 0.7, "top_p": 0.8},
    "top_k and min_p": {"temperature": 0.9, "top_k": 4, "min_p": 0.05, "seed": 1},
    "logprobs": {"temperature": 0.5, "logprobs": 3, "prompt_logprobs": 2},
    "logprob_token_ids": {"temperature": 0.5, "logprob_token_ids": [1, 5]},
    "repetition penalty": {"temperature": 0, "repetition_penalty": 1.3, "logprobs": 1},
    "frequency": {"temperature": 0.4, "frequency_penalty": 0.4, "seed": 9, "logprobs": 1},
    "presence": {"temperature": 0, "presence_penalty": 1.5},
    "min_tokens": {"temperature": 0.8, "min_tokens": 20, "stop_token_ids": [1, 2, 3, 4, 5]},
    "stop_token_ids": {"temperature": 0, "stop_token_ids": [6, 8, 33]},
    "bias": {"temperature": 0, "logit_bias": {4: 3.0, 8: -100.0}},
    "allowed": {"temperature": 0.6, "allowed_token_ids": [1, 2, 3, 7, 8, 9], "seed": 2},
    "bad words": {"temperature": 0, "bad_words_token_ids": [[2, 3], [8], [5, 6, 1]]},
    "thinking": {"temperature": 0.5, "thinking_token_budget": 3, "thinking_token_ids": (2, 30)},
    "repetition": {
        "temperature": 0,
        "ignore_eos": True,
        "repetition_detection": RepetitionDetectionParams(
            max_pattern_size=9, min_pattern_size=1, min_count=2
        ),
    },
}
CONDITIONS: dict[str, dict[str, Any]] = {
    "together": {},
    "in chunks": {"budget": 5},
    "preempted": {"num_blocks": 27},
    "a faulty model": {"broken_at": 50},
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_nothing_that_callers_see(way: str, condition: str) -> None:
    plain = Engine(None, **CONDITIONS[condition]).answers(**WAYS[way])
    engine = Engine(SPECULATIVE, **CONDITIONS[condition])
    assert engine.answers(**WAYS[way]) == plain


def test_the_drill_reaches_what_it_is_made_for() -> None:
    for condition, options in CONDITIONS.items():
        plain, engine = Engine(None, **options), Engine(SPECULATIVE, **options)
        answers = plain.answers(**WAYS["to the end"])
        engine.answers(**WAYS["to the end"])
        stats = engine.scheduler.stats()
        assert stats.num_accepted_tokens > 20
        if condition != "in chunks":  # where the budget leaves one token to guess
            assert stats.num_accepted_tokens < stats.num_draft_tokens
        assert (stats.num_preemptions > 0) == (condition == "preempted")
        has_failed = any(one[3] is FinishReason.ERROR and one[0] for one in answers.values())
        assert has_failed == (condition == "a faulty model")
        assert engine.model.num_forwards < plain.model.num_forwards


def test_processors_see_each_token_once_and_in_order() -> None:
    calls: list[list[int]] = []

    class Watcher:
        def __init__(self, config: Any) -> None: ...

        def new_req_logits_processor(self, params: Any) -> Any:
            def forbid_the_last(output_token_ids: Any, logits: Any) -> None:
                calls.append(list(output_token_ids))
                if len(output_token_ids) % 3 == 2:
                    logits[output_token_ids[-1]] = -np.inf

            return forbid_the_last

    plain = Engine(None, processors=[Watcher(None)]).answers(temperature=0, logprobs=1)
    expected, calls[:] = sorted(calls), []
    drafted = Engine(SPECULATIVE, processors=[Watcher(None)]).answers(temperature=0, logprobs=1)
    assert drafted == plain
    assert sorted(calls) == expected


def test_a_processor_that_fails_ends_its_request_at_the_same_token() -> None:
    class Failing:
        def __init__(self, config: Any) -> None: ...

        def new_req_logits_processor(self, params: Any) -> Any:
            def fail_late(output_token_ids: Any, logits: Any) -> None:
                if len(output_token_ids) == 13:
                    raise RuntimeError("late")

            return fail_late

    answers = [
        Engine(config, processors=[Failing(None)]).answers(temperature=0, ignore_eos=True)
        for config in (None, SPECULATIVE)
    ]
    assert answers[0] == answers[1]
    assert {len(one[0]) for one in answers[0].values()} == {13}


def test_rows_are_laid_out_round_by_round() -> None:
    rows = DraftRows(np.array([3, 4, 9], np.int32), [[7, 8], [], [5, 5, 5, 5]])
    assert rows.rows.tolist() == [1, 4, 5, 2, 6, 3, 7, 8, 9]
    logits = np.arange(9, dtype=np.float32)[:, np.newaxis]
    assert rows.logits_of(0, [0, 1, 2], logits).ravel().tolist() == [0, 1, 2]
    assert np.shares_memory(rows.logits_of(0, [1, 2], logits), logits)
    assert rows.logits_of(0, [0, 2], logits).ravel().tolist() == [0, 2]
    assert rows.logits_of(1, [2], logits).ravel().tolist() == [4]
    assert rows.is_right(0, 0, 7)
    assert not rows.is_right(0, 0, 8)
    assert not rows.is_right(0, 1, 7)
    assert not rows.is_right(4, 2, 5)


@pytest.mark.parametrize(
    ("num_rows", "expected"),
    [
        ([], []),
        ([1, 1, 1], [(0, 3)]),
        ([2, 2, 2], [(0, 2), (2, 3)]),
        ([9, 1, 9], [(0, 1), (1, 2), (2, 3)]),
        ([1, 3, 4, 1], [(0, 2), (2, 3), (3, 4)]),
    ],
)
def test_cuts_hold_at_most_so_many_rows(
    num_rows: list[int], expected: list[tuple[int, int]]
) -> None:
    assert cut(num_rows, 4) == expected
