"""The engine as an asynchronous service: requests in, streams of outputs out.

Holds the parts and says in which order they work; the work is in them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any

import msgspec

from headrace.config.args import EngineArgs
from headrace.config.engine import EngineConfig, ModelConfig
from headrace.engine.control_verbs import AsyncControlVerbs
from headrace.engine.core_client import AsyncEngineCoreClient, make_client
from headrace.engine.event_loop import running_loop
from headrace.engine.front import EngineFront, make_front, release, submit
from headrace.engine.input_processor import check_types
from headrace.engine.intake import Intake
from headrace.engine.launch import EXECUTOR_FACTORY, OnStage
from headrace.engine.output_collector import RequestOutputCollector
from headrace.engine.output_task import OutputTask
from headrace.engine.request_options import Tokenization, check_options, take_core_request
from headrace.engine.setup import make_engine_config
from headrace.engine.streaming_input import stream_pieces
from headrace.errors import EngineDeadError, EngineGenerateError, HeadraceError, UnsupportedError
from headrace.inputs import EngineInput, PromptType, StreamingInput
from headrace.messages.outputs import RequestProgress, SchedulerStats
from headrace.messages.requests import EngineCoreRequest, GetDebugState, GetProgress, Verb
from headrace.metrics.stats import StatLogger
from headrace.outputs import RequestOutput
from headrace.sampling_params import SamplingParams
from headrace.text.tokenizer import Tokenizer

DRAIN_POLL_SECONDS = 0.02
IDLE_SILENCE_SECONDS = 15.0
"""A core with nothing to do speaks every second; after this long without a word it is stuck."""


class AsyncLLM(AsyncControlVerbs):
    """An engine with its core in a process of its own. See EngineClient.

    ```python
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs())
    params = SamplingParams(output_kind=RequestOutputKind.DELTA)
    async for output in engine.generate("Hello", params, "request-1"):
        print(output.outputs[0].text, end="")
    engine.shutdown()
    ```

    Can be made without a running event loop. The core ends with `shutdown`, at the end of a `with`
    block, when nobody holds the engine any more, and with this process.

    Args:
        config: resolved settings.
        start_engine_loop: whether to read the core's outputs from now on, if a loop is running;
            else that starts with the first request.
        stat_loggers: where measurements go; None is a line in the log now and then.
        on_stage: told about the start as it goes on, in this thread.
        executor_factory: `module:function` of the core's executor; the seam for tests.

    Raises:
        ConfigError, ModelError, EngineStartError, UnsupportedError: it cannot be started, in one
            line.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        start_engine_loop: bool = True,
        stat_loggers: Sequence[StatLogger] | None = None,
        on_stage: OnStage | None = None,
        executor_factory: str = EXECUTOR_FACTORY,
    ) -> None:
        self.config = config

        def start() -> AsyncEngineCoreClient:
            return make_client(
                config,
                asynchronous=True,
                multiprocess=config.front.multiprocess,
                on_stage=on_stage,
                executor_factory=executor_factory,
            )

        self._client: AsyncEngineCoreClient
        self._client, self._front = make_front(config, start, stat_loggers, on_stage)
        self.renderer = self._front.renderer
        self.max_model_len = self._client.ready.max_model_len
        self._intake = Intake(config.front, self._front, self.max_model_len)
        self._outputs = OutputTask(
            self._client, self._front, self._intake.admission, config.front.output_chunk_size
        )
        self._finalizer = weakref.finalize(
            self, _close, self._outputs, self._client, self._intake, self._front, None
        )
        if start_engine_loop and running_loop() is not None:
            self._outputs.ensure_running()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: Sequence[StatLogger] | None = None,
        on_stage: OnStage | None = None,
    ) -> AsyncLLM:
        """Find the model, decide all settings, start the engine.

        Args:
            usage_context: either value: nothing is ever reported to anybody.
        """
        return cls(
            make_engine_config(engine_args),
            start_engine_loop=start_engine_loop,
            stat_loggers=stat_loggers,
            on_stage=on_stage,
        )

    # Requests

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType | EngineInput | EngineCoreRequest,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        prompt_text: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: Mapping[str, Any] | None = None,
        kv_hints: object = None,
        tenant: str | None = None,
    ) -> RequestOutputCollector:
        """Check everything that can be known now, then queue the request.

        Args:
            tokenization_kwargs: see Tokenization.
            prompt_text: the text that ids are said to come from.
            tenant: whose it is: the waiting requests of several tenants are started in fair turns.
            session_id, reasoning_ended, reasoning_parser_kwargs, kv_hints: hints without effect.

        Raises:
            TypeError: the id is no string, or the parameters are no SamplingParams.
            ValidationError, UnsupportedError, AdmissionError, EngineDeadError: before anything
                has been queued.
        """
        check_types(request_id, params)
        self._raise_if_dead()
        check_options(
            lora_request=lora_request,
            trace_headers=trace_headers,
            data_parallel_rank=data_parallel_rank,
        )
        how = Tokenization.from_kwargs(tokenization_kwargs)
        request_id, prompt = take_core_request(request_id, prompt)
        self._outputs.ensure_running()
        request, rendered = await self._intake.take(
            request_id,
            prompt,
            params,
            how,
            prompt_text=prompt_text,
            priority=priority,
            arrival_time=arrival_time,
            tenant=tenant,
        )
        # From here on nothing waits: a cancelled caller has either queued nothing or holds all.
        ids: list[str] = []
        collector = RequestOutputCollector(
            request_id, params.output_kind, partial(release, self._client, self._front, ids), ids
        )
        ids += submit(self._client, self._front, request, request_id, rendered, params, collector)
        return collector

    async def generate(
        self,
        prompt: PromptType | EngineInput | EngineCoreRequest | AsyncGenerator[StreamingInput, None],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: object = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """add_request and iterate. Leaving early (cancelled, closed, failed) aborts the request.

        Args:
            prompt: also an asynchronous generator of StreamingInput, for a prompt in pieces.

        Raises:
            EngineDeadError: the core ended.
            EngineGenerateError: this request failed.
            And what `add_request` raises, and what the caller's own generator raises.
        """
        add = partial(
            self.add_request,
            request_id,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
            tenant=tenant,
        )
        if isinstance(prompt, AsyncGenerator):
            if reasoning_ended is not None or reasoning_parser_kwargs is not None:
                raise UnsupportedError("a prompt in pieces cannot be parsed for reasoning")
            how = Tokenization.from_kwargs(tokenization_kwargs)
            render = partial(self._intake.render, how=how)
            async with aclosing(stream_pieces(prompt, sampling_params, render, add)) as outputs:
                async for output in outputs:
                    yield output
            return
        stream = await add(prompt, sampling_params, prompt_text=prompt_text)
        try:
            async for output in stream:
                yield output
        except HeadraceError:
            raise
        except Exception as error:
            raise EngineGenerateError(f"request {request_id} failed: {error!r}") from error
        finally:
            await stream.aclose()

    def encode(
        self, prompt: PromptType, pooling_params: object, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Raises UnsupportedError: models generate text here."""
        raise UnsupportedError("this model generates text; it has no pooling")

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End every live request with this id of the caller; its reader gets `abort`.

        Args:
            internal: they are ids in the core.
        """
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        ended = self._front.output_processor.abort(ids, internal=internal)
        if ended:
            self._client.abort_requests(ended)

    # State and control

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        if self._front.tokenizer is None:
            raise UnsupportedError("this engine has no tokenizer (skip_tokenizer_init)")
        return self._front.tokenizer

    @property
    def is_running(self) -> bool:
        """Whether requests can be served."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """The contrary of is_running."""
        return self.errored

    @property
    def errored(self) -> bool:
        """Whether the core has ended, or outputs cannot be processed any more."""
        return self._outputs.error is not None or self._client.dead_error is not None

    @property
    def dead_error(self) -> BaseException:
        """Why requests cannot be served."""
        return self._client.dead_error or self._outputs.error or EngineDeadError()

    @property
    def scheduler_stats(self) -> SchedulerStats:
        """The latest the core told."""
        return self._front.stats.latest

    @property
    def num_unfinished_requests(self) -> int:
        """Requests queued or running, and those being tokenised; with n > 1 each counts."""
        return self._intake.num_unfinished

    @property
    def model_config(self) -> ModelConfig:
        """Facts about the model."""
        return self.config.model

    async def get_tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        return self.tokenizer

    def get_num_unfinished_requests(self) -> int:
        """Requests queued or running, and those being tokenised; with n > 1 each counts."""
        return self.num_unfinished_requests

    def get_num_queued_tokens(self) -> int:
        """Prompt tokens of requests without a first token."""
        return self._intake.num_queued_tokens

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raise AdmissionError when n more requests would pass the queue limits."""
        self._intake.check(n)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Wait until no request is live; new ones are let in meanwhile.

        Raises:
            TimeoutError: some still are after drain_timeout seconds. EngineDeadError.
        """
        async with asyncio.timeout(drain_timeout):
            while self.num_unfinished_requests:
                self._raise_if_dead()
                await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def do_log_stats(self) -> None:
        """Let the stat loggers speak now."""
        self._front.stats.log()

    async def call(self, verb: Verb) -> Any:
        """Carry out a control verb; see its record."""
        self._outputs.ensure_running()
        return await self._client.call(verb)

    def admit(self, n: int = 1) -> AbstractContextManager[None]:
        """check_admission, and n requests count as queued inside the `with` block."""
        return self._intake.admit(n)

    async def progress(self, core_ids: Sequence[str]) -> dict[str, RequestProgress]:
        """How far requests are, by their ids in the core; those that have ended are left out."""
        found = await self.call(GetProgress(list(core_ids)))
        return msgspec.convert(found, dict[str, RequestProgress])

    async def check_health(self) -> None:
        """Raise EngineDeadError when the core has ended or gives no sign of life.

        Stuck is not dead: with the core's next word this passes again.
        """
        self._raise_if_dead()
        self._outputs.ensure_running()
        is_idle = self._client.is_idle and not self._front.output_processor.num_unfinished
        limit = IDLE_SILENCE_SECONDS if is_idle else self.config.front.heartbeat_timeout
        silence = self._client.silence()
        if limit and silence > limit:
            raise EngineDeadError(f"the engine core has given no sign of life for {silence:.0f} s")

    async def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, here and in the core, for leak checks."""
        core: dict[str, int] = await self.call(GetDebugState())
        front = self._front.output_processor.debug_state()
        return {
            **{f"core.{name}": size for name, size in core.items()},
            **{f"front.{name}": size for name, size in front.items()},
            "front.rendering": self._intake.num_rendering,
        }

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine; live requests get EngineDeadError. Idempotent.

        Args:
            timeout: seconds the core may take to end before it is ended by force; default 5.
        """
        if self._finalizer.detach() is not None:
            _close(self._outputs, self._client, self._intake, self._front, timeout)

    def _raise_if_dead(self) -> None:
        if self.errored:
            raise EngineDeadError(str(self.dead_error))

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # The finalizer does the same; this is for those who call it, as they do elsewhere.
        if hasattr(self, "_finalizer"):
            self.shutdown()


def _close(
    outputs: OutputTask,
    client: AsyncEngineCoreClient,
    intake: Intake,
    front: EngineFront,
    timeout: float | None,
) -> None:
    outputs.stop("the engine was shut down")
    intake.shutdown()
    front.grammars.shutdown()
    client.shutdown(timeout)
