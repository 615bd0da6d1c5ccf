"""The offline class: prompts in, answers out, in the same order. Holds no engine logic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from threading import RLock
from typing import Any, cast

from headrace.beam_search import BeamSearch, BeamSearchOutput
from headrace.config.args import EngineArgs
from headrace.config.engine import ModelConfig
from headrace.engine.control_verbs import SyncControlVerbs
from headrace.engine.llm_engine import LLMEngine
from headrace.engine.request_options import Tokenization, check_options
from headrace.engine.setup import make_engine_config
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput, PromptType
from headrace.logger import make_logger
from headrace.messages.requests import Verb
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.records import Metric
from headrace.metrics.stats import ReadableStatLogger, StatLogger
from headrace.offline import (
    Conversation,
    Progress,
    as_prompts,
    one_for_each,
    progress_bar,
    render_chats,
    rendering_bar,
)
from headrace.outputs import RequestOutput
from headrace.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from headrace.text.user_tokenizer import UserTokenizer

logger = make_logger(__name__)

_METRICS = ("headrace.metrics.prometheus", "PrometheusStatLogger")
"""Imported on use: few take measurements offline, and its library is slow to import."""


class LLM(SyncControlVerbs):
    """A language model for offline batches.

    ```python
    from headrace import LLM, SamplingParams

    llm = LLM()                        # the packaged model; or a folder, a .gguf file, a hub id
    params = SamplingParams(temperature=0, max_tokens=32)
    for output in llm.generate(["The capital of France is", "1, 2, 3,"], params):
        print(output.prompt, "->", output.outputs[0].text)
    ```

    Several threads may use it: each call of `generate` or `chat` waits for the one before.

    Args:
        model: folder, .gguf file or hub id; None is the packaged model.
        options: any field of `EngineArgs`.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot work, in one line.
        TypeError: an option that does not exist.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        options.setdefault("disable_log_stats", True)
        config = make_engine_config(EngineArgs(model=model, **options))
        self._metrics: ReadableStatLogger | None = None
        if config.front.log_stats:
            module, name = _METRICS
            self._metrics = getattr(import_module(module), name)(config)
        loggers: list[StatLogger] = []
        if self._metrics is not None:
            loggers = [LoggingStatLogger(), self._metrics]
        self.llm_engine = LLMEngine(config, stat_loggers=loggers)
        self.default_sampling_params = self.get_default_sampling_params()
        self._num_requests = 0
        self._lock = RLock()
        """Held while requests run: the outputs of a step must reach the call that asked."""
        self._enqueued: dict[str, RequestOutput | None] = {}
        """Requests that wait for `wait_for_completion`, with their outputs once they are there."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """The same from a ready record of options."""
        options = {name: getattr(engine_args, name) for name in EngineArgs.__dataclass_fields__}
        return cls(**options)

    @property
    def model_config(self) -> ModelConfig:
        """Facts about the model."""
        return self.llm_engine.config.model

    def get_tokenizer(self) -> UserTokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        return UserTokenizer(self.llm_engine.tokenizer, self.llm_engine.renderer)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation settings ask for; the neutral defaults without them."""
        return SamplingParams.from_optional(**self.model_config.generation_config)

    # Requests

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; the results come in their order.

        Args:
            prompts: text, token ids, a dict (`prompt`, `prompt_token_ids` or `prompt_embeds`, with
                `cache_salt` if wanted), or a list of these. A list of ints is one prompt.
            sampling_params: one for all, or one a prompt; None is the model's defaults. Their
                output_kind becomes FINAL_ONLY.
            use_tqdm: whether to show progress, or what to show it with in tqdm's place.
            priority: one number a prompt, lower is earlier; needs scheduling_policy="priority".
            tokenization_kwargs: see Tokenization.
            lora_request, mm_processor_kwargs: not offered by this version; refused when given.

        Raises:
            ValidationError, UnsupportedError: a prompt or a value that is not allowed; then
                nothing is run.
            EngineDeadError: the engine ended.
        """
        check_options(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        with self._lock:
            ids = self._add_prompts(
                as_prompts(prompts), sampling_params, priority, tokenization_kwargs, use_tqdm
            )
            return self._run(ids, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template.

        Args:
            chat_template_content_format: whether templates see content as one text (auto,
                string) or as a list of parts (openai).

        Raises: as `generate`; ValidationError also for a template's own complaint.
        """
        check_options(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        with self._lock:
            rendered = render_chats(
                self.llm_engine.renderer, self.llm_engine.max_model_len, messages, chat_template,
                chat_template_content_format, add_generation_prompt, continue_final_message, tools,
                chat_template_kwargs, tokenization_kwargs, use_tqdm,
            )  # fmt: skip
            return self._run(self._add(rendered, sampling_params, priority), use_tqdm)

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
        use_tqdm: Progress = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Queue prompts without running them; `wait_for_completion` does. Their ids inside.

        Raises: as `generate`.
        """
        check_options(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        with self._lock:
            ids = self._add_prompts(
                as_prompts(prompts), sampling_params, priority, tokenization_kwargs, use_tqdm
            )
            self._enqueued.update(dict.fromkeys(ids))
            return list(ids.values())

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Queue conversations without running them. Their ids inside.

        Raises: as `chat`.
        """
        check_options(lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        with self._lock:
            rendered = render_chats(
                self.llm_engine.renderer, self.llm_engine.max_model_len, messages, chat_template,
                chat_template_content_format, add_generation_prompt, continue_final_message, tools,
                chat_template_kwargs, tokenization_kwargs, use_tqdm,
            )  # fmt: skip
            ids = self._add(rendered, sampling_params, priority)
            self._enqueued.update(dict.fromkeys(ids))
            return list(ids.values())

    def wait_for_completion(
        self, output_type: type | None = None, *, use_tqdm: Progress = True
    ) -> list[RequestOutput]:
        """Run all that was enqueued; the outputs come in the order it was.

        Args:
            output_type: what the outputs must be, if given.

        Raises:
            EngineDeadError: the engine ended. TypeError: an output of another type.
        """
        with self._lock:
            waiting = [name for name, output in self._enqueued.items() if output is None]
            try:
                for name, output in zip(waiting, self._outputs_of(waiting, use_tqdm), strict=True):
                    self._enqueued[name] = output
            except BaseException:
                self.llm_engine.abort_request(waiting)
                raise
            finally:
                enqueued, self._enqueued = self._enqueued, {}
            outputs = [output for output in enqueued.values() if output is not None]
        if output_type is not None and not all(isinstance(one, output_type) for one in outputs):
            raise TypeError(
                f"the outputs are of the type RequestOutput, not {output_type.__name__}"
            )
        return outputs

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: object = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers to each prompt, best first.

        Args:
            concurrency_limit: prompts searched for at once; None is all. With it, no bar is shown.

        Raises: as `generate`; NotImplementedError for prompts of embeddings.
        """
        check_options(lora_request=lora_request)
        if concurrency_limit is not None and use_tqdm:
            logger.warning_once("beam_search shows no progress with a concurrency_limit")
            use_tqdm = False
        renderer = self.llm_engine.renderer
        rendered = [renderer.render_prompt(prompt) for prompt in as_prompts(prompts)]
        if any(one.prompt_embeds is not None for one in rendered):
            raise UnsupportedError(
                "beam search over prompt_embeds is not supported", param="prompt_embeds"
            )
        eos_token_ids = self.model_config.eos_token_ids
        if params.structured_outputs is not None and renderer.tokenizer is not None:
            eos_token_ids = eos_token_ids or renderer.tokenizer.eos_token_ids  # as grammars do
        search = BeamSearch(
            params,
            renderer.tokenizer,
            eos_token_ids,
            self.llm_engine.max_model_len,
        )
        step = concurrency_limit or len(rendered) or 1
        outputs: list[BeamSearchOutput] = []
        with self._lock:
            for start in range(0, len(rendered), step):
                outputs += search.run(
                    rendered[start : start + step],
                    lambda inputs, step: self._run(self._add(inputs, step, None), False),
                )
        return outputs

    # What this version has none of

    def encode(self, prompts: Any, pooling_params: Any = None, **options: Any) -> list[Any]:
        """Raises UnsupportedError: models generate text here."""
        raise UnsupportedError("this model generates text; it has no pooling")

    embed = classify = encode

    def score(self, data_1: Any, data_2: Any, /, **options: Any) -> list[Any]:
        """Raises UnsupportedError: models generate text here."""
        raise UnsupportedError("this model generates text; it has no pooling")

    # State and control

    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a control verb; see its record."""
        with self._lock:
            return self.llm_engine.call(verb, timeout)

    def call_in_process(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
        *, on_model: bool,
    ) -> list[Any]:  # fmt: skip
        """Call a function with the worker, or its model, where the core is in this process."""
        with self._lock:
            return self.llm_engine.call_in_process(function, args, kwargs, on_model=on_model)

    def get_metrics(self) -> list[Metric]:
        """The engine's metrics now; needs disable_log_stats=False.

        Raises:
            AssertionError: no measurements are taken.
        """
        if self._metrics is None:
            raise AssertionError("Stat logging disabled: make the LLM with disable_log_stats=False")
        with self._lock:
            return self._metrics.read()

    def shutdown(self) -> None:
        """End the engine and its process. Idempotent; also done at the end of a `with` block."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"LLM(model={self.model_config.model!r})"

    # How requests run

    def _add_prompts(
        self,
        prompts: list[PromptType],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        use_tqdm: Progress,
    ) -> dict[str, str]:
        how = Tokenization.from_kwargs(tokenization_kwargs)
        engine = self.llm_engine
        rendered = [
            how.render(engine.renderer, prompt, engine.max_model_len)
            for prompt in rendering_bar(prompts, use_tqdm, "prompts")
        ]
        return self._add(rendered, params, priority)

    def _add(
        self,
        prompts: Sequence[EngineInput],
        given: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> dict[str, str]:
        """Queue requests, all or none; their ids -> their ids inside the engine."""
        if given is None:
            given = self.default_sampling_params.clone()
        params = one_for_each("sampling_params", cast(Any, given), prompts)
        priorities = one_for_each("priority", 0 if priority is None else list(priority), prompts)
        for one in params:
            one.output_kind = RequestOutputKind.FINAL_ONLY
        ids: dict[str, str] = {}
        try:
            for prompt, one, rank in zip(prompts, params, priorities, strict=True):
                name = str(self._num_requests)
                self._num_requests += 1
                ids[name] = ""  # noted before it is added: Ctrl-C may come in between
                ids[name] = self.llm_engine.add_request(name, prompt, one, priority=rank)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return ids

    def _run(self, ids: Mapping[str, str], use_tqdm: Progress) -> list[RequestOutput]:
        with self._lock:
            try:
                return list(self._outputs_of(list(ids), use_tqdm))
            except BaseException:
                self.llm_engine.abort_request(ids)
                raise

    def _outputs_of(self, names: Sequence[str], use_tqdm: Progress) -> Iterator[RequestOutput]:
        """Step until these requests have finished; their outputs in order. What comes of others
        meanwhile is kept for `wait_for_completion`."""
        found: dict[str, RequestOutput] = {}
        wanted = set(names)
        if names and self.is_sleeping():
            raise ValidationError("the engine sleeps, and nothing would run: wake_up() comes first")
        with progress_bar(len(names), use_tqdm) as tell:
            while len(found) < len(names) and self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    if not output.finished:
                        continue
                    if output.request_id in wanted:
                        found[output.request_id] = output
                        tell(output)
                    elif output.request_id in self._enqueued:
                        self._enqueued[output.request_id] = output
        return iter([found[name] for name in names])
