"""From what a caller sends (text, ids, a conversation) to the token ids the engine takes.

Checks everything about a prompt that needs no engine. Exact length limits are the input
processor's business; only text that is far too long is refused here, before it is tokenised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.checks import plain
from headrace.config.engine import ModelConfig
from headrace.errors import UnsupportedError, ValidationError, shown
from headrace.inputs import EngineInput, PromptType
from headrace.text.chat_template import ChatTemplates
from headrace.text.messages import check_json, mark_end, normalise_messages
from headrace.text.prompt_embeds import check_takes_embeds, read_embeds
from headrace.text.tokenizer import Tokenizer, check_utf8

PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt"})
RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template",
     "tokenize", "bos_token", "eos_token", "pad_token", "unk_token", "raise_exception",
     "strftime_now"}
)  # fmt: skip
END_OF_MESSAGE = "\ue0f1\ue0f2end-of-final-message\ue0f2\ue0f1"
"""Put after the message to be continued, to find its end in the rendered text."""


class Renderer:
    """Renders prompts for one model. Safe to use from several threads.

    Args:
        tokenizer: None when only token ids are to be taken.
        model_config: the model's limits and template.
    """

    def __init__(self, tokenizer: Tokenizer | None, model_config: ModelConfig) -> None:
        self.tokenizer = tokenizer
        self.model_config = model_config
        self._templates = ChatTemplates(
            model_config.chat_template_timeout, model_config.chat_template_max_chars
        )

    def render_prompt(
        self, prompt: PromptType, *, add_special_tokens: bool = True, limit_length: bool = True
    ) -> EngineInput:
        """A prompt as text or ids, in any of its forms.

        Args:
            add_special_tokens: whether text gets what the model wants around it (BOS).
            limit_length: whether to refuse text that cannot fit the context.

        Raises:
            ValidationError: empty, too long, neither text nor ids of the vocabulary.
            UnsupportedError: a kind of prompt this version does not take.
        """
        prompt = plain(prompt)
        if isinstance(prompt, str):
            return self._from_text(prompt, None, add_special_tokens, limit_length)
        if isinstance(prompt, Mapping):
            return self._from_mapping(prompt, add_special_tokens, limit_length)
        if isinstance(prompt, (list, tuple)):
            return EngineInput(self._check_ids(prompt, "prompt"))
        raise ValidationError(
            f"prompt must be a string, a list of token ids or an object, "
            f"not {type(prompt).__name__}",
            param="prompt",
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
        cache_salt: str | None = None,
        limit_length: bool = True,
    ) -> EngineInput:
        """A conversation through the chat template.

        Args:
            chat_template: used instead of the model's.
            content_format: whether templates see content as one text (`auto`, `string`) or as a
                list of parts (`openai`).
            add_generation_prompt: whether to open the assistant's turn.
            continue_final_message: leave the last message open instead; wins over the former.
            tools: definitions the template may show.
            chat_template_kwargs: further variables of the template.
            add_special_tokens: add BOS as well, unless the template wrote it.

        Raises:
            ValidationError: a message that is not allowed, no template, or its own complaint.
        """
        tokenizer = self._require_tokenizer()
        as_parts = content_format == "openai"
        conversation = normalise_messages(messages, as_parts=as_parts)
        source = chat_template or self.model_config.chat_template or tokenizer.chat_template
        if not source:
            raise ValidationError(
                "this model has no chat template: give one with --chat-template, "
                "or use completions instead of chat",
                param="chat_template",
            )
        if "developer" not in source:  # templates that do not know the role treat it as system
            for message in conversation:
                if message["role"] == "developer":
                    message["role"] = "system"
        if continue_final_message:
            mark_end(conversation[-1], END_OF_MESSAGE)
        variables = self._variables(chat_template_kwargs, tools)
        text = self._templates.render(
            source,
            {
                **variables,
                "messages": conversation,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
        )
        if continue_final_message:
            text, mark, _ = text.rpartition(END_OF_MESSAGE)
            if not mark:
                raise ValidationError(
                    "continue_final_message: the chat template does not show the last message",
                    param="continue_final_message",
                )
        if not text:
            raise ValidationError("the messages render to an empty prompt", param="messages")
        return self._from_text(text, cache_salt, add_special_tokens, limit_length, "messages")

    def _variables(
        self,
        extra: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> dict[str, Any]:
        """What the template sees beside the messages."""
        extra = {} if extra is None else extra
        if not isinstance(extra, Mapping):
            raise ValidationError("chat_template_kwargs must be an object",
                                  param="chat_template_kwargs")  # fmt: skip
        for name in extra:
            if name in RESERVED_VARIABLES:
                raise ValidationError(
                    f"chat_template_kwargs must not hold {name!r}", param="chat_template_kwargs"
                )
        check_json(extra, "chat_template_kwargs")
        if tools is not None and (
            not isinstance(tools, (list, tuple))
            or not all(isinstance(tool, Mapping) for tool in tools)
        ):
            raise ValidationError("tools must be a list of objects", param="tools")
        check_json(tools, "tools")
        tokenizer = self._require_tokenizer()
        roles = {
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "unk_token": tokenizer.unk_token,
        }
        known = {name: text for name, text in roles.items() if text is not None}
        return {"documents": None, **known, **extra, "tools": list(tools) if tools else None}

    def _from_mapping(
        self, prompt: Mapping[str, Any], add_special_tokens: bool, limit_length: bool
    ) -> EngineInput:
        for key in ("encoder_prompt", "decoder_prompt"):
            if key in prompt:
                raise UnsupportedError(
                    f"{key}: this model has a decoder only; give its prompt as prompt or "
                    "prompt_token_ids",
                    param=key,
                )
        for key in prompt:
            if key not in PROMPT_KEYS and prompt[key] is not None:
                raise UnsupportedError(f"prompts with {key!r} are not supported", param="prompt")
        salt = self._check_salt(prompt.get("cache_salt"))
        text, ids = prompt.get("prompt"), plain(prompt.get("prompt_token_ids"))
        if text is not None and not isinstance(text, str):
            raise ValidationError("prompt must be a string", param="prompt")
        check_utf8(text or "", "prompt")
        embeds = prompt.get("prompt_embeds")
        if embeds is not None:
            check_takes_embeds(self.model_config)
            if ids is not None:
                raise ValidationError(
                    "a prompt is either prompt_token_ids or prompt_embeds, not both",
                    param="prompt_embeds",
                )
            rows = read_embeds(embeds, self.model_config)
            return EngineInput([0] * rows.num_tokens, text, salt, rows)
        if ids is not None:
            if not isinstance(ids, (list, tuple)):
                raise ValidationError(
                    "prompt_token_ids must be a list of token ids", param="prompt_token_ids"
                )
            checked = self._check_ids(ids, "prompt_token_ids")
            return EngineInput(checked, prompt=text, cache_salt=salt)
        if text is None:
            raise ValidationError(
                "a prompt needs prompt or prompt_token_ids (or prompt_embeds)", param="prompt"
            )
        return self._from_text(text, salt, add_special_tokens, limit_length)

    def _from_text(
        self,
        text: str,
        cache_salt: str | None,
        add_special_tokens: bool,
        limit_length: bool,
        param: str = "prompt",
    ) -> EngineInput:
        tokenizer = self._require_tokenizer()
        salt = self._check_salt(cache_salt)
        if not text:
            raise ValidationError("prompt must not be empty", param=param)
        check_utf8(text, param)
        if limit_length:
            self._check_length(tokenizer, text, param)
        ids = tokenizer.encode(text, add_special_tokens)
        bos = tokenizer.bos_token_id
        if add_special_tokens and param == "messages" and bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]  # the template wrote it already
        if not ids:
            raise ValidationError("the prompt has no tokens", param=param)
        if max(ids) >= self.model_config.vocab_size:
            raise ValidationError(
                f"the tokenizer gives the token {max(ids)}, "
                f"the model knows {self.model_config.vocab_size}",
                param=param,
            )
        return EngineInput(ids, prompt=text, cache_salt=salt)

    def _check_length(self, tokenizer: Tokenizer, text: str, param: str) -> None:
        limit = self.model_config.max_model_len
        if len(text) > limit and (bound := tokenizer.len_bound(text)) > limit:
            raise ValidationError(
                f"the prompt has at least {bound} tokens, the context holds {limit}", param=param
            )

    def _check_ids(self, ids: Sequence[object], param: str) -> list[int]:
        """Ids as a list, when all of them are ids of the vocabulary."""
        if not ids:
            raise ValidationError("the prompt has no tokens", param=param)
        vocab_size = self.model_config.vocab_size
        checked: list[int] = []
        for given in ids:
            token_id = given if type(given) is int else plain(given)
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise ValidationError(
                    f"{param} holds {shown(given)}, "
                    f"token ids are integers from 0 to {vocab_size - 1}",
                    param=param,
                    value=given,
                )
            checked.append(token_id)
        return checked

    def _check_salt(self, salt: object) -> str | None:
        if salt is None:
            return None
        if not isinstance(salt, str) or not salt:
            raise ValidationError("cache_salt must be a non-empty string", param="cache_salt")
        check_utf8(salt, "cache_salt")
        return salt

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValidationError(
                "the engine runs without a tokenizer (skip_tokenizer_init): give prompt_token_ids",
                param="prompt",
            )
        return self.tokenizer
