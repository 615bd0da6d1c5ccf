"""Real bfloat16 models quantised to int8 at load: how exact, how large, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import LLM, SamplingParams
from headrace.ops.dispatch import available_isas

MODELS = ["smollm2-135m-instruct", "gemma3-270m", "qwen2.5-coder-0.5b-instruct"]
GGUF_MODELS = [f"{name}-gguf" for name in MODELS]
MIB = 1 << 20

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=MODELS)
def model(
    request: pytest.FixtureRequest, model_dir: Callable[[str], Path], expected: dict[str, Any]
) -> Iterator[tuple[LLM, dict[str, Any]]]:
    name: str = request.param
    with _load(model_dir(name)) as llm:
        yield llm, expected[name]


def _load(path: Path) -> LLM:
    return LLM(str(path), quantization="int8", max_model_len=1024, max_num_seqs=4)


def test_paragraph_likelihood_lies_within_one_percent(
    model: tuple[LLM, dict[str, Any]], report: Callable[[str], None]
) -> None:
    llm, reference = model
    _check_likelihood(llm, reference["paragraph"], report)


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_files_in_blocks_keep_their_weights_and_the_likelihood(
    name: str, model_dir: Callable[[str], Path], expected: dict[str, Any],
    report: Callable[[str], None],
) -> None:  # fmt: skip
    """Activations become 8-bit codes, which need instructions for bytes."""
    if available_isas()[0] == "portable" or available_isas()[0].startswith("amx"):
        pytest.skip("this processor multiplies weights in blocks as floats")
    with _load(model_dir(name)) as llm:
        _check_likelihood(llm, expected[name.removesuffix("-gguf")]["paragraph"], report)


def _check_likelihood(llm: LLM, paragraph: dict[str, Any], report: Callable[[str], None]) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    [output] = llm.generate({"prompt_token_ids": paragraph["token_ids"]}, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    scores = [
        entry[token_id].logprob
        for entry, token_id in zip(output.prompt_logprobs, paragraph["token_ids"], strict=True)
        if entry is not None
    ]
    assert len(scores) == paragraph["scored_tokens"]
    mean, right = -sum(scores) / len(scores), paragraph["mean_negative_log_likelihood"]
    name = Path(llm.model_config.model).name
    report(f"{name} int8: negative log-likelihood {mean:.4f}, reference {right:.4f}")
    assert mean == pytest.approx(right, rel=0.01)
    assert mean != pytest.approx(right, rel=1e-5), "nothing was quantised"


def test_loading_needs_one_matrix_beside_the_int8_weights(
    model: tuple[LLM, dict[str, Any]], model_dir: Callable[[str], Path]
) -> None:
    llm, _ = model
    stored = (model_dir(Path(llm.model_config.model).name) / "model.safetensors").stat().st_size
    vocab_size, hidden_size = (
        llm.model_config.hf_config[key] for key in ("vocab_size", "hidden_size")
    )
    # Half of the file, the largest stored matrix once more, and the interpreter.
    limit = 1.03 * stored / 2 + 2 * vocab_size * hidden_size + 90 * MIB
    assert _peak_bytes(_core()) < limit
    if vocab_size * hidden_size * 4 < stored:  # else one matrix is most of the model
        assert limit < stored + 90 * MIB


def _core() -> psutil.Process:
    [core] = [
        child
        for child in psutil.Process(os.getpid()).children(recursive=True)
        if "headrace.core.proc" in " ".join(child.cmdline())
    ]
    return core


def _peak_bytes(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
