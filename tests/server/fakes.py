"""An engine without a model: a scripted EngineClient over a tokenizer of bytes."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.config.args import AsyncEngineArgs
from headrace.config.engine import EngineConfig, ModelFacts
from headrace.config.resolve import resolve
from headrace.engine.control_verbs import AsyncControlVerbs
from headrace.errors import AdmissionError, EngineDeadError, EngineGenerateError, ValidationError
from headrace.inputs import ChatMessage, EngineInput, PromptType
from headrace.logprobs import Logprob, TokenLogprobMap
from headrace.messages.outputs import RequestProgress, SchedulerStats
from headrace.messages.requests import GetControlState, StopProfile, Verb
from headrace.outputs import CompletionOutput, RequestMetrics, RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams

BOS, EOS = 256, 257
VOCAB_SIZE = 258


def make_config(**options: Any) -> EngineConfig:
    """The config of a small made-up model."""
    facts = ModelFacts(
        model="tiny",
        path="tiny",
        format="safetensors",
        hf_config={
            "model_type": "llama",
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": 512,
            "eos_token_id": EOS,
        },
    )
    return resolve(AsyncEngineArgs("tiny", **options), facts)


class ByteTokenizer:
    """One token per byte of UTF-8, and two special ones."""

    vocab_size = VOCAB_SIZE
    chat_template: str | None = None

    def __init__(self) -> None:
        self.special = {"<s>": BOS, "</s>": EOS}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i < BOS).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def token_id(self, token: str) -> int | None:
        return self.special.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id >= BOS


class FakeRenderer:
    """Writes messages one per line; notes how it was called."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer
        self.calls: list[dict[str, Any]] = []
        self.generation_prompt = ""

    def render_prompt(self, prompt: PromptType, *, add_special_tokens: bool = True) -> EngineInput:
        if isinstance(prompt, str):
            return EngineInput(self._tokenizer.encode(prompt, add_special_tokens), prompt)
        assert isinstance(prompt, list)
        return EngineInput(prompt)

    def render_chat(self, messages: Sequence[ChatMessage], **options: Any) -> EngineInput:
        self.calls.append(options)
        if any(message.get("role") == "refused" for message in messages):
            raise ValidationError("messages.0.role is not known", param="messages.0.role")
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        text += self.generation_prompt
        return EngineInput(self._tokenizer.encode(text, add_special_tokens=True), text)


def say(text: str) -> Callable[[int], list[int]]:
    """A script in which every choice says the same text and then EOS."""
    return lambda index: [*text.encode(), EOS]


class FakeEngine(AsyncControlVerbs):
    """An EngineClient that follows a script.

    Attributes:
        script: index of a choice -> the tokens it would generate.
        delay: seconds before each token.
        fail_after: tokens after which a request fails with `failure`.
        gate: while cleared, no token comes.
        live: ids of requests that are neither finished nor released.
        aborted: ids of requests released before their end.
        seen: what was added, in order.
    """

    def __init__(self, script: Callable[[int], list[int]] | None = None, **options: Any) -> None:
        self.config = make_config(**options)
        self.max_model_len = self.config.model.max_model_len
        self.script = script or say("Hello")
        self.delay = 0.0
        self.fail_after: int | None = None
        self.failure: Exception = EngineGenerateError("scripted failure")
        self.gate = asyncio.Event()
        self.gate.set()
        self.live: set[str] = set()
        self.streams: dict[str, FakeStream] = {}
        self.tenants: list[str | None] = []
        self.aborted: list[str] = []
        self.seen: list[tuple[str, EngineInput, SamplingParams, int]] = []
        self.limit: int | None = None
        self.verbs: list[Verb] = []
        self.is_dead = False
        self._tokenizer = ByteTokenizer()
        self.renderer: Any = FakeRenderer(self._tokenizer)
        self._num_added = 0
        self._num_rendering = 0

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def is_running(self) -> bool:
        return not self.is_dead

    @property
    def is_stopped(self) -> bool:
        return self.is_dead

    @property
    def errored(self) -> bool:
        return self.is_dead

    @property
    def dead_error(self) -> BaseException:
        return EngineDeadError()

    @property
    def scheduler_stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=len(self.live))

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType | EngineInput,
        params: SamplingParams,
        arrival_time: float | None = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
    ) -> FakeStream:
        if self.is_dead:
            raise EngineDeadError
        self.check_admission(params.n)
        assert isinstance(prompt, EngineInput)
        if len(prompt.prompt_token_ids) >= self.max_model_len:
            raise ValidationError("the prompt is too long", param="prompt")
        self.seen.append((request_id, prompt, params, priority))
        self.tenants.append(tenant)
        self._num_added += 1
        stream = FakeStream(self, request_id, f"{self._num_added}", prompt, params)
        self.live.add(stream.key)
        self.streams[stream.key] = stream
        return stream

    async def generate(
        self,
        prompt: PromptType | EngineInput,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        stream = await self.add_request(request_id, prompt, sampling_params, priority=priority)
        try:
            async for output in stream:
                yield output
        finally:
            await stream.aclose()

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        for key in [request_id] if isinstance(request_id, str) else list(request_id):
            self.streams[key].end_early = True

    async def progress(self, core_ids: Sequence[str]) -> dict[str, RequestProgress]:
        return {
            key: RequestProgress("decode", 0, self.streams[key].num_prompt_tokens,
                                 self.streams[key].num_prompt_tokens, self.streams[key].num_tokens,
                                 0)
            for key in core_ids if key in self.live
        }  # fmt: skip

    async def call(self, verb: Verb) -> Any:
        """Notes the verb; what is asked for is said to be so."""
        self.verbs.append(verb)
        if isinstance(verb, GetControlState):
            return {"is_paused": True, "is_sleeping": True, "is_profiling": True}
        return ["steps.txt"] if isinstance(verb, StopProfile) else True

    async def do_log_stats(self) -> None:
        pass

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        num = len(self.live) + self._num_rendering + n
        if self.limit is not None and num > self.limit:
            raise AdmissionError("the queue is full", reason="max_num_queued_reqs", retry_after=2.5)

    @contextlib.contextmanager
    def admit(self, n: int = 1) -> Iterator[None]:
        self.check_admission(n)
        self._num_rendering += n
        try:
            yield
        finally:
            self._num_rendering -= n

    async def check_health(self) -> None:
        if self.is_dead:
            raise EngineDeadError

    def shutdown(self, timeout: float | None = None) -> None:
        self.is_dead = True


class FakeStream:
    """The holder of one scripted request; makes its outputs when they are asked for."""

    def __init__(
        self,
        engine: FakeEngine,
        request_id: str,
        key: str,
        prompt: EngineInput,
        params: SamplingParams,
    ) -> None:
        self.request_id = request_id
        self.key = key
        self._engine = engine
        self._prompt = prompt
        self._params = params
        self.core_ids = [key]
        self.metrics = RequestMetrics(time.time(), num_prefill_tokens=len(prompt.prompt_token_ids))
        self.end_early = False
        self.num_tokens = 0
        self.num_prompt_tokens = len(prompt.prompt_token_ids)
        self._outputs = self._generate()

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> RequestOutput:
        try:
            return await anext(self._outputs)
        except StopAsyncIteration:
            self._engine.live.discard(self.key)
            raise

    def push_to(self, take: Callable[[RequestOutput], bool]) -> None:
        pass

    async def aclose(self) -> None:
        if self.key in self._engine.live:
            self._engine.live.discard(self.key)
            self._engine.aborted.append(self.request_id)
        await self._outputs.aclose()

    async def _generate(self) -> AsyncGenerator[RequestOutput, None]:
        choices = [_Choice(self._engine, self._params, i) for i in range(self._params.n)]
        is_final_only = self._params.output_kind is RequestOutputKind.FINAL_ONLY
        num_tokens = 0
        while not all(choice.is_done for choice in choices):
            for choice in choices:
                if choice.is_done:
                    continue
                await self._engine.gate.wait()
                await asyncio.sleep(self._engine.delay)
                if num_tokens == self._engine.fail_after:
                    raise self._engine.failure
                num_tokens += 1
                self.num_tokens = self.metrics.num_generation_tokens = num_tokens
                delta = choice.step()
                if self.end_early:
                    delta.finish_reason = "abort"
                    self.metrics.finish_reasons.append("abort")
                    yield self._output([delta] if not is_final_only else [choice.whole()], True)
                    return
                if delta.finish_reason is not None:
                    self.metrics.finish_reasons.append(delta.finish_reason)
                if not is_final_only:
                    yield self._output([delta], all(one.is_done for one in choices))
        if is_final_only:
            yield self._output([choice.whole() for choice in choices], True)

    def _output(self, answers: list[CompletionOutput], finished: bool) -> RequestOutput:
        ids = self._prompt.prompt_token_ids
        prompt_logprobs: list[TokenLogprobMap | None] | None = None
        if self._params.prompt_logprobs is not None:
            known = [fake_logprobs(i, self._params.prompt_logprobs) for i in ids[1:]]
            prompt_logprobs = [None, *known]
        return RequestOutput(
            self.request_id, self._prompt.prompt, ids, answers, finished, prompt_logprobs, 3,
            self.metrics,
        )  # fmt: skip


class _Choice:
    def __init__(self, engine: FakeEngine, params: SamplingParams, index: int) -> None:
        script = engine.script(index)
        self._tokens = script[: params.max_tokens]
        self._is_cut = len(self._tokens) < len(script)
        self._params = params
        self._index = index
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[CompletionOutput] = []

    @property
    def is_done(self) -> bool:
        return len(self._parts) == len(self._tokens)

    def step(self) -> CompletionOutput:
        token_id = self._tokens[len(self._parts)]
        is_last = len(self._parts) == len(self._tokens) - 1
        data = bytes([token_id]) if token_id < BOS else b""
        num = self._params.logprobs
        part = CompletionOutput(
            index=self._index,
            text=self._decoder.decode(data, final=is_last),
            token_ids=[token_id],
            logprobs=None if num is None else [fake_logprobs(token_id, num)],
            finish_reason=("length" if self._is_cut else "stop") if is_last else None,
        )
        self._parts.append(part)
        return part

    def whole(self) -> CompletionOutput:
        return CompletionOutput(
            index=self._index,
            text="".join(part.text for part in self._parts),
            token_ids=[i for part in self._parts for i in part.token_ids],
            logprobs=None
            if self._params.logprobs is None
            else [entry for part in self._parts for entry in part.logprobs or []],
            finish_reason=self._parts[-1].finish_reason,
        )


def fake_logprobs(token_id: int, num: int) -> TokenLogprobMap:
    """The chosen token is the most likely one; the next ids follow it."""
    others = {(token_id + i) % BOS: Logprob(-1.0 - i, i + 1) for i in range(1, num)}
    return {token_id: Logprob(-0.5, 1), **others}


class ScriptedStream:
    """A RequestOutputStream of some outputs without text."""

    def __init__(self, num_outputs: int) -> None:
        self.request_id = "scripted"
        self.core_ids = ["scripted"]
        self.metrics = RequestMetrics(0.0)
        self.is_closed = False
        self._num_left = num_outputs

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self._num_left:
            raise StopAsyncIteration
        self._num_left -= 1
        return RequestOutput("scripted", None, [1], [], finished=not self._num_left)

    def push_to(self, take: Callable[[RequestOutput], bool]) -> None:
        pass

    async def aclose(self) -> None:
        self.is_closed = True


class NumberedFrames:
    """A FrameMaker: each second output gives a frame."""

    def __init__(self) -> None:
        self.num_taken = 0

    def take(self, job: int, output: RequestOutput) -> bytes:
        self.num_taken += 1
        return b"data: %d\n\n" % self.num_taken if self.num_taken % 2 else b""

    def end(self) -> bytes:
        return b"data: end\n\n"
