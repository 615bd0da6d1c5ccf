"""Rules of grammars for calls whose parameters stand one by one, as plain text.

Keeps what a reader of such calls makes of them in mind: text is a string wherever a string may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from headrace.errors import ValidationError
from headrace.server.tools.choice import Tool, ToolPlan
from headrace.server.tools.grammar_texts import quoted
from headrace.structured.json_schema import ANNOTATIONS, SchemaCleaner, write_json
from headrace.text.tool_calls.call_parser import ParameterForm
from headrace.text.tool_calls.qwen3_coder import types_of

OF_OBJECTS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
OF_TEXTS = {"type", "anyOf", "oneOf"}


class Parameter(NamedTuple):
    """One of a strict tool.

    Attributes:
        schema: what its value must fit; references in it point into the tool's parameters.
    """

    key: str
    schema: Any
    is_required: bool

    def field(self, tool: Tool) -> str:
        """Where it stands in the request."""
        return f"{tool.field}.parameters.properties.{self.key}"


def parameters_of(tool: Tool, max_depth: int) -> list[Parameter]:
    """The parameters of a strict tool, to be written one by one in their order.

    Raises:
        ValidationError: what is asked of them cannot be held so; names its field.
    """
    field, schema = f"{tool.field}.parameters", tool.parameters
    SchemaCleaner(field, max_depth=max_depth).clean(schema)
    unknown = set(schema) - OF_OBJECTS - ANNOTATIONS
    if unknown or schema.get("type", "object") != "object":
        refuse(tool, field, sorted(unknown) or ["type"])
    required, properties = schema.get("required", []), schema.get("properties", {})
    missing = set(required) - set(properties)
    if missing:
        refuse(tool, f"{field}.required", sorted(missing))
    parameters = [Parameter(key, value, key in required) for key, value in properties.items()]
    for parameter in parameters:
        if parameter.schema is False:
            refuse(tool, parameter.field(tool), ["false"])
    return parameters


def json_schema_of(tool: Tool, parameter: Parameter, max_depth: int) -> str:
    """The schema of a parameter as JSON, fit for a grammar.

    Raises:
        ValidationError: it could not be enforced; names its field.
    """
    definitions = {
        name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters
    }
    field = parameter.field(tool)
    schema = {} if parameter.schema is True else parameter.schema
    cleaner = SchemaCleaner(field, max_depth=max_depth)
    return write_json(cleaner.clean({**definitions, **schema}), field)


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
        parts: list[str] = []
        for i, parameter in enumerate(parameters_of(tool, self._max_depth)):
            self.rules.append(f"{name}_{i}: {self._parameter(tool, parameter)} LINE")
            parts.append(f"{name}_{i}" if parameter.is_required else f"{name}_{i}?")
        self.rules.append(f"{name}: {' '.join(parts) or quoted('')}")
        return name

    def _parameter(self, tool: Tool, parameter: Parameter) -> str:
        field = parameter.field(tool)
        begin = quoted(self._form.begin.replace("KEY", parameter.key))
        schema = {} if parameter.schema is True else parameter.schema
        types = types_of(schema, tool.parameters)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if types and "string" not in types:
            clean = json_schema_of(tool, parameter, self._max_depth)
            return f"{begin} %json {clean} {quoted(f'{chr(10)}{self._form.end}')}"
        if values is not None:
            texts = ["null" if value is None else value for value in values]
            if not all(isinstance(text, str) and self._form.end not in text for text in texts):
                refuse(tool, field, ["enum"])
            choice = " | ".join(quoted(text) for text in texts)
            return f"{begin} ({choice}) {quoted(f'{chr(10)}{self._form.end}')}"
        constrained = _constraints(schema)
        if constrained:
            refuse(tool, field, sorted(constrained))
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


def refuse(tool: Tool, field: str, keywords: list[str]) -> NoReturn:
    """Say that these keywords cannot be held where parameters stand one by one.

    Raises: ValidationError, always.
    """
    raise ValidationError(
        f"{field}: {', '.join(keywords)} cannot be enforced where this model writes calls as it "
        f"likes: use tool_choice 'required' or a named function, or leave {tool.field}.strict out",
        param=field,
    )
