"""Rules of grammars for calls whose parameters stand one by one, as plain text.

Keeps what a reader of such calls makes of them in mind: text is a string wherever a string may be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import ValidationError
from headrace.server.tools.choice import Tool, ToolPlan
from headrace.structured.json_schema import ANNOTATIONS, SchemaCleaner, write_json
from headrace.text.tool_calls.call_parser import ParameterForm
from headrace.text.tool_calls.qwen3_coder import types_of

OF_OBJECTS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
OF_TEXTS = {"type", "anyOf", "oneOf"}


class ParameterWriter:
    """Writes the rules for the tools of a request.

    Args:
        max_depth: of schemas.
    """

    def __init__(self, form: ParameterForm, max_depth: int) -> None:
        self._form = form
        self._max_depth = max_depth
        self.rules = [r"LINE: /\n/"]

    def free(self, plan: ToolPlan) -> str:
        """Text in which each mark of the family is followed by a call."""
        bodies = [(tool, self._body(tool)) for tool in plan.tools]
        options: list[str] = []
        for i, (mark, (begin, end)) in enumerate(
            zip(plan.family.marks, self._form.calls, strict=True)
        ):
            calls = [
                f"{quoted(begin.replace('NAME', tool.name))} {body} {quoted(end)}"
                for tool, body in bodies
            ]
            # Lazy: free text ends with the first mark in it.
            self.rules.append(f"free_{i}[lazy]: TEXT {quoted(mark)}")
            self.rules.append(f"marked_{i}: {' | '.join(calls)}")
            options.append(f"free_{i} marked_{i}")
        self.rules.append("text: TEXT")
        return f"({' | '.join(options)})* text"

    def _body(self, tool: Tool) -> str:
        """The parameters of a tool, in their order; those of tools that are not strict: any."""
        name = f"body_{tool.index}"
        if not tool.is_strict:
            key = r"/[^<>\n]*/"
            begin, end = self._form.begin.split("KEY")
            self.rules.append(f"{name}: ({quoted(begin)} {key} {quoted(end)} {self._text()} LINE)*")
            return name
        field, schema = f"{tool.field}.parameters", tool.parameters
        SchemaCleaner(field, max_depth=self._max_depth).clean(schema)
        unknown = set(schema) - OF_OBJECTS - ANNOTATIONS
        if unknown or schema.get("type", "object") != "object":
            _refuse(tool, field, sorted(unknown) or ["type"])
        required = schema.get("required", [])
        parts: list[str] = []
        for i, (key, value) in enumerate(schema.get("properties", {}).items()):
            self.rules.append(f"{name}_{i}: {self._parameter(tool, key, value)} LINE")
            parts.append(f"{name}_{i}" if key in required else f"{name}_{i}?")
        missing = set(required) - set(schema.get("properties", {}))
        if missing:
            _refuse(tool, f"{field}.required", sorted(missing))
        self.rules.append(f"{name}: {' '.join(parts) or quoted('')}")
        return name

    def _parameter(self, tool: Tool, key: str, schema: Any) -> str:
        field = f"{tool.field}.parameters.properties.{key}"
        begin = quoted(self._form.begin.replace("KEY", key))
        types = types_of(schema, tool.parameters)
        if schema is True:
            schema = {}
        if schema is False:
            _refuse(tool, field, ["false"])
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if types and "string" not in types:
            definitions = {
                name: tool.parameters[name] for name in ("$defs", "definitions")
                if name in tool.parameters
            }  # fmt: skip
            cleaner = SchemaCleaner(field, max_depth=self._max_depth)
            clean = write_json(cleaner.clean({**definitions, **schema}), field)
            return f"{begin} %json {clean} {quoted(f'{chr(10)}{self._form.end}')}"
        if values is not None:
            texts = ["null" if value is None else value for value in values]
            if not all(isinstance(text, str) and self._form.end not in text for text in texts):
                _refuse(tool, field, ["enum"])
            choice = " | ".join(quoted(text) for text in texts)
            return f"{begin} ({choice}) {quoted(f'{chr(10)}{self._form.end}')}"
        constrained = _constraints(schema)
        if constrained:
            _refuse(tool, field, sorted(constrained))
        return f"{begin} {self._text()}"

    def _text(self) -> str:
        """Any text up to the mark that ends a value."""
        rule = f"value[lazy]: TEXT {quoted(self._form.end)}"
        if rule not in self.rules:
            self.rules.append(rule)
        return "value"


def _constraints(schema: Mapping[str, Any] | bool) -> set[str]:
    """Keywords that say more of a text than that it is one."""
    if isinstance(schema, bool):
        return set() if schema else {"false"}
    found = set(schema) - OF_TEXTS - ANNOTATIONS
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key, ()):
            found |= _constraints(option)
    return found


def _refuse(tool: Tool, field: str, keywords: list[str]) -> None:
    raise ValidationError(
        f"{field}: {', '.join(keywords)} cannot be enforced where this model writes calls as it "
        f"likes: use tool_choice 'required' or a named function, or leave {tool.field}.strict out",
        param=field,
    )


def quoted(text: str) -> str:
    """A string literal that matches just this text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
