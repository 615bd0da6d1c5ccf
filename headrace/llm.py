"""The offline class: prompts in, answers out, in the same order. Holds no engine logic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from types import TracebackType
from typing import Any, TypeAlias, cast

from tqdm import tqdm

from headrace.config.args import EngineArgs
from headrace.config.engine import ModelConfig
from headrace.engine.llm_engine import LLMEngine
from headrace.errors import ValidationError
from headrace.inputs import ChatMessage, EngineInput, PromptType
from headrace.outputs import RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.text.tokenizer import Tokenizer

Conversation: TypeAlias = list[ChatMessage]
Progress: TypeAlias = bool | Callable[..., Any]
"""Whether to show a progress bar, or something to call in tqdm's place."""


class LLM:
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
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs(model=model, **options))
        self.default_sampling_params = self.get_default_sampling_params()
        self._num_requests = 0
        self._lock = RLock()
        """Held while requests run: the outputs of a step must reach the call that asked."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """The same from a ready record of options."""
        options = {name: getattr(engine_args, name) for name in EngineArgs.__dataclass_fields__}
        return cls(**options)

    @property
    def model_config(self) -> ModelConfig:
        """Facts about the model."""
        return self.llm_engine.config.model

    def get_tokenizer(self) -> Tokenizer:
        """Raises UnsupportedError with skip_tokenizer_init."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation settings ask for; the neutral defaults without them."""
        return SamplingParams.from_optional(**self.model_config.generation_config)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; the results come in their order.

        Args:
            prompts: text, token ids, a dict (`prompt` or `prompt_token_ids`, with `cache_salt` if
                wanted), or a list of these. A list of ints is one prompt.
            sampling_params: one for all, or one a prompt; None is the model's defaults. Their
                output_kind becomes FINAL_ONLY.
            priority: one number a prompt, lower is earlier; needs scheduling_policy="priority".

        Raises:
            ValidationError: a prompt or a value that is not allowed; then nothing is run.
            EngineDeadError: the engine ended.
        """
        rendered = _one_or_many(prompts)
        return self._run(rendered, sampling_params, priority, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        *,
        priority: Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template.

        Raises: as `generate`; ValidationError also for a template's own complaint.
        """
        conversations = cast(
            "list[Conversation]",
            [messages] if messages and isinstance(messages[0], dict) else list(messages),
        )
        rendered = [
            self.llm_engine.renderer.render_chat(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self._run(rendered, sampling_params, priority, use_tqdm)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while blocks are in use."""
        return self.llm_engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """End the engine and its process. Idempotent; also done at the end of a `with` block."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"LLM(model={self.model_config.model!r})"

    def _run(
        self,
        prompts: Sequence[PromptType | EngineInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        use_tqdm: Progress,
    ) -> list[RequestOutput]:
        params = self._params_for(prompts, sampling_params)
        priorities = list(priority) if priority is not None else [0] * len(prompts)
        _same_length("priority", priorities, prompts)
        request_ids: list[str] = []
        outputs: dict[str, RequestOutput] = {}
        with self._lock:
            try:
                for prompt, one, rank in zip(prompts, params, priorities, strict=True):
                    # Noted before it is added: Ctrl-C may come in between.
                    request_ids.append(str(self._num_requests))
                    self._num_requests += 1
                    self.llm_engine.add_request(request_ids[-1], prompt, one, priority=rank)
                for output in self._finished(len(prompts), use_tqdm):
                    outputs[output.request_id] = output
            except BaseException:
                self.llm_engine.abort_request(request_ids)
                raise
        return [outputs[request_id] for request_id in request_ids]

    def _params_for(
        self,
        prompts: Sequence[object],
        given: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[SamplingParams]:
        if given is None:
            given = self.default_sampling_params.clone()
        params = [given] * len(prompts) if isinstance(given, SamplingParams) else list(given)
        _same_length("sampling_params", params, prompts)
        for one in params:
            one.output_kind = RequestOutputKind.FINAL_ONLY
        return params

    def _finished(self, count: int, use_tqdm: Progress) -> Iterable[RequestOutput]:
        """Step until nothing is left, yielding finished requests as they come."""
        make_bar = use_tqdm if callable(use_tqdm) else tqdm
        bar = make_bar(
            total=count, desc="Processed prompts", dynamic_ncols=True, disable=not use_tqdm
        )
        tokens_in = tokens_out = 0
        try:
            while self.llm_engine.has_unfinished_requests():
                for output in self.llm_engine.step():
                    if not output.finished:
                        continue
                    tokens_in += len(output.prompt_token_ids)
                    tokens_out += sum(len(answer.token_ids) for answer in output.outputs)
                    elapsed = bar.format_dict.get("elapsed") or 1e-9
                    bar.set_postfix_str(
                        f"est. speed input: {tokens_in / elapsed:.2f} toks/s, "
                        f"output: {tokens_out / elapsed:.2f} toks/s",
                        refresh=False,
                    )
                    bar.update(1)
                    yield output
        finally:
            bar.close()


def _one_or_many(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    if isinstance(prompts, (str, dict, bytes)) or not isinstance(prompts, Sequence):
        return [cast(PromptType, prompts)]  # one, or nothing the renderer lets pass
    if prompts and all(isinstance(item, int) for item in prompts):
        return [cast(PromptType, list(prompts))]
    return list(cast("Sequence[PromptType]", prompts))


def _same_length(name: str, values: Sequence[object], prompts: Sequence[object]) -> None:
    if len(values) != len(prompts):
        raise ValidationError(
            f"the lengths of prompts ({len(prompts)}) and {name} ({len(values)}) must be the same",
            param=name,
        )
