"""Prompts as embeddings: a model's own rows give what their tokens give, bit for bit."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from headrace import LLM, AsyncLLM, RequestOutput, SamplingParams
from headrace.config.args import AsyncEngineArgs
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import StreamingInput
from headrace.ops.formats import StoredTensor, dequantize
from headrace.ops.ops import F32
from headrace.sampling_params import BeamSearchParams
from headrace.weights.safetensors import read_safetensors

pytestmark = pytest.mark.model

STORY = (
    "The lighthouse stood at the end of a narrow spit of rock, half a mile from the village, and "
    "for more than a hundred years it had warned ships away from the reef. "
)
GREEDY = {"temperature": 0.0, "max_tokens": 24, "logprobs": 3, "ignore_eos": True}
SEEDED = {"temperature": 0.9, "top_p": 0.9, "seed": 42, "max_tokens": 24, "logprobs": 1,
          "ignore_eos": True}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "enable_prompt_embeds": True, "max_model_len": 512, "max_num_seqs": 16,
    "kv_cache_memory_bytes": 128 << 20,
}  # fmt: skip


@dataclasses.dataclass
class Model:
    """A model and its embedding table."""

    path: str
    table: StoredTensor
    scale: float

    def rows(self, ids: list[int]) -> F32:
        """What the model's embedding gives for these tokens."""
        part = dataclasses.replace(
            self.table, data=self.table.data[ids], shape=(len(ids), self.table.shape[1])
        )
        return dequantize(part) * np.float32(self.scale)


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma3-270m"])
def model(request: pytest.FixtureRequest, model_dir: Callable[[str], Path]) -> Model:
    path = model_dir(request.param)
    table = read_safetensors(path)["model.embed_tokens.weight"]
    scale = math.sqrt(table.shape[1]) if "gemma" in request.param else 1.0
    return Model(str(path), table, scale)


@pytest.fixture(scope="module")
def llm(model: Model) -> Iterator[LLM]:
    with LLM(model.path, **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """Four prompts of 10 to 60 tokens."""
    tokenizer = llm.get_tokenizer()
    return [tokenizer.encode(text) for text in (STORY, STORY[:40], STORY * 2, STORY[50:])]


def bits(output: RequestOutput) -> Any:
    answer = output.outputs[0]
    assert answer.logprobs is not None
    logprobs = [[(i, p.logprob, p.rank) for i, p in entry.items()] for entry in answer.logprobs]
    return answer.token_ids, answer.text, logprobs


def answers(llm: LLM, prompts: list[Any], sampling: dict[str, Any]) -> list[Any]:
    outputs = llm.generate(prompts, SamplingParams(**sampling), use_tqdm=False)
    return [bits(output) for output in outputs]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_rows_of_the_table_give_what_their_tokens_give(
    llm: LLM, model: Model, prompts: list[list[int]], sampling: dict[str, Any]
) -> None:
    expected = answers(llm, [{"prompt_token_ids": ids} for ids in prompts], sampling)
    given: list[Any] = [{"prompt_embeds": model.rows(ids)} for ids in prompts]
    assert [answers(llm, [one], sampling)[0] for one in given] == expected
    mixed = [one for pair in zip(given, prompts, strict=True) for one in pair]
    together = answers(llm, mixed, sampling)
    assert together[0::2] == together[1::2] == expected


def test_in_pieces_preempted_and_cached_they_give_the_same_bits(
    llm: LLM, model: Model, prompts: list[list[int]]
) -> None:
    expected = answers(llm, [{"prompt_token_ids": ids} for ids in prompts], SEEDED)
    given: list[Any] = [{"prompt_embeds": model.rows(ids)} for ids in prompts]
    # Each answer takes three blocks, one of which is kept free for it.
    tiny = {"block_size": 8, "num_gpu_blocks_override": 14, "max_model_len": 112,
            "max_num_batched_tokens": 16}  # fmt: skip
    settings = SETTINGS | tiny | {"disable_log_stats": False}
    with LLM(model.path, **settings) as small:
        outputs = small.generate(given * 2, SamplingParams(**SEEDED), use_tqdm=False)
        assert [bits(output) for output in outputs] == expected * 2
        assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 0
    llm.reset_prefix_cache()
    for least in (0, 16):
        outputs = llm.generate(given, SamplingParams(**SEEDED), use_tqdm=False)
        assert [bits(output) for output in outputs] == expected
        assert max(output.num_cached_tokens or 0 for output in outputs[::2]) >= least


def test_other_embeddings_and_tokens_find_nothing_of_theirs_in_the_cache(
    llm: LLM, model: Model, prompts: list[list[int]]
) -> None:
    rows = model.rows(prompts[0])
    changed = rows.copy()
    changed[-1, 0] += 0.125
    llm.reset_prefix_cache()
    for prompt in ({"prompt_embeds": rows}, {"prompt_embeds": changed}, [0] * len(rows)):
        [output] = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
        assert output.num_cached_tokens == 0


def test_several_answers_penalties_and_tensors_are_possible(
    llm: LLM, model: Model, prompts: list[list[int]]
) -> None:
    rows = torch.from_numpy(model.rows(prompts[0]))
    params = SamplingParams(n=3, seed=1, max_tokens=8, repetition_penalty=1.3)
    [first] = llm.generate({"prompt_embeds": rows, "prompt": STORY}, params, use_tqdm=False)
    [again] = llm.generate({"prompt_embeds": rows[None]}, params, use_tqdm=False)
    assert [one.token_ids for one in first.outputs] == [one.token_ids for one in again.outputs]
    assert len({tuple(one.token_ids) for one in first.outputs}) > 1
    assert (first.prompt, first.prompt_token_ids) == (STORY, [0] * len(rows))


def test_what_needs_their_tokens_is_refused_by_name(
    llm: LLM, model: Model, prompts: list[list[int]]
) -> None:
    prompt: Any = {"prompt_embeds": model.rows(prompts[1])}
    with pytest.raises(ValidationError, match="prompt_logprobs is not possible"):
        llm.generate(prompt, SamplingParams(prompt_logprobs=1), use_tqdm=False)
    cut = {"truncate_prompt_tokens": 2}
    with pytest.raises(ValidationError, match="cannot be cut"):
        llm.generate(prompt, SamplingParams(), use_tqdm=False, tokenization_kwargs=cut)
    with pytest.raises(NotImplementedError, match="beam search over prompt_embeds"):
        llm.beam_search(prompt, BeamSearchParams(beam_width=2, max_tokens=2))


async def test_the_asynchronous_client_takes_them_whole_but_not_in_pieces(
    llm: LLM, model: Model, prompts: list[list[int]]
) -> None:
    [expected] = answers(llm, [prompts[0]], GREEDY)
    prompt: Any = {"prompt_embeds": model.rows(prompts[0])}

    async def pieces() -> Any:
        yield StreamingInput(prompt)

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model.path, **SETTINGS))
    try:
        async for output in engine.generate(prompt, SamplingParams(**GREEDY), "a"):
            last = output
        assert bits(last) == expected
        with pytest.raises(UnsupportedError, match="comes in pieces"):
            async for _ in engine.generate(pieces(), SamplingParams(**GREEDY), "b"):
                pass
        assert engine.get_num_unfinished_requests() == 0
    finally:
        engine.shutdown()


def test_a_server_answers_them_as_it_answers_tokens(
    start_server: Callable[..., Any], model: Model, prompts: list[list[int]]
) -> None:
    server = start_server(model.path, "--enable-prompt-embeds", "--max-model-len", "512",
                          "--kv-cache-memory-bytes", "64M")  # fmt: skip
    file = io.BytesIO()
    np.save(file, model.rows(prompts[0]))
    encoded = base64.b64encode(file.getvalue()).decode()
    asked = {"max_tokens": 12, "temperature": 0, "logprobs": 2}
    url = f"{server.url}/v1/completions"
    expected = httpx.post(url, json={"prompt": prompts[0], **asked}, timeout=60).json()
    got = httpx.post(url, json={"prompt": "", "prompt_embeds": encoded, **asked}, timeout=60).json()
    assert got["choices"] == expected["choices"]
    assert got["usage"] == expected["usage"]
    refused = httpx.post(
        url, json={"prompt_embeds": encoded, "prompt_logprobs": 1, **asked}, timeout=60
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt_logprobs"
