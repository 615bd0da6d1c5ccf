"""From what a caller asks of the text to one grammar, with every part of it checked."""

from __future__ import annotations

import re
from typing import Any

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError, shown
from headrace.structured.json_schema import (
    OPTIONS_KEY,
    SchemaCleaner,
    depth,
    read_json,
    write_json,
)
from headrace.structured.lark import (
    HEADER,
    behind_thought,
    callers_grammar,
    quoted,
    regex_literal,
)
from headrace.structured.structural_tag import structural_tag_grammar
from headrace.structured_params import StructuredOutputsParams

WHITESPACE = r"\x20|\n(\x20{0,16}|\t{0,4})"
"""What may stand between two JSON tokens, once: a space, or a new line and its indent."""
MAX_CHOICES = 10_000
_SPACE = r"(?:[ \n\r\t]|\\[nrts]|\\x(?:20|0[9AaDd]))"
_WHITESPACE_PATTERN = re.compile(
    rf"(?:{_SPACE}|\[{_SPACE}+\]|\(\?:|[()|*+?]|\{{\d{{0,4}}(?:,\d{{0,4}})?\}})+"
)


def build_grammar(params: StructuredOutputsParams, config: StructuredOutputsConfig) -> str:
    """The grammar as text, ready to be compiled. The same parameters give the same text.

    Raises:
        ValidationError: something that could not be enforced, or is over a limit; names the field.
    """
    return _Builder(params, config).build()


class _Builder:
    def __init__(self, params: StructuredOutputsParams, config: StructuredOutputsConfig) -> None:
        self._params = params
        self._max_depth = config.max_depth

    def build(self) -> str:
        grammar = self._grammar()
        marks = self._params.behind_thought
        return grammar if marks is None else behind_thought(grammar, marks)

    def _grammar(self) -> str:
        params = self._params
        if params.json is not None:
            return self._only(self._json(params.json))
        if params.json_object:
            return self._only({"type": "object"})
        if params.regex is not None:
            return self._regex(params.regex)
        if params.choice is not None:
            return self._choice(params.choice)
        if params.grammar is not None:
            return callers_grammar(params.grammar, self._embedded_in("grammar"), self._max_depth)
        field = "structured_outputs.structural_tag"
        tag = read_json(params.structural_tag or "", field, self._max_depth)
        if depth(tag) > 2 * self._max_depth:  # of formats, and of a schema in them
            raise ValidationError(
                f"{field} is nested deeper than {2 * self._max_depth} levels", param=field
            )
        return HEADER + structural_tag_grammar(tag, self._embedded_in("structural_tag"))

    def _json(self, given: str | dict[str, Any]) -> Any:
        if isinstance(given, str):
            return read_json(given, "structured_outputs.json", self._max_depth)
        return given

    def _only(self, schema: Any) -> str:
        return f"{HEADER}start: %json {self._embedded_in('json')(schema)}\n"

    def _embedded_in(self, name: str) -> Any:
        """What checks a schema and gives its text with our options in it."""
        field = f"structured_outputs.{name}"
        params = self._params
        options: dict[str, Any] = {"whitespace_pattern": WHITESPACE}
        if params.whitespace_pattern is not None:
            options = {"whitespace_pattern": _whitespace(params.whitespace_pattern)}
        if params.disable_any_whitespace:
            options = {"whitespace_flexible": False}

        def embed(schema: Any) -> str:
            clean = SchemaCleaner(
                field,
                max_depth=self._max_depth,
                closes_objects=params.disable_additional_properties,
            ).clean(schema)
            return write_json({OPTIONS_KEY: options, **clean}, field)

        return embed

    def _regex(self, pattern: str) -> str:
        field = "structured_outputs.regex"
        trailing = len(pattern) - len(pattern.rstrip("\\"))
        if trailing % 2:
            raise ValidationError(f"{field} ends within an escape", param=field)
        if not pattern:
            raise ValidationError(f"{field} must not be empty", param=field)
        return f"{HEADER}start: {regex_literal(pattern)}\n"

    def _choice(self, choices: list[str]) -> str:
        field = "structured_outputs.choice"
        if len(choices) > MAX_CHOICES:
            raise ValidationError(
                f"{field} holds {len(choices)} strings, at most {MAX_CHOICES} are allowed",
                param=field,
            )
        return f"{HEADER}start: {' | '.join(quoted(text) for text in choices)}\n"


def _whitespace(pattern: str) -> str:
    """A caller's pattern for white space, which must be able to match nothing else."""
    field = "structured_outputs.whitespace_pattern"
    if not _WHITESPACE_PATTERN.fullmatch(pattern):
        raise ValidationError(
            f"{field} may match spaces, tabs and line ends only, got {shown(pattern)}", param=field
        )
    return pattern.replace(r"\s", r"[\x20\n\r\t]")
