"""Answers with speculative decoding equal those without, bit for bit, on real models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, RequestOutput, SamplingParams
from headrace.metrics.reader import Counter, Vector
from headrace.sampling_params import StructuredOutputsParams
from tests.waiting import PATIENCE

pytestmark = pytest.mark.model

TABLE = "one two three four five six seven eight nine ten. "
PROMPTS = [
    f"Repeat this: {TABLE * 3}",
    "The lighthouse stood at the end of a narrow spit of rock, half a mile from the village.",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n",
    "A, B, A, B, A, B, A, B, A, B, A,",
]
RECORDS = StructuredOutputsParams(
    json={
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "items": {
            "type": "object",
            "required": ["name", "value"],
            "additionalProperties": False,
            "properties": {"name": {"enum": ["alpha", "beta"]}, "value": {"type": "integer"}},
        },
    }
)
LOGPROBS = {"max_tokens": 48, "logprobs": 2}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    # Seeds of the engine's own: drawn in the order in which requests come.
    "unseeded": {"temperature": 0.7, "top_k": 20},
    "n": {"temperature": 0.6, "seed": 5, "n": 3},
    "stop": {"temperature": 0, "stop": ["four", ", B, A, B"], "include_stop_str_in_output": True},
    "stop with min_tokens": {"temperature": 0, "stop": ["two", "B"], "min_tokens": 20},
    "penalties": {
        "temperature": 0.5, "seed": 1, "repetition_penalty": 1.05, "frequency_penalty": 0.1,
        "presence_penalty": 0.1, "min_tokens": 30,
    },
    "bad words": {"temperature": 0, "bad_words": ["five six", " A, B"]},
    "repetition": {
        "temperature": 0, "ignore_eos": True,
        "repetition_detection": {"max_pattern_size": 12, "min_pattern_size": 1, "min_count": 4},
    },
    "a schema": {"temperature": 0.8, "seed": 4, "structured_outputs": RECORDS},
    "a pattern": {
        "temperature": 0, "structured_outputs": StructuredOutputsParams(regex="(A, B, ){6}end"),
    },
    "prompt logprobs": {"temperature": 0, "prompt_logprobs": 1},
}  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bfloat16": ("smollm2-135m-instruct", {}),
    "int8": ("smollm2-135m-instruct", {"quantization": "int8"}),
    "gguf": ("smollm2-135m-instruct-gguf", {}),
}


@pytest.fixture(scope="module")
def make_llm(model_dir: Callable[[str], Path]) -> Callable[..., Any]:
    """Engines under different settings, with or without guesses."""

    @contextmanager
    def make(kind: str = "bfloat16", **options: Any) -> Iterator[LLM]:
        name, settings = KINDS[kind]
        settings = {"max_model_len": 512, "max_num_seqs": 16, "kv_cache_memory_bytes": 256 << 20,
                    "disable_log_stats": False,
                    "structured_outputs_timeout": PATIENCE} | settings  # fmt: skip
        with LLM(str(model_dir(name)), **(settings | options)) as llm:
            yield llm

    return make


@pytest.fixture(scope="module")
def plain(make_llm: Callable[..., Any]) -> dict[str, list[Any]]:
    """The answers in every way of sampling, without guesses."""
    with make_llm() as llm:
        return {way: _run(llm, PROMPTS, way) for way in WAYS}


@pytest.fixture(scope="module")
def guessing(make_llm: Callable[..., Any]) -> Iterator[LLM]:
    """One engine that guesses."""
    with make_llm(speculative_config=NGRAM) as llm:
        yield llm


@pytest.fixture(scope="module")
def guessed(guessing: LLM) -> dict[str, list[Any]]:
    """The same with guesses. (In one go, as the seeds that are drawn depend on the order.)"""
    return {way: _run(guessing, PROMPTS, way) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_the_same_bits(
    plain: dict[str, list[Any]], guessed: dict[str, list[Any]], way: str
) -> None:
    assert guessed[way] == plain[way]


def test_alone_gives_the_same_bits(guessing: LLM, plain: dict[str, list[Any]]) -> None:
    for way in ("greedy", "seeded"):
        assert [_run(guessing, [prompt], way)[0] for prompt in PROMPTS] == plain[way]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"enable_prefix_caching": False},
        {"num_threads": 1},
    ],
    ids=["chunked", "no prefix cache", "one thread"],
)
def test_other_settings_give_the_same_bits(
    make_llm: Callable[..., Any], plain: dict[str, list[Any]], options: dict[str, Any]
) -> None:
    with make_llm(speculative_config=NGRAM, **options) as llm:
        results = {way: _run(llm, PROMPTS, way) for way in ("greedy", "seeded")}
    assert results == {way: plain[way] for way in results}


@pytest.mark.parametrize("kind", ["int8", "gguf"])
def test_other_weights_give_the_same_bits(make_llm: Callable[..., Any], kind: str) -> None:
    with make_llm(kind) as llm:
        expected = [_run(llm, PROMPTS, way) for way in ("greedy", "seeded")]
    with make_llm(kind, speculative_config=NGRAM) as llm:
        assert [_run(llm, PROMPTS, way) for way in ("greedy", "seeded")] == expected
        assert _counts(llm)["accepted_tokens"] > 0


def test_preemption_gives_the_same_bits(
    make_llm: Callable[..., Any], plain: dict[str, list[Any]]
) -> None:
    # Twelve blocks hold the longest of these requests to its end, not all.
    options = {"num_gpu_blocks_override": 12, "max_model_len": 192}
    with make_llm(speculative_config=NGRAM, **options) as llm:
        params = SamplingParams(**(LOGPROBS | WAYS["greedy"]))
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 0
        assert [_bits(output) for output in outputs] == plain["greedy"]


def test_repetitive_answers_take_fewer_steps_and_the_counters_say_so(
    make_llm: Callable[..., Any],
) -> None:
    with make_llm(speculative_config=NGRAM) as llm:
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        counts = _counts(llm)
        metrics = {one.name: one for one in llm.get_metrics()}
    ledgers = [output.metrics for output in outputs if output.metrics is not None]
    assert counts["accepted_tokens"] == sum(one.num_accepted_tokens for one in ledgers)
    assert counts["draft_tokens"] == sum(one.num_draft_tokens for one in ledgers)
    assert [one.num_generation_tokens for one in ledgers] == [64] * len(PROMPTS)
    assert ledgers[3].num_accepted_tokens > 40
    places = metrics["headrace:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(places, Vector)
    assert sum(places.values) == counts["accepted_tokens"]
    assert places.values == sorted(places.values, reverse=True)


def _run(llm: LLM, prompts: list[str], way: str) -> list[Any]:
    params = SamplingParams(**(LOGPROBS | WAYS[way]))
    return [_bits(output) for output in llm.generate(prompts, params, use_tqdm=False)]


def _counts(llm: LLM) -> dict[str, int]:
    start = "headrace:spec_decode_num_"
    return {
        one.name.removeprefix(start): one.value
        for one in llm.get_metrics()
        if one.name.startswith(start) and isinstance(one, Counter)
    }


def _bits(output: RequestOutput) -> Any:
    found: list[Any] = [output.prompt_logprobs]
    for answer in output.outputs:
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(answer.token_ids)
        logprobs = [[(i, p.logprob, p.rank) for i, p in entry.items()] for entry in answer.logprobs]
        found.append((answer.token_ids, answer.text, logprobs, answer.cumulative_logprob,
                      answer.finish_reason, answer.stop_reason))  # fmt: skip
    return found
