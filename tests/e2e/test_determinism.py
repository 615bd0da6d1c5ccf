"""The same request gives the same bits, whatever else the engine does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, RequestOutput, SamplingParams
from headrace.errors import ValidationError

pytestmark = pytest.mark.model

STORY = (
    "The lighthouse stood at the end of a narrow spit of rock, half a mile from the village, and "
    "for more than a hundred years it had warned ships away from the reef. "
)
OTHERS = [
    f"Item {i}: " + " ".join(f"word{j * i % 97}" for j in range(3 + 5 * i)) for i in range(31)
]
GREEDY = {"temperature": 0.0, "max_tokens": 24, "logprobs": 3, "ignore_eos": True}
SEEDED = {"temperature": 0.9, "top_p": 0.9, "seed": 42, "max_tokens": 24, "logprobs": 1,
          "ignore_eos": True}  # fmt: skip


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bfloat16": ("smollm2-135m-instruct", {}),
    "int8": ("smollm2-135m-instruct", {"quantization": "int8"}),
    "gguf": ("smollm2-135m-instruct-gguf", {}),
}


@pytest.fixture(scope="module", params=KINDS)
def make_llm(
    request: pytest.FixtureRequest, model_dir: Callable[[str], Path]
) -> Callable[..., Any]:
    """Engines of one model, in each kind of weights, under different settings."""
    name, kind = KINDS[request.param]

    @contextmanager
    def make(**options: Any) -> Iterator[LLM]:
        settings = {"max_model_len": 512, "max_num_seqs": 32, "kv_cache_memory_bytes": 256 << 20}
        with LLM(str(model_dir(name)), **(settings | kind | options)) as llm:
            yield llm

    return make


@pytest.fixture(scope="module", params=[GREEDY, SEEDED], ids=["greedy", "seeded"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Keyword arguments of SamplingParams."""
    return request.param


@pytest.fixture(scope="module")
def alone(make_llm: Callable[..., Any], sampling: dict[str, Any]) -> list[Any]:
    """Each prompt by itself, nothing cached: what everything else is compared with."""
    with make_llm(enable_prefix_caching=False) as llm:
        return [_run(llm, [prompt], sampling)[0] for prompt in (STORY, *OTHERS[:3])]


def test_in_a_batch_of_32_gives_the_same_bits(
    make_llm: Callable[..., Any], sampling: dict[str, Any], alone: list[Any]
) -> None:
    with make_llm(enable_prefix_caching=False) as llm:
        together = _run(llm, [STORY, *OTHERS], sampling)
    assert together[:4] == alone


@pytest.mark.parametrize("chunk", [16, 512])
def test_chunked_prefill_gives_the_same_bits(
    make_llm: Callable[..., Any], sampling: dict[str, Any], alone: list[Any], chunk: int
) -> None:
    with make_llm(max_num_batched_tokens=chunk, max_num_seqs=min(32, chunk)) as llm:
        assert _run(llm, [STORY, *OTHERS[:3]], sampling) == alone


def test_a_prefix_cache_hit_gives_the_same_bits(
    make_llm: Callable[..., Any], sampling: dict[str, Any], alone: list[Any]
) -> None:
    with make_llm() as llm:
        params = SamplingParams(**sampling)
        outputs = [llm.generate(STORY, params, use_tqdm=False)[0] for _ in range(4)]
    num_cached = [output.num_cached_tokens or 0 for output in outputs]
    assert num_cached[0] == 0
    assert min(num_cached[1:]) >= 16
    assert [_bits(output) for output in outputs] == [alone[0]] * 4


def test_forced_preemption_gives_the_same_bits(
    make_llm: Callable[..., Any], sampling: dict[str, Any], alone: list[Any]
) -> None:
    # Twelve blocks hold one of these requests to its end, not four.
    with make_llm(num_gpu_blocks_override=12, max_model_len=192, disable_log_stats=False) as llm:
        outputs = llm.generate([STORY, *OTHERS[:3]], SamplingParams(**sampling), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 0
    assert [_bits(output) for output in outputs] == alone


def test_prompt_logprobs_are_the_same_with_and_without_chunks_and_cache(
    make_llm: Callable[..., Any],
) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    results = []
    for options in ({}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 16,
                                                           "max_num_seqs": 16}):  # fmt: skip
        with make_llm(**options) as llm:
            for _ in range(2):
                [output] = llm.generate(STORY, params, use_tqdm=False)
                assert output.prompt_logprobs is not None
                assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
                assert output.prompt_logprobs[0] is None
                results.append(output.prompt_logprobs)
    assert all(result == results[0] for result in results)


def test_a_prompt_that_can_never_fit_is_refused_and_harms_nobody(
    make_llm: Callable[..., Any],
) -> None:
    with make_llm(num_gpu_blocks_override=8, max_model_len="auto") as llm:
        with pytest.raises(ValidationError, match="prompt"):
            llm.generate(STORY * 20, use_tqdm=False)
        [output] = llm.generate("Hello", SamplingParams(max_tokens=3), use_tqdm=False)
    assert len(output.outputs[0].token_ids) in range(1, 4)


def _run(llm: LLM, prompts: list[str], sampling: dict[str, Any]) -> list[Any]:
    return [_bits(o) for o in llm.generate(prompts, SamplingParams(**sampling), use_tqdm=False)]


def _bits(output: RequestOutput) -> Any:
    answer = output.outputs[0]
    assert answer.logprobs is not None
    logprobs = [[(i, p.logprob, p.rank) for i, p in entry.items()] for entry in answer.logprobs]
    return answer.token_ids, answer.text, logprobs
