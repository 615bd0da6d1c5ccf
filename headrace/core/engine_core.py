"""The engine behind the process line: requests in, steps of scheduler and executor, outputs out.

Token ids only; never text, sockets or threads. One caller at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from headrace.config.engine import EngineConfig
from headrace.core.control import Control
from headrace.core.pace import StepPace
from headrace.core.profiler import StepProfiler
from headrace.core.scheduler import Scheduler
from headrace.errors import UnsupportedError, ValidationError
from headrace.messages.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestLedger,
)
from headrace.messages.requests import EngineCoreRequest, GetDebugState, Verb, Vocabulary
from headrace.messages.startup import EngineReady
from headrace.worker.executor import Executor

FLOAT_BYTES = 4


class EngineCore:
    """One model being served.

    Args:
        config: resolved settings.
        executor: the loaded model; owned from here on, ended by `shutdown`.
        make_executor: loads the same model again, with as many KV blocks, after sleep of level 2.
        now: monotonic clock, seconds; `wall_clock` that of arrival times.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        make_executor: Callable[[], Executor] | None = None,
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.ready = ready = executor.ready
        self.max_model_len = ready.max_model_len
        self.vocab_size = config.model.vocab_size
        self._takes_embeds = config.model.enable_prompt_embeds
        self._now = now
        self._wall_clock = wall_clock
        self.scheduler = Scheduler(
            config.scheduler,
            msgspec.structs.replace(config.cache, block_size=ready.block_size),
            ready.num_blocks,
            ready.max_model_len,
            now=now,
            speculative=config.speculative,
            seed=config.model.seed,
        )
        self.control = Control(
            self.scheduler,
            executor,
            None if make_executor is None else partial(self._load_again, make_executor),
            StepProfiler(config.profiler_dir),
        )
        self._vocabulary: Vocabulary | None = None
        self._answers: list[EngineCoreOutput] = []
        """To requests that were refused or ended early; sent with the next step."""
        self._pace = StepPace()
        self.has_news = False
        """Whether somebody waits for what the last step gave."""

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take the tokens' bytes, which grammars need."""
        self._vocabulary = vocabulary
        if self.control.executor is not None:
            self.control.executor.set_vocabulary(vocabulary)

    def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar, so that adding its request takes no time. From any thread.

        While the weights are asleep nothing is done: it is compiled when its request starts.

        Raises:
            ValidationError: it cannot be compiled.
        """
        executor = self.control.executor
        if executor is not None:
            executor.prepare_grammar(grammar)

    def draw_seed(self) -> int:
        """A seed for a request that has come and cannot be added yet."""
        return self.scheduler.maker.draw_seed()

    def add_request(self, request: EngineCoreRequest, drawn_seed: int | None = None) -> None:
        """Queue a request. One that cannot run is answered with finish_reason ERROR instead."""
        try:
            self._check(request)
            if request.grammar is not None:
                self.prepare_grammar(request.grammar)
            self.scheduler.add_request(request, self._age(request), drawn_seed=drawn_seed)
        except (ValidationError, UnsupportedError) as error:
            now = self._now()
            self._answers.append(
                EngineCoreOutput(
                    request.request_id,
                    [],
                    finish_reason=FinishReason.ERROR,
                    ledger=RequestLedger(now, now, now, now),
                    error=str(error),
                    error_param=error.param,
                )
            )

    def _age(self, request: EngineCoreRequest) -> float:
        """How long ago a request that has a limit of time arrived. (Clocks may be set back.)"""
        params = request.sampling_params
        if params.deadline_ms is None and params.max_queue_ms is None:
            return 0.0
        return max(0.0, self._wall_clock() - request.arrival_time)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget these requests, free their blocks. Unknown ids are fine; the others get a last
        output with the next step."""
        self._answers += self.scheduler.roster.abort(request_ids)

    def live_request_ids(self) -> list[str]:
        """The requests that are queued or running."""
        return list(self.scheduler.roster.requests)

    def call(self, verb: Verb) -> Any:
        """Carry out a control verb; see its record for the result, which may come Later."""
        result = self.control.call(verb)
        if isinstance(verb, GetDebugState):
            return {**result, "answers": len(self._answers) + len(self.control.answers)}
        return result

    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._answers or self.control.answers) or self.scheduler.roster.has_work()

    def step(self) -> EngineCoreOutputs:
        """Compute one step. With nothing to do, its result is that of `idle_outputs`.

        An exception of the executor passes through: the engine cannot go on. Faults of single
        requests end those with finish_reason ERROR.
        """
        profiler = self.control.profiler
        return profiler.run(self._step) if profiler.is_active else self._step()

    def _step(self) -> EngineCoreOutputs:
        outputs = self._take_answers()
        outputs += self.scheduler.roster.expire()
        self.has_news = bool(outputs)
        num_step_tokens = 0
        if self.scheduler.roster.has_work() and (executor := self.control.executor) is not None:
            order = self.scheduler.schedule(self.scheduler.prefill_limit(self._pace))
            num_step_tokens = order.total_num_scheduled_tokens
            begin = self._now()
            result = executor.execute(order)
            if num_step_tokens:
                seconds = self._now() - begin
                self._pace.note(num_step_tokens, seconds, self.scheduler.num_decodes)
            outputs += self.scheduler.update(order, result)
            self.has_news |= self.scheduler.has_news
        return self._outputs(outputs, num_step_tokens)

    def idle_outputs(self) -> EngineCoreOutputs:
        """A sign of life without a step: what there is to say, fresh stats."""
        return self._outputs(self._take_answers(), 0)

    def _take_answers(self) -> list[EngineCoreOutput]:
        outputs = self._answers + self.control.answers
        self._answers, self.control.answers = [], []
        return outputs

    def shutdown(self) -> None:
        """Free the executor. Idempotent."""
        if self.control.executor is not None:
            self.control.executor.shutdown()

    def _outputs(self, outputs: list[EngineCoreOutput], num_step_tokens: int) -> EngineCoreOutputs:
        return EngineCoreOutputs(outputs, self.scheduler.stats(), self._now(), num_step_tokens)

    def _load_again(self, make_executor: Callable[[], Executor]) -> Executor:
        executor = make_executor()
        if self._vocabulary is not None:
            executor.set_vocabulary(self._vocabulary)
        return executor

    def _check(self, request: EngineCoreRequest) -> None:
        """The front has checked all this; what reaches a kernel is checked where it comes in."""
        if request.request_id in self.scheduler.roster.requests:
            raise ValidationError(f"request id {request.request_id!r} is in use")
        num_tokens = len(request.prompt_token_ids)
        if num_tokens == 0:
            raise ValidationError("the prompt is empty", param="prompt")
        if num_tokens >= self.max_model_len:
            raise ValidationError(
                f"the prompt has {num_tokens} tokens, at most {self.max_model_len - 1} leave room "
                "for an answer",
                param="prompt",
            )
        self._check_embeds(request)
        params = request.sampling_params
        if params.n != 1:
            raise ValidationError(f"n must be 1 here, got {params.n}", param="n", value=params.n)
        self._check_ids("prompt", request.prompt_token_ids)
        self._check_ids("stop_token_ids", request.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias or ())
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logprob_token_ids", params.logprob_token_ids or ())
        self._check_ids("thinking_token_ids", params.thinking_token_ids or ())
        for word in params.bad_words_token_ids or ():
            self._check_ids("bad_words", word)
        if request.eos_token_id is not None:
            self._check_ids("eos_token_id", (request.eos_token_id,))

    def _check_embeds(self, request: EngineCoreRequest) -> None:
        """Raise unless they are allowed here and fit the prompt. Their width is the worker's."""
        embeds = request.prompt_embeds
        if embeds is None:
            return
        if not self._takes_embeds:
            raise UnsupportedError("this engine takes no prompt_embeds", param="prompt_embeds")
        if (
            embeds.num_tokens != len(request.prompt_token_ids)
            or len(embeds.data) != embeds.num_tokens * embeds.width * FLOAT_BYTES
        ):
            raise ValidationError(
                f"prompt_embeds are said to be [{embeds.num_tokens}, {embeds.width}], "
                f"for {len(request.prompt_token_ids)} tokens, but have {len(embeds.data)} bytes",
                param="prompt_embeds",
            )
        if request.sampling_params.prompt_logprobs is not None:
            raise ValidationError(
                "prompt_logprobs: a prompt of embeddings has no tokens to score",
                param="prompt_logprobs",
            )

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        """Raise unless all are ids of the vocabulary. A few passes at C speed."""
        ids = list(token_ids)
        if not ids:
            return
        if set(map(type, ids)) != {int}:
            raise ValidationError(f"{name} must hold integers only", param=name)
        for token_id in (min(ids), max(ids)):
            if not 0 <= token_id < self.vocab_size:
                raise ValidationError(
                    f"{name} holds the token id {token_id}, the vocabulary has ids 0 to "
                    f"{self.vocab_size - 1}",
                    param=name,
                    value=token_id,
                )


def pinned(config: EngineConfig, ready: EngineReady) -> EngineConfig:
    """The settings with which a model that is loaded again comes out as large as it was."""
    replace = msgspec.structs.replace
    return replace(
        config,
        model=replace(config.model, max_model_len=ready.max_model_len, max_model_len_auto=False),
        cache=replace(config.cache, num_blocks_override=ready.num_blocks),
    )


def ignore_stage(stage: str, fraction: float) -> None:
    """An OnStage for when nobody waits to be told."""
