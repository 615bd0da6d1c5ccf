"""The model's tokenizer as programs of this field know one: what `get_tokenizer` gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.checks import plain
from headrace.text.renderer import Renderer
from headrace.text.tokenizer import Tokenizer


class Encoding(dict[str, list[Any]]):
    """`input_ids` and `attention_mask`, as keys and as attributes."""

    def __getattr__(self, name: str) -> list[Any]:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class UserTokenizer:
    """Encodes, decodes and applies the chat template.

    Attributes:
        vocab_size: the largest id + 1.
        chat_template: the model's own, or None.
    """

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self.vocab_size = tokenizer.vocab_size
        self.bos_token, self.bos_token_id = tokenizer.bos_token, tokenizer.bos_token_id
        self.eos_token, self.eos_token_id = tokenizer.eos_token, tokenizer.eos_token_id
        self.pad_token, self.pad_token_id = tokenizer.pad_token, tokenizer.pad_token_id
        self.unk_token = unknown = tokenizer.unk_token
        self.unk_token_id = None if unknown is None else tokenizer.token_id(unknown)
        self.chat_template = renderer.model_config.chat_template or tokenizer.chat_template

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, as the vocabulary spells tokens."""
        return self._tokenizer.get_vocab()

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of marks that are no text."""
        return self._tokenizer.special_ids

    @property
    def all_special_tokens(self) -> list[str]:
        """The marks themselves."""
        return [text for i in self.all_special_ids if (text := self._token(i)) is not None]

    # -- to ids -------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> list[int]:
        """Token ids of a text.

        Args:
            truncation: keep the first max_length only.
        """
        ids = self._tokenizer.encode(text, add_special_tokens)
        return ids[:max_length] if truncation else ids

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True, **options: Any
    ) -> Encoding:
        """Token ids of one text or several, and masks of ones."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens, **options)
            return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
        rows = [self.encode(one, add_special_tokens, **options) for one in text]
        return Encoding(input_ids=rows, attention_mask=[[1] * len(row) for row in rows])

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """Tokens of a text, as the vocabulary spells them."""
        ids = self._tokenizer.encode(text, add_special_tokens)
        return [token for i in ids if (token := self._token(i)) is not None]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The id of a token, or a list of them; unknown ones are unk_token_id."""
        if isinstance(tokens, str):
            found = self._tokenizer.token_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    # -- to text ------------------------------------------------------------------------------

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        """Text of one id or several. Other options of its kind have no effect."""
        ids = plain(token_ids)
        ids = [ids] if isinstance(ids, int) else [plain(i) for i in ids]
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False) -> list[str]:
        """Texts of several sequences of ids."""
        return [self.decode(one, skip_special_tokens) for one in plain(sequences)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or a list of them, as the vocabulary spells them."""
        ids = plain(ids)
        if isinstance(ids, int):
            return self._token(ids)
        hidden = set(self.all_special_ids) if skip_special_tokens else ()
        return [self._token(plain(i)) for i in ids if plain(i) not in hidden]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text that tokens stand for."""
        ids = [self._tokenizer.token_id(token) for token in tokens]
        return self._tokenizer.decode([i for i in ids if i is not None], skip_special_tokens=False)

    def _token(self, token_id: int) -> str | None:
        return self._tokenizer.token(token_id)

    # -- chats --------------------------------------------------------------------------------

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_kwargs: Any,
    ) -> Any:
        """A conversation through the chat template: token ids, or the text with tokenize=False.

        Raises:
            ValidationError: a message that is not allowed, no template, or its own complaint.
        """
        rendered = self._renderer.render_chat(
            conversation,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=template_kwargs,
            limit_length=False,
        )
        return rendered.prompt_token_ids if tokenize else rendered.prompt
