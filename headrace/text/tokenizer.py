"""Text to token ids and back, from a model folder or a GGUF file. Knows nothing about chats."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers

from headrace.errors import ModelError, ValidationError
from headrace.text.settings import TokenizerSettings, read_folder_settings
from headrace.text.token_bytes import make_token_decoder

THINKING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)
"""Pairs of tokens that models of known families put around their thinking."""
MAX_NFC_SHRINKING = 3
"""Composing characters (NFC) makes a UTF-8 text at most this many times shorter."""


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads.

    Attributes:
        bos_token, eos_token, pad_token, unk_token: texts, or None.
        bos_token_id, eos_token_id, pad_token_id: ids, or None.
        eos_token_ids: every id that the tokenizer's files name as the end of an answer.
        chat_template: the model's own template, or None.
        vocab_size: the largest id + 1.

    Raises:
        ModelError: a kind of tokenizer that is not supported; `where` names it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: TokenizerSettings,
        *,
        vocab_size: int,
        where: str,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size = vocab_size
        self.chat_template = settings.chat_template
        roles = settings.roles
        self.bos_token, self.eos_token = roles.get("bos"), roles.get("eos")
        self.pad_token, self.unk_token = roles.get("pad"), roles.get("unk")
        self.bos_token_id = self._id_of(self.bos_token)
        self.eos_token_id = self._id_of(self.eos_token)
        self.pad_token_id = self._id_of(self.pad_token)
        known_ends = [] if self.eos_token_id is None else [self.eos_token_id]
        self.eos_token_ids = settings.eos_token_ids or known_ends
        added = backend.get_added_tokens_decoder()
        named = (self._id_of(text) for text in {*roles.values(), *settings.special})
        self._special_ids = {i for i, token in added.items() if token.special}
        self._special_ids.update(i for i in named if i is not None)
        self._swallows_space = any(token.lstrip or token.rstrip for token in added.values())
        self._prefix, self._suffix = self._surroundings(settings)
        self._decoder = make_token_decoder(_state(backend.decoder), where)
        self._max_shrinking = _max_shrinking(backend)
        self._bytes: dict[int, bytes] = {}
        self.whole_texts: dict[int, str] = {}
        """Texts of tokens met so far that are no marks and consist of whole characters."""

    # -- to ids -------------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens spelled out in it become those tokens.

        The interpreter is free for other threads meanwhile.

        Raises:
            ValidationError: the text holds a lone surrogate.
        """
        check_utf8(text, "prompt")
        # the batch call lets other threads run and computes no offsets: a third of encode's time
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids

    def len_bound(self, text: str) -> int:
        """A number of tokens that the text has at least. Cheap: nothing is tokenised."""
        if not self._max_shrinking:
            return 0
        if self._swallows_space:
            text = "".join(text.split())
        if text.isascii():
            return len(text) // self._longest_token_bytes
        num_bytes = len(text.encode(errors="replace"))
        return num_bytes // (self._longest_token_bytes * self._max_shrinking)

    @cached_property
    def _longest_token_bytes(self) -> int:
        texts = self._backend.get_vocab(with_added_tokens=True)
        return max(1, max(len(self._decoder.to_bytes(text)) for text in texts))

    # -- to text ------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValidationError: an id outside the vocabulary.
        """
        hidden = self._special_ids if skip_special_tokens else ()
        for token_id in ids:
            self.check_id(token_id)
        data = [b"" if i in hidden else self.token_bytes(i) for i in ids]
        text = b"".join(data).decode(errors="replace")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, as it stands in a message."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; joined over a text they are its UTF-8.

        An id without a token has none: models may have more rows than their vocabulary.
        """
        known = self._bytes.get(token_id)
        if known is None:
            inside = 0 <= token_id < self.vocab_size
            text = self._backend.id_to_token(token_id) if inside else None
            known = b"" if text is None else self._decoder.to_bytes(text)
            self._bytes[token_id] = known
            if token_id not in self._special_ids:
                with suppress(UnicodeDecodeError):
                    self.whole_texts[token_id] = known.decode()
        return known

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a mark (BOS, end of turn, ...) and not text."""
        return token_id in self._special_ids

    @property
    def special_ids(self) -> list[int]:
        """All of them."""
        return sorted(self._special_ids)

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it; None for an id without one."""
        inside = 0 <= token_id < self.vocab_size
        text: str | None = self._backend.id_to_token(token_id) if inside else None
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        return self._id_of(token)

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, added tokens included. Made anew with each call."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @property
    def strips_leading_space(self) -> bool:
        """Whether a whole text loses one space at its beginning (see TokenDecoder)."""
        return self._decoder.strips_leading_space

    @cached_property
    def thinking_token_ids(self) -> tuple[int, int] | None:
        """The tokens that open and close a thought, or None when the vocabulary has no such."""
        for texts in THINKING_MARKS:
            start_id, end_id = (self._id_of(text) for text in texts)
            if start_id is not None and end_id is not None:
                return start_id, end_id
        return None

    def check_id(self, token_id: int) -> None:
        """Raise ValidationError unless it is an id of this vocabulary."""
        if type(token_id) is not int or not 0 <= token_id < self.vocab_size:
            raise ValidationError(
                f"{token_id!r} is not a token id: they go from 0 to {self.vocab_size - 1}",
                param="tokens",
                value=token_id,
            )

    # -- at construction ----------------------------------------------------------------------

    def _id_of(self, text: str | None) -> int | None:
        return None if text is None else self._backend.token_to_id(text)

    def _surroundings(self, settings: TokenizerSettings) -> tuple[list[int], list[int]]:
        """Ids before and after every text: by the tokenizer's own rules, then by the settings."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
        prefix, suffix = full[:at], full[at + len(bare) :]
        if settings.adds_bos is not None and self.bos_token_id is not None:
            prefix = [i for i in prefix if i != self.bos_token_id]
            prefix = [self.bos_token_id, *prefix] if settings.adds_bos else prefix
        if settings.adds_eos is not None and self.eos_token_id is not None:
            suffix = [i for i in suffix if i != self.eos_token_id]
            suffix = [*suffix, self.eos_token_id] if settings.adds_eos else suffix
        return prefix, suffix


_GGUF_READER = ("headrace.text.gguf_tokenizer", "read_gguf_vocabulary")
"""Imported on use: it needs numpy, which costs the import of a server a seventh of its time."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model folder (tokenizer.json), or the one inside a .gguf file.

    Raises:
        ModelError: no tokenizer there, or one that cannot be used; one line.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    return _from_gguf(path)


def tokenizer_file(folder: Path) -> Path:
    """The file in a model folder that holds the tokenizer.

    Raises:
        ModelError: there is none.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"{folder}: no tokenizer.json; give another folder with --tokenizer, "
            "or use token ids only with --skip-tokenizer-init"
        )
    return file


def check_utf8(text: str, param: str) -> None:
    """Raise ValidationError when a text holds a lone surrogate, which no UTF-8 can say."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(
            f"{param} holds a lone surrogate (character {error.start})", param=param
        ) from None


def _from_folder(folder: Path) -> Tokenizer:
    file = tokenizer_file(folder)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"{file}: not a usable tokenizer: {str(error)[:200]}") from error
    if not backend.get_vocab_size(with_added_tokens=True):
        raise ModelError(f"{file}: the vocabulary is empty")
    return Tokenizer(
        backend,
        read_folder_settings(folder),
        vocab_size=_last_id(backend) + 1,
        where=str(file),
    )


def _last_id(backend: tokenizers.Tokenizer) -> int:
    """The largest id. A vocabulary without gaps is not copied to find it."""
    size: int = backend.get_vocab_size(with_added_tokens=True)
    if all(backend.id_to_token(token_id) is not None for token_id in range(size)):
        return size - 1
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    return max(vocabulary.values())


def _from_gguf(path: Path) -> Tokenizer:
    module, name = _GGUF_READER
    with _collector_paused():
        vocabulary = getattr(import_module(module), name)(path)
    settings = TokenizerSettings(
        roles={role: vocabulary.tokens[i] for role, i in vocabulary.roles.items()},
        adds_bos=vocabulary.adds_bos,
        adds_eos=vocabulary.adds_eos,
        eos_token_ids=vocabulary.end_ids,
        chat_template=vocabulary.chat_template,
    )
    return Tokenizer(
        vocabulary.backend, settings, vocab_size=len(vocabulary.tokens), where=str(path)
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection while hundreds of thousands of small objects are made, none garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _max_shrinking(backend: tokenizers.Tokenizer) -> int:
    """How many times fewer bytes than the text its tokens may stand for; 0 when unknown."""
    model = backend.model
    spells_bytes = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
    if not isinstance(model, tokenizers.models.BPE) or not (spells_bytes or model.byte_fallback):
        return 0  # any length of unknown text may become one token
    normalizer = json.loads(_state(backend.normalizer) or "null")
    steps: list[dict[str, Any]] = [normalizer] if normalizer else []
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["normalizers"]
    shrinking = 1
    for step in steps:
        if step["type"] == "NFC":
            shrinking = MAX_NFC_SHRINKING
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None or len(step["content"].encode()) < len(pattern.encode()):
                return 0
        elif step["type"] != "Prepend":
            return 0
    return shrinking


def _state(component: Any) -> bytes | None:
    """A tokenizer component as JSON."""
    state: bytes | None = None if component is None else component.__getstate__()
    return state
