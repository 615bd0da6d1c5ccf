"""What becomes of a request before the core gets it: let in or refused, tokenised, checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from headrace.config.engine import FrontConfig
from headrace.engine.admission import Admission
from headrace.engine.front import EngineFront
from headrace.engine.request_options import Tokenization, with_text
from headrace.inputs import EngineInput, PromptType
from headrace.messages.requests import EngineCoreRequest
from headrace.sampling_params import SamplingParams

INLINE_CHARACTERS = 2000
"""Texts longer than this are tokenised beside the event loop, not on it."""


class Intake:
    """The way into one asynchronous engine.

    Args:
        config: the queue limits.
        max_model_len: as the core settled it.

    Attributes:
        num_rendering: requests let in whose prompts are being tokenised.
    """

    def __init__(self, config: FrontConfig, front: EngineFront, max_model_len: int) -> None:
        self.admission = Admission(config)
        self.num_rendering = 0
        self._front = front
        self._max_model_len = max_model_len
        self._tokenizing = ThreadPoolExecutor(1, "headrace-tokenize")

    @property
    def num_unfinished(self) -> int:
        """Requests queued or running, and those being tokenised; with n > 1 each counts."""
        return self._front.output_processor.num_unfinished + self.num_rendering

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of requests without a first token."""
        return self._front.output_processor.num_queued_tokens

    def check(self, n: int = 1) -> None:
        """Raise AdmissionError when n more requests would pass the queue limits."""
        self.admission.check(n, self.num_unfinished, self.num_queued_tokens)

    @contextmanager
    def admit(self, n: int = 1) -> Iterator[None]:
        """check, and n requests count as queued inside the `with` block."""
        self.check(n)
        self.num_rendering += n
        try:
            yield
        finally:
            self.num_rendering -= n

    async def take(
        self,
        request_id: str,
        prompt: PromptType | EngineInput,
        params: SamplingParams,
        how: Tokenization,
        *,
        prompt_text: str | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        tenant: str | None = None,
    ) -> tuple[EngineCoreRequest, EngineInput]:
        """Let a request in and check all of it; what the core is to get, and its prompt.

        Args:
            prompt_text: the text that ids are said to come from.

        Raises:
            ValidationError, UnsupportedError, AdmissionError: nothing has been queued.
        """
        arrival_time = time.time() if arrival_time is None else arrival_time
        with self.admit(params.n):
            if not isinstance(prompt, EngineInput):
                prompt = await self.render(prompt, how)
            grammar = None
            if params.structured_outputs is not None:
                grammar = await self._front.grammars.check_soon(params.structured_outputs)
        prompt = with_text(prompt, prompt_text)
        request = self._front.input_processor.process(
            request_id,
            prompt,
            params,
            priority=priority,
            arrival_time=arrival_time,
            grammar=grammar,
            tenant=tenant,
        )
        return request, prompt

    async def render(self, prompt: Any, how: Tokenization) -> EngineInput:
        """Tokenise; a long text, or embeddings, beside the event loop."""
        text, embeds = prompt, None
        if isinstance(prompt, Mapping):
            text, embeds = prompt.get("prompt"), prompt.get("prompt_embeds")
        render = partial(how.render, self._front.renderer, prompt, self._max_model_len)
        if embeds is None and (not isinstance(text, str) or len(text) <= INLINE_CHARACTERS):
            return render()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, render)

    def shutdown(self) -> None:
        """Tokenise nothing more."""
        self._tokenizing.shutdown(wait=False)
