"""The engine for a caller that waits: add requests, step until they are done.

The seam under the offline class; the asynchronous face of the same parts is AsyncLLM.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.config.args import EngineArgs
from headrace.config.engine import EngineConfig
from headrace.engine.control_verbs import SyncControlVerbs
from headrace.engine.core_client import SyncEngineCoreClient, make_client
from headrace.engine.event_loop import running_loop
from headrace.engine.front import make_front, release, submit
from headrace.engine.input_processor import check_types
from headrace.engine.launch import EXECUTOR_FACTORY, OnStage
from headrace.engine.request_options import (
    Tokenization,
    check_options,
    take_core_request,
    with_text,
)
from headrace.engine.setup import make_engine_config
from headrace.errors import ConfigError, EngineDeadError, UnsupportedError
from headrace.inputs import EngineInput, PromptType
from headrace.logger import make_logger
from headrace.messages.outputs import SchedulerStats
from headrace.messages.requests import EngineCoreRequest, GetDebugState, Verb
from headrace.messages.startup import EngineReady
from headrace.metrics.stats import StatLogger
from headrace.outputs import RequestMetrics, RequestOutput
from headrace.sampling_params import SamplingParams
from headrace.text.tokenizer import Tokenizer

logger = make_logger(__name__)

MULTIPROCESSING_ENV = "HEADRACE_ENABLE_MULTIPROCESSING"


class _OutputList:
    """An OutputSink that keeps outputs until the end of the step."""

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []

    def begin(self, metrics: RequestMetrics) -> None:
        """Outputs carry them."""

    def put(self, output: RequestOutput) -> None:
        self._outputs.append(output)

    def fail(self, error: Exception) -> None:
        """`step` raises it."""

    def take(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs


class LLMEngine(SyncControlVerbs):
    """An engine that works while it is stepped. For one thread.

    Args:
        config: resolved settings.
        stat_loggers: where measurements go; None is a line in the log now and then.
        multiprocess: whether the core has a process of its own; None: as the environment variable
            HEADRACE_ENABLE_MULTIPROCESSING (0 or 1) and `config.front.multiprocess` say.
        on_stage: told about the start as it goes on.
        executor_factory: `module:function` of the core's executor; the seam for tests.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot be started, in one line.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        stat_loggers: Sequence[StatLogger] | None = None,
        multiprocess: bool | None = None,
        on_stage: OnStage | None = None,
        executor_factory: str = EXECUTOR_FACTORY,
    ) -> None:
        _warn_in_event_loop()
        self.config = config
        if multiprocess is None:
            multiprocess = config.front.multiprocess and is_multiprocessing_enabled()
        start = partial(
            make_client,
            config,
            asynchronous=False,
            multiprocess=multiprocess,
            on_stage=on_stage,
            executor_factory=executor_factory,
        )
        self._client: SyncEngineCoreClient
        self._client, self._front = make_front(config, start, stat_loggers, on_stage)
        self._outputs = _OutputList()
        self.renderer = self._front.renderer
        self.max_model_len = self._client.ready.max_model_len

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        usage_context: object = None,
        stat_loggers: Sequence[StatLogger] | None = None,
        enable_multiprocessing: bool | None = None,
        *,
        on_stage: OnStage | None = None,
    ) -> LLMEngine:
        """Find the model, decide all settings, start the engine.

        Args:
            usage_context: either value: nothing is ever reported to anybody.
            enable_multiprocessing: whether the core has a process of its own; None: as for the
                class.
        """
        return cls(
            make_engine_config(engine_args),
            stat_loggers=stat_loggers,
            multiprocess=enable_multiprocessing,
            on_stage=on_stage,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        if self._front.tokenizer is None:
            raise UnsupportedError("this engine has no tokenizer (skip_tokenizer_init)")
        return self._front.tokenizer

    @property
    def ready(self) -> EngineReady:
        """What the core told when it was ready to serve."""
        return self._client.ready

    @property
    def scheduler_stats(self) -> SchedulerStats:
        """The latest the core told."""
        return self._front.stats.latest

    def add_request(
        self,
        request_id: str,
        prompt: PromptType | EngineInput | EngineCoreRequest,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: object = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        session_id: str | None = None,
        prompt_text: str | None = None,
        kv_hints: object = None,
    ) -> str:
        """Check a request and queue it. Returns its id inside the engine.

        Args:
            tokenization_kwargs: see Tokenization.
            prompt_text: the text that ids are said to come from.
            session_id, kv_hints: hints without effect.

        Raises:
            TypeError: the id is no string, or the parameters are no SamplingParams.
            ValidationError, UnsupportedError, EngineDeadError: nothing has been queued.
        """
        check_types(request_id, params)
        check_options(lora_request=lora_request, trace_headers=trace_headers)
        how = Tokenization.from_kwargs(tokenization_kwargs)
        request_id, prompt = take_core_request(request_id, prompt)
        if not isinstance(prompt, EngineInput):
            prompt = how.render(self.renderer, prompt, self.max_model_len)
        prompt = with_text(prompt, prompt_text)
        asked = params.structured_outputs
        grammar = None if asked is None else self._front.grammars.check(asked)
        request = self._front.input_processor.process(
            request_id,
            prompt,
            params,
            priority=priority,
            arrival_time=arrival_time,
            grammar=grammar,
        )
        submit(self._client, self._front, request, request_id, prompt, params, self._outputs)
        return request.request_id

    def step(self) -> list[RequestOutput]:
        """Wait for the next step of the core; what it means for the requests.

        Raises:
            EngineDeadError: the core ended; no request is live any more.
        """
        _warn_in_event_loop()
        processor = self._front.output_processor
        if processor.num_unfinished:
            self._step()
        if not processor.num_unfinished:
            self._settle()
        return self._outputs.take()

    def _step(self) -> None:
        processor = self._front.output_processor
        try:
            outputs = self._client.get_outputs()
        except EngineDeadError as error:
            processor.fail_all(str(error))
            raise
        iteration = processor.start_iteration(outputs)
        to_abort = processor.process(outputs.outputs, outputs.timestamp, iteration)
        if to_abort:
            self._client.abort_requests(to_abort)
        self._front.stats.record(outputs.stats, iteration)

    def _settle(self) -> None:
        """Hear the core's last word about requests that ended here, when no step would bring it."""
        while self._front.output_processor.num_parting:
            self._step()

    def abort_request(self, request_ids: Iterable[str], internal: bool = False) -> None:
        """Forget every live request with these ids of the caller. Nothing more comes of them.

        Args:
            internal: the ids are those `add_request` returned.
        """
        processor = self._front.output_processor
        ids = list(request_ids) if internal else processor.ids_of(request_ids)
        release(self._client, self._front, ids)
        if not processor.num_unfinished and self._client.dead_error is None:
            self._settle()

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to wait for."""
        return self._front.output_processor.num_unfinished > 0

    def get_num_unfinished_requests(self) -> int:
        """Live requests; with n > 1 each of the n counts."""
        return self._front.output_processor.num_unfinished

    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a control verb; see its record."""
        return self._client.call(verb, timeout)

    def call_in_process(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
        *, on_model: bool,
    ) -> list[Any]:  # fmt: skip
        """Call a function with the worker, or its model, where the core is in this process."""
        worker = self._client.worker
        if worker is None:
            return super().call_in_process(function, args, kwargs, on_model=on_model)
        return [function(worker.model if on_model else worker, *args, **kwargs)]

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, here and in the core, for leak checks."""
        core: dict[str, int] = self.call(GetDebugState())
        front = self._front.output_processor.debug_state()
        return {
            **{f"core.{name}": size for name, size in core.items()},
            **{f"front.{name}": size for name, size in front.items()},
        }

    def do_log_stats(self) -> None:
        """Let the stat loggers speak now."""
        self._front.stats.log()

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine. Idempotent; happens by itself when nobody holds it any more."""
        self._front.output_processor.fail_all("the engine was shut down")
        self._front.grammars.shutdown()
        self._client.shutdown(timeout)

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


def is_multiprocessing_enabled() -> bool:
    """What HEADRACE_ENABLE_MULTIPROCESSING says; yes by default.

    Raises:
        ConfigError: it is neither 0 nor 1.
    """
    text = os.environ.get(MULTIPROCESSING_ENV, "1")
    if text not in ("0", "1"):
        raise ConfigError(f"{MULTIPROCESSING_ENV} must be 0 or 1, got {text!r}")
    return text == "1"


def _warn_in_event_loop() -> None:
    if running_loop() is not None:
        logger.warning_once("LLMEngine blocks the event loop it is used in; AsyncLLM does not")
