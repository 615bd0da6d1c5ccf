"""Beam search over HTTP: a search looks like any other request, with one output at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from starlette.requests import Request

from headrace.beam_search import BeamSearch, BeamSearchSequence
from headrace.engine.client import EngineClient, RequestOutputStream
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput
from headrace.logprobs import TokenLogprobMap
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
from headrace.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from headrace.server.generation.answer import check_answer
from headrace.server.generation.prompts import tokenizer_of
from headrace.server.protocol.common import GenerationRequest
from headrace.server.state import ServerState
from headrace.server.streams.live import Add, Job, LiveRequests

_COUNTS = (
    "num_prefill_tokens", "num_cached_tokens", "num_generation_tokens", "num_preemptions",
    "num_draft_tokens", "num_accepted_tokens",
)  # fmt: skip
_SAMPLING_ONLY: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "presence_penalty": (0,),
    "frequency_penalty": (0,), "repetition_penalty": (1,), "stop": ([],), "stop_token_ids": ([],),
    "min_tokens": (0,), "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],),
    "repetition_detection": (), "thinking_token_budget": (-1,), "prompt_logprobs": (),
    "logprob_token_ids": (), "vllm_xargs": ({},), "deadline_ms": (), "max_queue_ms": (),
    "detokenize": (True,), "stream_interval": (1,),
}  # fmt: skip
"""Fields that say how tokens are drawn and when an answer ends -> values that ask for nothing."""


def check_beams(body: GenerationRequest, max_logprobs: int) -> None:
    """Refuse what a search cannot do. Does nothing for other requests.

    Args:
        max_logprobs: of the engine; a search asks for two per beam. -1 is no limit.

    Raises:
        ValidationError: names the field.
    """
    if not body.use_beam_search:
        if body.length_penalty not in (None, 1):
            raise ValidationError(
                "length_penalty needs use_beam_search=true", param="length_penalty"
            )
        return
    if body.stream:
        raise ValidationError(
            "beam search knows its answers only at the end; send stream=false", param="stream"
        )
    if 0 <= max_logprobs < 2 * (body.n or 1):
        raise ValidationError(
            f"n may be at most {max_logprobs // 2} with use_beam_search "
            f"(half of --max-logprobs), got {body.n}",
            param="n",
            value=body.n,
        )
    for name, neutral in _SAMPLING_ONLY.items():
        value: Any = getattr(body, name)
        if value is not None and value not in neutral:
            raise ValidationError(f"{name} has no meaning with use_beam_search", param=name)


async def start_requests(
    state: ServerState, request: Request, id: str, body: GenerationRequest, jobs: Sequence[Job]
) -> LiveRequests:
    """Hand a request's jobs to the engine, as searches if it asks for beams.

    Raises: what `LiveRequests.start` raises.
    """
    if not body.use_beam_search:
        return await LiveRequests.start(state, request, id, jobs)
    penalty = 1.0 if body.length_penalty is None else body.length_penalty

    async def search(add: Add, job: Job) -> RequestOutputStream:
        return BeamStream(state.engine, add, job, penalty)

    return await LiveRequests.start(state, request, id, jobs, search)


class BeamStream:
    """One search as a `RequestOutputStream`: all its answers come in one output, best first."""

    def __init__(self, engine: EngineClient, add: Add, job: Job, length_penalty: float) -> None:
        if job.prompt.prompt_embeds is not None:
            raise UnsupportedError(
                "beam search over prompt_embeds is not supported", param="prompt_embeds"
            )
        if job.params.deadline_ms is not None:
            raise UnsupportedError(
                "beam search with a time limit is not supported", param="deadline_ms"
            )
        self.request_id = job.request_id
        self.metrics = RequestMetrics(time.time())
        self._engine = engine
        self._add = add
        self._job = job
        params = job.params
        room = engine.max_model_len - len(job.prompt.prompt_token_ids)
        self._params = BeamSearchParams(
            beam_width=params.n,
            max_tokens=max(1, room if params.max_tokens is None else min(room, params.max_tokens)),
            ignore_eos=params.ignore_eos,
            temperature=params.temperature,
            length_penalty=length_penalty,
            include_stop_str_in_output=params.include_stop_str_in_output,
            structured_outputs=params.structured_outputs,
            skip_special_tokens=params.skip_special_tokens,
        )
        self._round: list[RequestOutputStream] = []
        self._is_done = False

    @property
    def core_ids(self) -> Sequence[str]:
        """Those of the round that is under way."""
        return [core_id for stream in self._round for core_id in stream.core_ids]

    def __aiter__(self) -> BeamStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_done:
            raise StopAsyncIteration
        self._is_done = True
        return await self._search()

    def push_to(self, take: Callable[[RequestOutput], bool]) -> None:
        """Nothing: the only output is the last."""

    async def aclose(self) -> None:
        """Release the round that is under way."""
        self._is_done = True
        await self._release()

    async def _search(self) -> RequestOutput:
        engine, prompt = self._engine, self._job.prompt
        tokenizer = tokenizer_of(engine)
        ends = engine.config.model.eos_token_ids
        if not ends and tokenizer is not None and self._params.structured_outputs is not None:
            ends = tokenizer.eos_token_ids  # as grammars do
        search = BeamSearch(self._params, tokenizer, ends, engine.max_model_len)
        search.step_params.output_kind = RequestOutputKind.FINAL_ONLY
        rounds = search.rounds([prompt])
        num_cached = None
        try:
            inputs = next(rounds)
            while True:
                outputs = await self._outputs(inputs, search.step_params)
                if num_cached is None and outputs is not None:
                    num_cached = outputs[0].num_cached_tokens
                inputs = rounds.send(outputs)
        except StopIteration as end:
            beams: list[BeamSearchSequence] = end.value[0].sequences
        answers = [self._answer(index, beam) for index, beam in enumerate(beams)]
        self.metrics.finish_reasons = [answer.finish_reason or "" for answer in answers]
        self.metrics.e2e_latency = time.time() - self.metrics.arrival_time
        return RequestOutput(
            self.request_id,
            prompt.prompt,
            prompt.prompt_token_ids,
            answers,
            True,
            None,
            num_cached,
            self.metrics,
        )

    async def _outputs(
        self, inputs: Sequence[EngineInput], params: SamplingParams
    ) -> list[RequestOutput] | None:
        """One token of every beam; None when somebody ended the search.

        Raises:
            EngineGenerateError: one of them failed.
        """
        name, priority = self.request_id, self._job.priority
        found = []
        try:
            for index, beam in enumerate(inputs):
                job = Job(f"{name}-{index}", beam, params.clone(), priority)
                self._round.append(await self._add(job))
            for stream in self._round:
                output = [output async for output in stream][-1]
                check_answer(output.outputs[0])
                if output.outputs[0].finish_reason == "abort":
                    return None
                found.append(output)
                self._note(stream.metrics)
        finally:
            await self._release()
        return found

    async def _release(self) -> None:
        streams, self._round = self._round, []
        for stream in streams:
            await stream.aclose()

    def _note(self, taken: RequestMetrics) -> None:
        """Add what a request of a round took to what the search took."""
        sums = self.metrics
        for name in _COUNTS:
            setattr(sums, name, getattr(sums, name) + getattr(taken, name))
        for name in ("queued_ts", "scheduled_ts", "first_token_ts", "first_token_latency"):
            if getattr(sums, name) is None:
                setattr(sums, name, getattr(taken, name))
        sums.last_token_ts = taken.last_token_ts

    def _answer(self, index: int, beam: BeamSearchSequence) -> CompletionOutput:
        num_prompt = len(beam.orig_prompt.prompt_token_ids)
        ids, wanted = beam.tokens[num_prompt:], self._job.params.logprobs
        logprobs = None
        if wanted is not None:
            pairs = zip(ids, beam.logprobs, strict=True)
            logprobs = [_likeliest(entries, token_id, wanted) for token_id, entries in pairs]
        return CompletionOutput(
            index=index,
            text=self._text(beam, num_prompt),
            token_ids=ids,
            cumulative_logprob=beam.cum_logprob,
            logprobs=logprobs,
            finish_reason=beam.finish_reason,
            stop_reason=beam.stop_reason,
        )

    def _text(self, beam: BeamSearchSequence, num_prompt: int) -> str:
        """What the answer adds to the text of the prompt."""
        tokenizer = tokenizer_of(self._engine)
        if tokenizer is None or beam.text is None:
            return ""
        skips = self._params.skip_special_tokens
        before = tokenizer.decode(beam.tokens[:num_prompt], skip_special_tokens=skips)
        return beam.text.removeprefix(before)


def _likeliest(entries: TokenLogprobMap, token_id: int, num: int) -> TokenLogprobMap:
    """As many as were asked for, and the token itself: a search looks at more."""
    ranked = sorted(entries, key=lambda one: -entries[one].logprob)
    return {one: entries[one] for one in dict.fromkeys((token_id, *islice(ranked, num)))}
