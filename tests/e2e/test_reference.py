"""Real models against values computed by another implementation in float32.

The values of expected.json come from weights rounded to bfloat16, which is what the Hugging Face
folders hold. GGUF files hold more, and their log-probabilities differ by up to 0.08 from that
rounding alone: expected_gguf.json has the values of the weights as they are, and a GGUF model must
lie between the two, give or take the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.logprobs import TokenLogprobMap

MODELS = ["smollm2-135m-instruct", "gemma3-270m", "qwen2.5-coder-0.5b-instruct"]
NUM_TOKENS = 48
TOLERANCE = 0.05
"""Of log-probabilities; and the margin below which another rounding may choose the other token."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=[f"{m}{form}" for m in MODELS for form in ("", "-gguf")])
def model(
    request: pytest.FixtureRequest,
    model_dir: Callable[[str], Path],
    expected: dict[str, Any],
    expected_gguf: dict[str, Any],
) -> Iterator[tuple[LLM, dict[str, Any]]]:
    """Each model as a Hugging Face folder and as the GGUF file it was made from."""
    name: str = request.param
    reference = expected[name.removesuffix("-gguf")]
    exact = expected_gguf.get(name, reference)["prompts"]
    for prompt, other in zip(reference["prompts"], exact, strict=True):
        prompt["ranges"] = _ranges(prompt["top5_first_4"], other["top5_first_4"])
    with LLM(str(model_dir(name)), max_model_len=1024, max_num_seqs=16) as llm:
        yield llm, reference


def _ranges(
    rounded: list[list[tuple[int, float]]], exact: list[list[tuple[int, float]]]
) -> list[dict[int, tuple[float, float]]]:
    """token id -> lowest and highest log-probability of the two references, by position."""
    result = []
    for one, other in zip(rounded, exact, strict=True):
        a, b = dict(map(tuple, one)), dict(map(tuple, other))
        result.append({i: (min(v, b.get(i, v)), max(v, b.get(i, v))) for i, v in a.items()})
    return result


def test_greedy_tokens_equal_the_reference(
    model: tuple[LLM, dict[str, Any]], report: Callable[[str], None]
) -> None:
    llm, reference = model
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5)
    prompts = [{"prompt_token_ids": p["prompt_token_ids"]} for p in reference["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    swaps, worst = 0, 0.0
    for output, prompt in zip(outputs, reference["prompts"], strict=True):
        answer = output.outputs[0]
        right = prompt["greedy_token_ids"]
        assert len(answer.token_ids) == NUM_TOKENS
        same = _common_prefix(answer.token_ids, right)
        if same < NUM_TOKENS:
            margin = prompt["margins"][same]
            assert margin < TOLERANCE, f"{prompt}: differs at {same} with margin {margin}"
            swaps += 1
        for ours, theirs in zip(answer.logprobs[:same], prompt["greedy_logprobs"], strict=False):
            worst = max(worst, abs(next(iter(ours.values())).logprob - theirs))
    name = Path(llm.model_config.model).name
    report(f"{name}: {swaps} swaps of near-equal tokens, worst logprob difference {worst:.4f}")


def test_top_logprobs_lie_within_the_tolerance(model: tuple[LLM, dict[str, Any]]) -> None:
    llm, reference = model
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=12)
    prompts = [{"prompt_token_ids": p["prompt_token_ids"]} for p in reference["prompts"]]
    checked = 0
    for output, prompt in zip(llm.generate(prompts, params, use_tqdm=False), reference["prompts"],
                              strict=True):  # fmt: skip
        answer = output.outputs[0]
        same = _common_prefix(answer.token_ids, prompt["greedy_token_ids"][:4])
        # The distribution after a swapped token is another one.
        for ours, theirs in zip(answer.logprobs[: same + 1], prompt["ranges"], strict=False):
            _assert_close(ours, theirs)
            checked += len(theirs)
    assert checked > 15 * len(prompts)


def test_paragraph_likelihood_lies_within_half_a_percent(
    model: tuple[LLM, dict[str, Any]],
) -> None:
    llm, reference = model
    paragraph = reference["paragraph"]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    [output] = llm.generate({"prompt_token_ids": paragraph["token_ids"]}, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    scores = [
        entry[token_id].logprob
        for entry, token_id in zip(output.prompt_logprobs, paragraph["token_ids"], strict=True)
        if entry is not None
    ]
    assert len(scores) == paragraph["scored_tokens"]
    mean = -sum(scores) / len(scores)
    assert mean == pytest.approx(paragraph["mean_negative_log_likelihood"], rel=0.005)


def test_prompts_become_the_reference_token_ids(model: tuple[LLM, dict[str, Any]]) -> None:
    llm, reference = model
    params = SamplingParams(temperature=0, max_tokens=1)
    for prompt in reference["prompts"]:
        if "messages" in prompt:
            [output] = llm.chat(prompt["messages"], params, use_tqdm=False)
        else:
            [output] = llm.generate(prompt["prompt"], params, use_tqdm=False)
        assert output.prompt_token_ids == prompt["prompt_token_ids"]


def test_text_of_the_reference_tokens_is_the_reference_text(
    model: tuple[LLM, dict[str, Any]],
) -> None:
    llm, reference = model
    tokenizer = llm.get_tokenizer()
    for prompt in reference["prompts"]:
        text = tokenizer.decode(prompt["greedy_token_ids"], skip_special_tokens=False)
        assert text == prompt["greedy_text"]


def _common_prefix(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def _assert_close(ours: TokenLogprobMap, theirs: dict[int, tuple[float, float]]) -> None:
    for token_id, (lowest, highest) in theirs.items():
        assert token_id in ours
        assert lowest - TOLERANCE <= ours[token_id].logprob <= highest + TOLERANCE
