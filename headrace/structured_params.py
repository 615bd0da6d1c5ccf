"""What a caller may ask of the text itself, and every rule about it that needs no model."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import msgspec

from headrace.checks import check_utf8
from headrace.errors import ValidationError, shown


class ThoughtMarks(msgspec.Struct, frozen=True, array_like=True):
    """The texts around what a model thinks before it answers."""

    start: str
    end: str
    is_open: bool = False
    """Whether the prompt has opened the thought; else there may be none."""


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint on the text: exactly one of the first six fields.

    Args:
        json: a JSON schema, as an object or as text.
        regex: a pattern that the whole text matches.
        choice: the texts that are allowed.
        grammar: in the notation of Lark (as llguidance reads it), or EBNF with `::=`.
        json_object: any JSON object.
        structural_tag: `{"format": {...}}` as text: see `structured/structural_tag.py` for the
            formats; or `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`: free text
            in which, after a trigger, one of the structures must follow.
        disable_any_whitespace: no white space between JSON tokens (else a little is allowed).
        disable_additional_properties: objects hold only the properties that their schema lists.
        whitespace_pattern: what may stand between two JSON tokens, once, in place of the default.

    Raises:
        ValidationError: none or several of the six, or a value that cannot be right.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    behind_thought: ThoughtMarks | None = None
    """The constraint begins behind a thought. Filled in by the server, never by callers."""

    KINDS: ClassVar = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

    @property
    def kind(self) -> str:
        """Which of the six it is."""
        return next(kind for kind in self.KINDS if getattr(self, kind) is not None)

    def __post_init__(self) -> None:
        given = [kind for kind in self.KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValidationError(
                f"structured_outputs needs exactly one of {', '.join(self.KINDS)}; "
                f"given: {', '.join(given) or 'none'}",
                param="structured_outputs",
            )
        self._check_texts()
        choices = self.choice
        if choices is not None and (not isinstance(choices, list) or not choices):
            self._refuse("choice", "must be a non-empty list of strings")
        for choice in choices or ():
            if not isinstance(choice, str):
                self._refuse("choice", f"must hold strings, got {shown(choice)}")
            check_utf8("structured_outputs.choice", choice)
        if self.json_object is not None and self.json_object is not True:
            self._refuse("json_object", "must be true, or left out")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                self._refuse(name, "must be a boolean")

    def _check_texts(self) -> None:
        for name in ("json", "regex", "grammar", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            if value is None or (name == "json" and isinstance(value, dict)):
                continue
            if not isinstance(value, str) or not value.strip(" \n" if name != "regex" else ""):
                self._refuse(name, "must be a non-empty string")
            if "\0" in value:
                self._refuse(name, "must not hold a NUL character")
            check_utf8(f"structured_outputs.{name}", value)

    def _refuse(self, name: str, why: str) -> NoReturn:
        field = f"structured_outputs.{name}"
        raise ValidationError(f"{field} {why}", param=field, value=getattr(self, name))
