"""What is asked: the same prompts in every run, and others to fill the engine with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headrace.config.engine import ModelConfig
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.verify.settings import VerifySettings

MAX_SPREAD = 7
"""Prompts differ in length by odd numbers: their ends fall on all places of blocks and chunks."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request.

    Attributes:
        kind: `greedy`, `seeded` or `scored` (its prompt has log-probabilities).
        prompt: token ids.
    """

    kind: str
    prompt: list[int]
    params: SamplingParams


class Workload:
    """The questions of one battery. Equal for equal settings, model and seed.

    Attributes:
        subjects: those whose answers are compared.
        max_model_len: what the longest question, neighbours included, needs.
    """

    def __init__(self, settings: VerifySettings, model: ModelConfig) -> None:
        self.settings = settings
        excluded = set(model.eos_token_ids)
        self._ids = np.array([i for i in range(model.vocab_size) if i not in excluded])
        self._rng = np.random.default_rng(model.seed & (2**64 - 1))
        low = settings.input_len // 2
        spread = min(MAX_SPREAD, settings.input_len - low)
        self.subjects: list[Question] = []
        for i in range(settings.num_prompts):
            prompt = self._draw(settings.input_len - i * spread % (low + 1))
            self.subjects += self._ask(prompt, seed=i, output_len=settings.output_len)
        self.max_model_len = 2 * settings.input_len + 2 * settings.output_len

    def neighbours(self, count: int) -> list[Question]:
        """Other questions of all kinds, half as long."""
        settings = self.settings
        found: list[Question] = []
        while len(found) < count:
            length = int(self._rng.integers(1, settings.input_len // 2 + 1))
            found += self._ask(self._draw(length), seed=None, output_len=settings.output_len // 2)
        return found[:count]

    def long_neighbours(self, count: int) -> list[Question]:
        """Others that take many steps: up to twice the prompt, and twice the answer."""
        settings = self.settings
        found: list[Question] = []
        while len(found) < count:
            length = int(self._rng.integers(settings.input_len // 2, 2 * settings.input_len + 1))
            prompt = self._draw(length)
            found += self._ask(prompt, seed=None, output_len=2 * settings.output_len)[:2]
        return found[:count]

    def beginnings(self) -> list[Question]:
        """The first half of every subject's prompt, asked greedily."""
        halves = [one.prompt[: len(one.prompt) // 2] for one in self.subjects]
        return [self._ask(half, seed=None, output_len=1)[0] for half in halves]

    def _draw(self, length: int) -> list[int]:
        drawn: list[int] = self._rng.choice(self._ids, length).tolist()
        return drawn

    def _ask(self, prompt: list[int], *, seed: int | None, output_len: int) -> list[Question]:
        greedy = SamplingParams(
            temperature=0.0, logprobs=5, max_tokens=output_len, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        seeded = replace(
            greedy, temperature=1.0, top_p=0.95, repetition_penalty=1.1, seed=seed, logprobs=1
        )
        scored = replace(greedy, prompt_logprobs=1, logprobs=None, max_tokens=1)
        return [
            Question("greedy", prompt, greedy),
            Question("seeded", prompt, seeded),
            Question("scored", prompt, scored),
        ]
