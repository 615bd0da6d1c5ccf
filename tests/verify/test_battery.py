"""The battery on a tiny model: that it is green, that it finds faults, and that it is honest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.config.args import EngineArgs
from headrace.core.kv_cache import KVCacheManager
from headrace.engine.llm_engine import LLMEngine
from headrace.engine.setup import make_engine_config
from headrace.verify.run import IDENTICAL, NOT_EXERCISED, REFERENCE, Row, run_cases
from headrace.verify.settings import VerifySettings
from headrace.verify.workload import Workload
from headrace.worker.model_runner import ModelRunner
from headrace.worker.sampler import Sampler

NAMES = [
    "alone", "in a batch of 32", "steps of at most 7 tokens", "steps of at most 32 tokens",
    "prompts in pieces of 13 tokens", "prompts in pieces of 33 tokens",
    "prefix cache, asked again", "prefix cache, shared beginnings",
    "preemption, computed again", "preemption, with prefix cache", "neighbours aborted midway",
    "1 thread", "2 threads",
]  # fmt: skip


def battery(args: EngineArgs, **settings: Any) -> dict[str, Row]:
    asked = VerifySettings(**{"batch_size": 32, **settings})
    workload = Workload(asked, make_engine_config(args).model)
    return {row.varied: row for row in run_cases(args, workload)}


def test_every_run_is_exercised_and_identical(tiny_args: EngineArgs) -> None:
    rows = battery(tiny_args)
    assert list(rows) == NAMES
    assert {name: row.result for name, row in rows.items()} == dict.fromkeys(NAMES, IDENTICAL) | {
        "alone": REFERENCE
    }
    assert {(row.requests, row.tokens) for row in rows.values()} == {(9, 3 * (24 + 24 + 1))}
    assert rows["in a batch of 32"].seen == "up to 32 requests in a step for each"
    assert rows["neighbours aborted midway"].seen.startswith("12 ended in steps 1 to 6")


@pytest.mark.parametrize(
    "settings",
    [
        {"num_prompts": 1, "batch_size": 4},
        {"num_prompts": 8, "input_len": 41, "output_len": 40},
        {"num_prompts": 2, "input_len": 80},
    ],
    ids=["one", "many", "long"],
)
def test_other_sizes_are_exercised_too(tiny_args: EngineArgs, settings: dict[str, Any]) -> None:
    rows = battery(tiny_args, **settings)
    assert {name: row.result for name, row in rows.items() if not row.is_good} == {}


def test_a_sampler_that_looks_at_its_neighbours_is_found_and_located(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Sampler.sample

    def faulty(self: Sampler, logits: Any, rows: Any) -> Any:
        if len(rows) == 32:
            logits[10:] += np.float32(2.0**-10) * np.arange(logits.shape[1], dtype=np.float32)
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", faulty)
    rows = battery(tiny_args)
    bad = [row for row in rows.values() if not row.is_good]
    assert [row.varied for row in bad] == ["in a batch of 32"]
    found = bad[0].difference
    assert found is not None
    # Two or three of 23 neighbours come before each subject: row 10 is behind the third of them.
    assert (found.request, found.kind, found.place, found.position) == (3, "greedy", "token", 0)
    assert str(found) == bad[0].result
    assert bad[0].result.startswith("differs at request 3 (greedy) token 0: expected ")


def test_one_bit_of_a_log_probability_is_found(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Sampler.sample

    def faulty(self: Sampler, logits: Any, rows: Any) -> Any:
        sampled = sample(self, logits, rows)
        late = [i for i, row in enumerate(rows) if row.num_output_tokens == 5]
        for i in late if len(rows) > 1 else []:
            record = sampled.logprobs[i]
            record.logprobs[0] = float(np.nextafter(np.float32(record.logprobs[0]), np.float32(0)))
        return sampled

    monkeypatch.setattr(Sampler, "sample", faulty)
    rows = battery(tiny_args)
    assert rows["alone"].result == REFERENCE
    for name in NAMES[1:]:
        found = rows[name].difference
        assert found is not None, name
        assert (found.place, found.position) == ("token", 5)
        assert found.expected.startswith("log-probability -")


def test_prompt_scores_that_depend_on_the_chunk_are_found(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = Sampler.prompt_logprobs

    def faulty(self: Sampler, logits: Any, targets: Any, count: int) -> Any:
        entries = score(self, logits, targets, count)
        if len(targets) == 13:
            entries[3].logprobs[0] -= 1.0
        return entries

    monkeypatch.setattr(Sampler, "prompt_logprobs", faulty)
    row = battery(tiny_args)["prompts in pieces of 13 tokens"]
    found = row.difference
    assert found is not None
    assert (found.kind, found.place) == ("scored", "prompt token")


def test_a_wrong_block_from_the_cache_is_found(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = KVCacheManager.find_prefix

    def faulty(self: KVCacheManager, request: Any) -> list[int]:
        return [block ^ 1 for block in find(self, request)]

    monkeypatch.setattr(KVCacheManager, "find_prefix", faulty)
    rows = battery(tiny_args)
    assert rows["prefix cache, asked again"].difference is not None
    assert rows["in a batch of 32"].result == IDENTICAL


def test_an_answer_that_fails_is_told_with_its_reason(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sample = ModelRunner._sample

    def faulty(self: ModelRunner, step: Any, masks: Any, output: Any) -> None:
        run_sample(self, step, masks, output)
        if len(step.requests) == 32:
            output.errors[step.requests[2].request_id] = "no numbers"

    monkeypatch.setattr(ModelRunner, "_sample", faulty)
    result = battery(tiny_args)["in a batch of 32"].result
    assert result.endswith("got finish_reason error (no numbers) after 0 tokens")


@pytest.mark.parametrize(
    ("broken", "patch"),
    [
        (
            ["prefix cache, asked again", "prefix cache, shared beginnings"],
            lambda patch: patch.setattr(KVCacheManager, "find_prefix", lambda *_: []),
        ),
        (
            ["steps of at most 4096 tokens", "prompts in pieces of 64 tokens"],
            lambda patch: (
                patch.setattr("headrace.verify.battery.STEP_SIZES", (4096,)),
                patch.setattr("headrace.verify.battery.PIECE_SIZES", (64,)),
            ),
        ),
        (
            ["neighbours aborted midway"],
            lambda patch: patch.setattr(LLMEngine, "abort_request", lambda *_, **__: None),
        ),
    ],
    ids=["cache", "chunks", "aborts"],
)
def test_what_did_not_happen_is_not_called_identical(
    tiny_args: EngineArgs,
    monkeypatch: pytest.MonkeyPatch,
    broken: list[str],
    patch: Callable[[pytest.MonkeyPatch], object],
) -> None:
    patch(monkeypatch)
    rows = battery(tiny_args)
    assert [row.varied for row in rows.values() if row.result == NOT_EXERCISED] == broken


def test_a_cache_that_holds_everybody_is_no_test_of_preemption(
    tiny_args: EngineArgs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.verify.battery.tiny_cache", lambda _workload: {})
    rows = battery(tiny_args)
    assert rows["preemption, computed again"].result == NOT_EXERCISED
    assert rows["preemption, computed again"].seen == "0 preemptions of 0 requests"
