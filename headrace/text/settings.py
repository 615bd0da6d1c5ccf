"""What a model says about its tokenizer beside the vocabulary, and how folders say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ModelError
from headrace.hub.json_file import MAX_JSON_BYTES, read_json_object

ROLES = ("bos", "eos", "pad", "unk")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """Facts beside the vocabulary.

    Attributes:
        roles: bos, eos, pad, unk -> the token's text.
        adds_bos, adds_eos: what surrounds a text; None leaves it to the tokenizer's own rules.
        eos_token_ids: ids that end an answer, as far as the tokenizer's files name them.
        chat_template: the model's own, if any.
        special: texts of tokens that are special though the vocabulary does not say so.
    """

    roles: dict[str, str] = field(default_factory=dict)
    adds_bos: bool | None = None
    adds_eos: bool | None = None
    eos_token_ids: list[int] = field(default_factory=list)
    chat_template: str | None = None
    special: frozenset[str] = frozenset()


def read_folder_settings(folder: Path) -> TokenizerSettings:
    """The settings in tokenizer_config.json and the files around it; all of them are optional.

    Raises:
        ModelError: a file that cannot be read or holds something else.
    """
    config = _optional(folder / "tokenizer_config.json")
    named = {**_optional(folder / "special_tokens_map.json"), **config}
    texts = {role: _token_text(named.get(f"{role}_token")) for role in ROLES}
    extra = named.get("additional_special_tokens") or []
    if not isinstance(extra, list):
        raise ModelError(f"{folder}: additional_special_tokens should be a list")
    special = (_token_text(token) for token in extra)
    return TokenizerSettings(
        roles={role: text for role, text in texts.items() if text is not None},
        adds_bos=_flag(config, "add_bos_token"),
        adds_eos=_flag(config, "add_eos_token"),
        chat_template=_chat_template(folder, config),
        special=frozenset(text for text in special if text is not None),
    )


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """A file of its own wins; of several named templates the one called default."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            if file.stat().st_size > MAX_JSON_BYTES:
                raise ModelError(f"{file}: larger than {MAX_JSON_BYTES >> 20} MiB")
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file}: cannot be read: {error}") from None
    template = _optional(folder / "chat_template.json").get("chat_template")
    template = config.get("chat_template") if template is None else template
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder}: the chat template is not a text")
    return template


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _flag(config: dict[str, Any], key: str) -> bool | None:
    value = config.get(key)
    return value if isinstance(value, bool) else None


def _token_text(token: object) -> str | None:
    """A token is written as its text, or as an object with the text in `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
