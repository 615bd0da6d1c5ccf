"""Rules of grammars for calls as Python writes them: `[f(a=1), g()]`, values one by one.

Values are JSON, or what Python has in its place for single ones: `True`, `False`, `None`, and text
between single quotes. The reader takes both (`text/tool_calls/pythonic.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.server.tools.choice import Tool, ToolPlan
from headrace.server.tools.grammar_texts import SPACES, beginning_otherwise, only_begun, quoted
from headrace.server.tools.parameter_grammar import Parameter, json_schema_of, parameters_of
from headrace.structured.json_schema import ANNOTATIONS
from headrace.text.tool_calls.call_parser import KeywordForm

_WORDS = {True: "True", False: "False", None: "None"}
_TEXT = r"/'([^'\\\x00-\x1f]|\\['\\nt])*'/"
"""With the escapes that the reader knows."""
_KEY = "/[A-Za-z_][A-Za-z0-9_]*/"


class KeywordWriter:
    """Writes the rules for the tools of a request.

    Args:
        max_depth: of schemas.
    """

    def __init__(self, form: KeywordForm, max_depth: int) -> None:
        self._form = form
        self._max_depth = max_depth
        self.rules = [f"PYTHON_TEXT: {_TEXT}"]

    def free(self, plan: ToolPlan, thought_marks: Sequence[str]) -> str:
        """Text in which a mark is followed by calls; or calls from the beginning to the end: what
        begins with `[`, a tool's name and `(`."""
        [mark] = plan.family.marks
        for tool in plan.tools:
            rest = f"{self._body(tool)} {quoted(')')}"
            self.rules.append(f"call_{tool.index}: {quoted(f'{tool.name}(')} {rest}")
            # One literal: what begins like it and goes on otherwise is text.
            self.rules.append(f"first_{tool.index}: {quoted(f'[{tool.name}(')} {rest}")
        more = f"({quoted(', ')} call)*" if plan.is_parallel else ""
        self.rules += [
            f"{kind}: {' | '.join(f'{kind}_{tool.index}' for tool in plan.tools)}"
            for kind in ("call", "first")
        ]
        self.rules += [
            f"calls: first {more} {quoted(']')}",
            # Lazy: free text ends with the first mark in it.
            f"free[lazy]: TEXT {quoted(mark)}",
            f"marked: calls {quoted(self._form.end)}",
            "text: TEXT",
            "rest: (free marked)* text",
            SPACES,
        ]
        openings = (mark, *(f"[{tool.name}(" for tool in plan.tools))
        other = beginning_otherwise((*openings, *thought_marks))
        text = f"{other} rest | {only_begun(openings)}"
        return f"SPACES? ({quoted(mark)} marked rest | {text} | calls)?"

    def _body(self, tool: Tool) -> str:
        """What stands between the brackets of a tool's calls; for tools that are not strict: any
        keywords."""
        name = f"body_{tool.index}"
        if not tool.is_strict:
            value = _either(["%json {}", *_words(True)])
            self.rules.append(f"{name}_any: {_KEY} {quoted('=')} {value}")
            self.rules.append(f"{name}: ({name}_any ({quoted(', ')} {name}_any)*)?")
            return name
        parameters = parameters_of(tool, self._max_depth)
        # From each place: what may come first there, and what may come behind others.
        last = len(parameters)
        self.rules.append(f"{name}_more_{last}: {quoted('')}")
        for i, parameter in enumerate(parameters):
            more = f"{quoted(', ')} {name}_{i}"
            self.rules += [
                f"{name}_{i}: {self._parameter(tool, parameter)}",
                f"{name}_more_{i}: {more if parameter.is_required else f'({more})?'} "
                f"{name}_more_{i + 1}",
            ]
        for i, parameter in enumerate(parameters):
            first = f"{name}_first_{i}: {name}_{i} {name}_more_{i + 1}"
            if parameter.is_required:
                self.rules.append(first)
                return f"{name}_first_0"
            self.rules.append(f"{first} | {name}_first_{i + 1}")
        self.rules.append(f"{name}_first_{last}: {quoted('')}")
        return f"{name}_first_0"

    def _parameter(self, tool: Tool, parameter: Parameter) -> str:
        options = [f"%json {json_schema_of(tool, parameter, self._max_depth)}"]
        options += _words(parameter.schema)
        return f"{quoted(f'{parameter.key}=')} {_either(options)}"


def _either(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _words(schema: Any) -> list[str]:
    """What Python writes for values that a schema allows, as far as that is plain to see."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return []
    keys = set(schema) - ANNOTATIONS
    if keys == {"anyOf"}:
        options = [word for option in schema["anyOf"] for word in _words(option)]
        return list(dict.fromkeys(options))
    kinds = schema.get("type", ["boolean", "null", "string"])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if keys <= {"type"}:
        words = {"boolean": [quoted("True"), quoted("False")], "null": [quoted("None")],
                 "string": ["PYTHON_TEXT"]}  # fmt: skip
        return [word for kind in kinds for word in words.get(kind, [])]
    if keys <= {"type", "enum"} or keys <= {"type", "const"}:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return [word for value in values for word in _word(value, kinds)]
    return []


def _word(value: Any, kinds: Sequence[str]) -> list[str]:
    if isinstance(value, str) and "string" in kinds:
        is_plain = value.isprintable() and not set(value) & set("'\\")
        return [quoted(f"'{value}'")] if is_plain else []
    if isinstance(value, bool) and "boolean" in kinds:
        return [quoted(_WORDS[value])]
    return [quoted(_WORDS[None])] if value is None and "null" in kinds else []
