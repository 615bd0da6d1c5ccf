"""What the asynchronous and the synchronous engine hold in common, and how it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headrace.config.engine import EngineConfig, ModelConfig
from headrace.engine.core_client import EngineCoreClient
from headrace.engine.grammar_checker import GrammarChecker
from headrace.engine.input_processor import InputProcessor
from headrace.engine.launch import OnStage
from headrace.engine.output_processor import OutputProcessor
from headrace.engine.request_state import OutputSink
from headrace.inputs import EngineInput
from headrace.logger import make_logger
from headrace.messages.outputs import SchedulerStats
from headrace.messages.requests import EngineCoreRequest
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.stats import IterationStats, StatLogger
from headrace.sampling_params import SamplingParams
from headrace.text.renderer import Renderer
from headrace.text.tokenizer import Tokenizer, load_tokenizer

logger = make_logger(__name__)

C = TypeVar("C", bound=EngineCoreClient)


class StatsFeed:
    """Brings measurements to the stat loggers, and keeps the latest state of the scheduler."""

    def __init__(self, loggers: Sequence[StatLogger], interval: float) -> None:
        self.latest = SchedulerStats()
        self._loggers = list(loggers)
        self._interval = interval
        self._logged_at = time.monotonic()

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take in one step, or one sign of life; every `interval` seconds let the loggers speak."""
        self.latest = scheduler
        self._ask_all(lambda one: one.record(scheduler, iteration))
        if time.monotonic() - self._logged_at >= self._interval:
            self.log()

    def log(self) -> None:
        """Let the loggers speak now."""
        self._logged_at = time.monotonic()
        self._ask_all(lambda one: one.log())

    def _ask_all(self, ask: Callable[[StatLogger], None]) -> None:
        """Of a logger that fails nothing more is asked: measuring never ends serving."""
        for one in list(self._loggers):
            try:
                ask(one)
            except Exception:
                logger.exception("the stat logger %s failed and is left out", type(one).__name__)
                self._loggers.remove(one)


@dataclass(slots=True)
class EngineFront:
    """The parts of the front half that do not care how the caller waits."""

    tokenizer: Tokenizer | None
    renderer: Renderer
    input_processor: InputProcessor
    output_processor: OutputProcessor
    stats: StatsFeed
    grammars: GrammarChecker
    has_sent_vocabulary: bool = False


def make_front(
    config: EngineConfig,
    make_client: Callable[[], C],
    stat_loggers: Sequence[StatLogger] | None,
    on_stage: OnStage | None = None,
) -> tuple[C, EngineFront]:
    """Start the core, and meanwhile load the tokenizer. A failure of either leaves nothing behind.

    Args:
        on_stage: told when the tokenizer is waited for.

    Raises: what `make_client` and `load_tokenizer` raise.
    """
    with ThreadPoolExecutor(1, "load-tokenizer") as pool:
        loading = pool.submit(_load_text, config.model)
        client = make_client()
        try:
            if on_stage is not None and not loading.done():
                on_stage("loading the tokenizer", 0.95)
            tokenizer, renderer = loading.result()
            if stat_loggers is None:
                stat_loggers = [LoggingStatLogger()] if config.front.log_stats else []
            front = EngineFront(
                tokenizer,
                renderer,
                InputProcessor(config, client.ready, tokenizer),
                OutputProcessor(tokenizer, config.front.stream_interval),
                StatsFeed(stat_loggers, config.front.stats_interval),
                GrammarChecker(
                    config.structured_outputs,
                    tokenizer,
                    config.model.eos_token_ids,
                    config.model.vocab_size,
                ),
            )
            if config.structured_outputs.preload:
                send_vocabulary(client, front, is_used_now=True)
        except BaseException:
            client.shutdown()
            raise
    return client, front


def _load_text(config: ModelConfig) -> tuple[Tokenizer | None, Renderer]:
    tokenizer = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
    return tokenizer, Renderer(tokenizer, config)


def send_vocabulary(
    client: EngineCoreClient, front: EngineFront, *, is_used_now: bool = False
) -> None:
    """Give the core what grammars need.

    Raises:
        ValidationError: there is no tokenizer, or no token that ends an answer.
        EngineDeadError: the core is not running any more.
    """
    vocabulary = front.grammars.vocabulary()
    client.set_vocabulary(msgspec.structs.replace(vocabulary, is_used_now=is_used_now))
    front.has_sent_vocabulary = True


def submit(
    client: EngineCoreClient,
    front: EngineFront,
    request: EngineCoreRequest,
    external_id: str,
    prompt: EngineInput,
    params: SamplingParams,
    sink: OutputSink,
) -> list[str]:
    """Take a checked request in and send it. When that fails, nothing of it stays anywhere.

    Returns:
        Its ids in the core, n of them.

    Raises: what `EngineCoreClient.add_request` raises.
    """
    if request.grammar is not None and not front.has_sent_vocabulary:
        send_vocabulary(client, front)
    children = front.output_processor.add_request(request, external_id, prompt, params, sink)
    ids = [child.request_id for child in children]
    num_sent = 0
    try:
        for child in children:
            client.add_request(child)
            num_sent += 1
    except BaseException:
        release(client, front, ids)
        front.output_processor.discard(ids[num_sent:])
        raise
    return ids


def release(client: EngineCoreClient, front: EngineFront, request_ids: list[str]) -> None:
    """Forget requests here and in the core. Unknown and finished ids are fine."""
    live = front.output_processor.release(request_ids)
    if live:
        client.abort_requests(live)
