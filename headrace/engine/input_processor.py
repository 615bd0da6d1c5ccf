"""Turns a rendered prompt and its parameters into the request that goes to the core.

Checks everything that needs the model to be known; what needs no model is checked by
`SamplingParams` itself. Never renders and never sends.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence

import msgspec

from headrace.config.engine import EngineConfig
from headrace.errors import HeadraceError, ValidationError
from headrace.inputs import EngineInput
from headrace.logits_processor import load_logits_processors
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.startup import EngineReady
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.text.prompt_embeds import check_takes_embeds
from headrace.text.tokenizer import Tokenizer

MAX_BAD_WORD_SEQUENCES = 128
SUFFIX_STEP = 0x9E3779B1
"""Odd, so that adding it walks through all numbers of 32 bits."""


def check_types(request_id: object, params: object) -> None:
    """What is checked before anything else is done for a request.

    Raises:
        TypeError: the id is no string, or the parameters are no SamplingParams.
    """
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a string, got {type(request_id).__name__}")
    if not isinstance(params, SamplingParams):
        raise TypeError(f"this model generates, it needs SamplingParams, got {params!r}")


class InputProcessor:
    """Checks and completes requests for one model.

    Args:
        config: the engine's settings.
        ready: sizes as the core settled them.
        tokenizer: None when there is none: then nothing in a request may need text.
    """

    def __init__(
        self, config: EngineConfig, ready: EngineReady, tokenizer: Tokenizer | None
    ) -> None:
        self._model = config.model
        self._has_priorities = config.scheduler.policy == "priority"
        self._tokenizer = tokenizer
        self._max_model_len = ready.max_model_len
        self._num_cache_tokens = ready.num_blocks * ready.block_size
        self._validators = [
            kind.validate_params
            for kind in load_logits_processors(config.logits_processors)
            if hasattr(kind, "validate_params")
        ]
        self._suffix = secrets.randbits(32)

    def process(
        self,
        request_id: str,
        prompt: EngineInput,
        params: SamplingParams,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        grammar: str | None = None,
        tenant: str | None = None,
    ) -> EngineCoreRequest:
        """The core's request for one prompt, with n still as asked for (see parallel_sampling).

        Its id is the caller's with 8 hexadecimal digits, so callers may repeat theirs.

        Args:
            grammar: what `params.structured_outputs` came to, checked.

        Raises:
            ValidationError: a value this model does not allow; names the field.
        """
        self._check_params(params)
        self._check_priority(priority)
        self._check_prompt(prompt)
        self._check_embeds(prompt, params)
        max_tokens = self._max_tokens(len(prompt.prompt_token_ids), params)
        eos, stop_token_ids = self._stop_token_ids(params, has_grammar=grammar is not None)
        return EngineCoreRequest(
            request_id=f"{request_id}-{self._next_suffix():08x}",
            prompt_token_ids=prompt.prompt_token_ids,
            sampling_params=self._core_params(params, max_tokens),
            eos_token_id=eos,
            stop_token_ids=stop_token_ids,
            arrival_time=time.time() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=prompt.cache_salt,
            is_watched=params.output_kind is not RequestOutputKind.FINAL_ONLY or bool(params.stop),
            grammar=grammar,
            prompt_embeds=prompt.prompt_embeds,
            num_answer_tokens=prompt.num_answer_tokens,
            tenant=tenant,
        )

    def _next_suffix(self) -> int:
        """A number of 32 bits that looks random and comes again only after all others have."""
        self._suffix = (self._suffix + SUFFIX_STEP) % 2**32
        return self._suffix

    # Checks

    def _check_params(self, params: SamplingParams) -> None:
        self._check_ids("stop_token_ids", params.stop_token_ids or ())
        self._check_ids("logit_bias", params.logit_bias or (), is_key=True)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logprob_token_ids", params.logprob_token_ids or ())
        self._check_logprobs("logprobs", params.logprobs)
        self._check_logprobs("prompt_logprobs", params.prompt_logprobs)
        self._ask_logits_processors(params)
        if self._tokenizer is None:
            for name in ("stop", "bad_words"):
                if getattr(params, name):
                    raise ValidationError(
                        f"{name} needs a tokenizer, and this engine has none "
                        "(skip_tokenizer_init); stop_token_ids need none",
                        param=name,
                    )

    def _check_ids(self, name: str, token_ids: Collection[int], *, is_key: bool = False) -> None:
        """Refuse ids outside the vocabulary; keys of a map are named themselves."""
        if not token_ids:
            return
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._model.vocab_size:
                raise ValidationError(
                    f"{name} holds the token id {token_id}; the vocabulary has ids 0 to "
                    f"{self._model.vocab_size - 1}",
                    param=f"{name}.{token_id}" if is_key else name,
                    value=token_id,
                )

    def _check_logprobs(self, name: str, wanted: int | None) -> None:
        limit = self._model.max_logprobs
        if wanted is None or limit == -1:
            return
        num = self._model.vocab_size if wanted == -1 else wanted
        if num > limit:
            raise ValidationError(
                f"{name} asks for {num} log-probabilities per token, at most {limit} are allowed "
                "(--max-logprobs)",
                param=name,
                value=wanted,
            )

    def _ask_logits_processors(self, params: SamplingParams) -> None:
        for validate in self._validators:
            try:
                validate(params)
            except HeadraceError:
                raise
            except ValueError as error:
                raise ValidationError(str(error), param="extra_args") from error

    def _check_priority(self, priority: int) -> None:
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValidationError("priority must be an integer", param="priority", value=priority)
        if not -(2**63) <= priority < 2**63:
            raise ValidationError("priority does not fit 64 bits", param="priority", value=priority)
        if priority and not self._has_priorities:
            raise ValidationError(
                "priority has an effect only with --scheduling-policy priority",
                param="priority",
                value=priority,
            )

    def _check_prompt(self, prompt: EngineInput) -> None:
        ids = prompt.prompt_token_ids
        if not ids:
            raise ValidationError(
                "the prompt is empty: it needs at least one token", param="prompt"
            )
        if len(ids) >= self._max_model_len:
            raise ValidationError(
                f"the prompt has {len(ids)} tokens, and the model's context of "
                f"{self._max_model_len} must leave room for at least one more",
                param="prompt",
                value=len(ids),
            )
        if set(map(type, ids)) != {int}:
            raise ValidationError("the prompt's token ids must be integers", param="prompt")
        self._check_ids("prompt", ids)
        salt = prompt.cache_salt
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise ValidationError(
                "cache_salt must be a non-empty string", param="cache_salt", value=salt
            )

    def _check_embeds(self, prompt: EngineInput, params: SamplingParams) -> None:
        """Refuse what needs the tokens that a prompt of embeddings has not."""
        if prompt.prompt_embeds is None:
            return
        check_takes_embeds(self._model)
        if len(prompt.prompt_token_ids) != prompt.prompt_embeds.num_tokens:
            raise ValidationError(
                "prompt_embeds cannot be cut to a number of tokens: give as many rows as shall "
                "be kept",
                param="prompt_embeds",
            )
        if params.prompt_logprobs is not None:
            raise ValidationError(
                "prompt_logprobs is not possible with prompt_embeds: such a prompt has no tokens "
                "to score",
                param="prompt_logprobs",
            )

    # What is filled in

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """How many tokens may come: as asked for, as the context has room, or as the cache has."""
        room = self._max_model_len - num_prompt_tokens
        cache_room = self._num_cache_tokens - num_prompt_tokens
        wanted = min(room, cache_room) if params.max_tokens is None else params.max_tokens
        if cache_room < max(1, min(wanted, room)):
            raise ValidationError(
                f"a prompt of {num_prompt_tokens} tokens and an answer of up to "
                f"{max(1, min(wanted, room))} can never fit the KV cache, which holds "
                f"{self._num_cache_tokens}",
                param="prompt" if cache_room < 1 else "max_tokens",
                value=params.max_tokens,
            )
        return min(wanted, room)

    def _stop_token_ids(
        self, params: SamplingParams, *, has_grammar: bool
    ) -> tuple[int | None, list[int]]:
        """The model's EOS, and all other ids that end the answer.

        Where a grammar is complete EOS may come, and ends the answer even with ignore_eos.
        """
        stop_token_ids = list(params.stop_token_ids or ())
        eos_token_ids = self._model.eos_token_ids
        if has_grammar and not eos_token_ids and self._tokenizer is not None:
            eos_token_ids = self._tokenizer.eos_token_ids
        if (params.ignore_eos and not has_grammar) or not eos_token_ids:
            return None, stop_token_ids
        eos, *others = eos_token_ids
        return eos, list(dict.fromkeys(stop_token_ids + others))

    def _core_params(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        """A copy without what is the front's business: strings, and how outputs are given."""
        return msgspec.structs.replace(
            params,
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            stop=[],
            bad_words=[],
            bad_words_token_ids=self._bad_words_token_ids(params.bad_words or ()),
            thinking_token_ids=self._thinking_token_ids(params.thinking_token_budget),
            output_kind=RequestOutputKind.CUMULATIVE,
            stream_interval=None,
            structured_outputs=None,
        )

    def _thinking_token_ids(self, budget: int | None) -> tuple[int, int] | None:
        """The marks around thinking, for a request that limits it."""
        if budget is None:
            return None
        marks = None if self._tokenizer is None else self._tokenizer.thinking_token_ids
        if marks is None or max(marks) >= self._model.vocab_size:
            raise ValidationError(
                "thinking_token_budget needs a model that marks its thinking by tokens of its "
                "own; the vocabulary of this one has none",
                param="thinking_token_budget",
                value=budget,
            )
        return marks

    def _bad_words_token_ids(self, words: Sequence[str]) -> list[list[int]] | None:
        """Each word as it is written at the start of a text and after a space."""
        if not words or self._tokenizer is None:
            return None
        found: dict[tuple[int, ...], None] = {}
        distinct = list(dict.fromkeys(words))
        for word in distinct[: MAX_BAD_WORD_SEQUENCES + 1]:  # more are refused anyhow
            for text in (word, " " + word.lstrip()):
                ids = self._tokenizer.encode(text, add_special_tokens=False)
                self._check_ids("bad_words", ids)
                if ids:
                    found[tuple(ids)] = None
        if len(found) > MAX_BAD_WORD_SEQUENCES:
            raise ValidationError(
                f"bad_words come to more than {MAX_BAD_WORD_SEQUENCES} token sequences",
                param="bad_words",
            )
        return [list(ids) for ids in found]
