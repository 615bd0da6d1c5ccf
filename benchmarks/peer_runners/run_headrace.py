"""Runs jobs of peers.py on headrace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner_protocol import Limits, serve

import headrace
from headrace.llm import LLM
from headrace.sampling_params import SamplingParams

EXPECTED = Path(__file__).parents[2] / "tests" / "fixtures" / "expected.json"
"""Has the paragraph that the tests score, too."""


class HeadraceEngine:
    """The offline class, the engine in a process of its own as users have it."""

    def __init__(self, model: str, threads: int, limits: Limits, settings: dict[str, Any]) -> None:
        self._llm = LLM(
            model,
            num_threads=threads,
            max_num_seqs=limits.max_seqs,
            enable_prefix_caching=False,
            **settings,
        )
        ready = self._llm.llm_engine.ready
        self.facts: dict[str, Any] = {
            "version": headrace.__version__,
            "isa": ready.isa,
            "weight_bytes": ready.weight_bytes,
        }
        if not settings.get("skip_tokenizer_init"):
            self.facts["log_likelihood"] = self._log_likelihood()

    def generate(self, prompts: list[list[int]], output_len: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        inputs: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    def _log_likelihood(self) -> float:
        """Of the reference paragraph's tokens after the first: what a coarser format costs."""
        paragraph = json.loads(EXPECTED.read_text(encoding="utf-8"))["smollm2-135m-instruct"][
            "paragraph"
        ]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        output = self._llm.generate(paragraph["text"], params, use_tqdm=False)[0]
        assert output.prompt_logprobs is not None
        tokens = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        return sum(found[token].logprob for token, found in tokens if found is not None)


if __name__ == "__main__":
    serve(HeadraceEngine)
