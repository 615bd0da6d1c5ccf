"""Qwen 3 Coder: `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`.

Values are plain text; what they are is told by the parameters of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headrace.text.tool_calls.call_parser import Calls, Family, ParameterForm
from headrace.text.tool_calls.json_scanner import is_json
from headrace.text.tool_calls.literals import NotALiteralError, literal
from headrace.text.tool_calls.source import NotACallError, Reading, Source

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_REFERENCES = 16
_NAME = re.compile(r"[^ \t\r\n<>]+")
_KEY = re.compile(r"[^\r\n<>]+")
_FIRSTS = {
    "{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null",
}  # fmt: skip


def read(source: Source, calls: Calls, mark: str) -> Reading[None]:
    """One call; the marks that close it may be missing at the end.

    Raises:
        NotACallError: it is none.
    """
    if mark == CALL:
        yield from source.spaces()
        yield from source.expect(FUNCTION)
    name = yield from source.run(_NAME)
    yield from source.expect(">")
    if not name:
        raise NotACallError
    values: dict[str, str] = {}
    tool = calls.tools.get(name, {})
    properties = tool.get("properties")
    while True:
        yield from source.spaces()
        if not (yield from source.literal(PARAMETER)):
            break
        key = yield from source.run(_KEY)
        yield from source.expect(">")
        text = yield from source.until(PARAMETER_END)
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        values[key] = value_of(text.removeprefix("\n").removesuffix("\n"), schema, tool)
    if not (yield from source.closing(FUNCTION_END)):
        raise NotACallError
    if mark == CALL:
        yield from source.spaces()
        if not (yield from source.closing(CALL_END)):
            raise NotACallError
    members = [f"{json.dumps(key, ensure_ascii=False)}: {text}" for key, text in values.items()]
    calls.add(name, "{" + ", ".join(members) + "}")


def value_of(text: str, schema: object, root: object = None) -> str:
    """A value as JSON: of a type that the schema allows, if it can be read so, else a string.

    Args:
        root: the schema that references in it point into.
    """
    types = types_of(schema, root)
    if "string" not in types and types:
        try:
            value = text.strip() if is_json(text) else literal(text)
        except NotALiteralError:
            pass
        else:
            if _type_of(value) in types:
                return value
    elif "null" in types and text == "null":
        return text
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: object, root: object) -> set[str]:
    """The types a schema names; none when it leaves that open, or is no schema."""
    return _types_of(schema, root, 0, set())


def _types_of(schema: object, root: object, depth: int, followed: set[str]) -> set[str]:
    """The same.

    Args:
        followed: references: one each time would make the work grow with the power of the depth.
    """
    if not isinstance(schema, Mapping) or depth > MAX_REFERENCES:
        return set()
    kinds: Any = schema.get("type")
    given = kinds if isinstance(kinds, list) else [kinds]
    types = {kind for kind in given if isinstance(kind, str) and kind}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        types |= _types_of(_found(root, reference), root, depth + 1, followed)
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else ():
            types |= _types_of(option, root, depth + 1, followed)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not types and isinstance(values, list):
        types = {_type_of(json.dumps(value)) for value in values}
    if "number" in types:
        types.add("integer")
    return types


def _found(root: object, reference: str) -> object:
    """What a reference within the document points to."""
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def _type_of(value: str) -> str:
    kind = _FIRSTS.get(value[0])
    if kind is not None:
        return kind
    return "integer" if value.lstrip("-").isdigit() else "number"


FAMILY = Family(
    marks=(CALL, FUNCTION),
    read=read,
    read_opening=None,
    parameter_form=ParameterForm(
        calls=(
            (f"\n{FUNCTION}NAME>\n", f"{FUNCTION_END}\n{CALL_END}"),
            ("NAME>\n", FUNCTION_END),
        ),
        begin=f"{PARAMETER}KEY>\n",
        end=PARAMETER_END,
    ),
    names=_NAME,
    keys=re.compile(f"(?:{_KEY.pattern})?"),
)
