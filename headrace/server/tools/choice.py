"""What a chat asks of tools, checked: which may be called, which must be, and how it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.errors import ValidationError, shown
from headrace.server.protocol.chat import ChatRequest
from headrace.server.settings.server import ServerSettings
from headrace.text.tool_calls.call_parser import Family
from headrace.text.tool_calls.json_calls import LIST_FAMILY

ChoiceKind: TypeAlias = Literal["none", "auto", "required", "named"]
MAX_NAME = 256
JSON_FORMATS = ("json_object", "json_schema")
_NAME = re.compile(r"[^\x00-\x20\x7f\"\\]+")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A tool of a request.

    Attributes:
        index: its place in the request.
        parameters: a JSON schema of an object, as the caller wrote it.
        is_strict: whether its arguments must fit that also where calling it is up to the model.
    """

    index: int
    name: str
    parameters: dict[str, Any]
    is_strict: bool

    @property
    def field(self) -> str:
        """Where its function stands in the request."""
        return f"tools[{self.index}].function"


@dataclass(frozen=True)
class ToolPlan:
    """How the tools of a request are called.

    Attributes:
        kind: what tool_choice comes to.
        tools: those that may be called.
        family: how calls are written: as the model does, unless a grammar has to hold it to calls
            and cannot hold it to such.
        is_parallel: whether an answer may hold several calls.
        is_narrowed: the request says which tools may be called: a call of another is text.
        or_json: the answer is calls, or JSON that response_format asks for.
    """

    kind: ChoiceKind
    tools: tuple[Tool, ...]
    family: Family
    is_parallel: bool
    or_json: bool = False
    is_narrowed: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be calls."""
        return self.kind in ("required", "named")

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar holds calls to the parameters of their tools."""
        return self.is_forced or self.or_json or any(tool.is_strict for tool in self.tools)


def plan_tools(
    body: ChatRequest, settings: ServerSettings, family: Family | None
) -> ToolPlan | None:
    """The tools of a request; None when none is to be called.

    Args:
        family: how the model writes calls, None when that is not known.

    Raises:
        ValidationError: a tool or a choice that cannot be; names the field.
    """
    if body.tools is None:
        if body.tool_choice not in (None, "none", "auto"):
            raise _refusal("tool_choice", "needs tools")
        return None
    tools = _read_tools(body.tools, settings)
    kind, tools = _choose(body.tool_choice, tools)
    if kind == "none":
        return None
    if body.detokenize is False:
        raise _refusal(
            "detokenize",
            "must not be false where tools may be called: calls are found in the text; leave it "
            "out, or set tool_choice 'none'",
        )
    if family is None or (kind == "auto" and not settings.enable_auto_tool_choice):
        raise _refusal(
            "tool_choice",
            "needs a parser for calls, and this model's chat template does not tell which: set "
            "--tool-call-parser; with tool_choice 'none' tools are shown to the model and its "
            "answer comes as text"
            if family is None
            else "'auto' is switched off on this server (--no-enable-auto-tool-choice)",
        )
    if not family.forms and kind != "auto":
        family = LIST_FAMILY
    for tool in tools:
        _check_names(tool, family)
    # Where calls have a mark, a grammar can tell them from the JSON that is asked for.
    wanted = body.response_format is not None and body.response_format.type in JSON_FORMATS
    or_json = kind == "auto" and wanted and _have_marks(family)
    if or_json:
        family = family._replace(read_opening=None)
    # The function that is named is called once, as others do.
    is_parallel = body.parallel_tool_calls is not False and kind != "named"
    return ToolPlan(
        kind, tools, family, is_parallel, or_json, is_narrowed=isinstance(body.tool_choice, dict)
    )


def _have_marks(family: Family) -> bool:
    """Whether each call that a grammar writes, or the list of them, begins with a mark."""
    begins = [form.before_all + form.begin for form in family.forms]
    return bool(begins) and all(begin.startswith(family.marks) for begin in begins)


def _read_tools(given: list[dict[str, Any]], settings: ServerSettings) -> tuple[Tool, ...]:
    if not given:
        raise _refusal("tools", "must not be an empty list")
    if len(given) > settings.max_tools:
        raise _refusal(
            "tools", f"may hold {settings.max_tools} tools (--max-tools), got {len(given)}"
        )
    size = len(msgspec.json.encode(given))
    if size > settings.max_tools_size:
        raise _refusal(
            "tools", f"may take {settings.max_tools_size} bytes (--max-tools-size), got {size}"
        )
    tools = tuple(_read_tool(tool, i) for i, tool in enumerate(given))
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise _refusal(
                f"{tool.field}.name", f"is the name of an earlier tool: {shown(tool.name)}"
            )
        names.add(tool.name)
    return tools


def _read_tool(given: dict[str, Any], index: int) -> Tool:
    where = f"tools[{index}]"
    if given.get("type") != "function":
        raise _refusal(f"{where}.type", f"must be 'function', got {shown(given.get('type'))}")
    function = given.get("function")
    if not isinstance(function, dict):
        raise _refusal(f"{where}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise _refusal(
            f"{where}.function.name",
            f"must be a text of 1 to {MAX_NAME} characters without spaces and quotes, "
            f"got {shown(name)}",
        )
    for key, kind, what in (
        ("description", str, "a text"), ("parameters", dict, "an object"),
        ("strict", bool, "a boolean"),
    ):  # fmt: skip
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            raise _refusal(f"{where}.function.{key}", f"must be {what}, got {shown(value)}")
    parameters = function.get("parameters")
    return Tool(
        index,
        name,
        _NO_PARAMETERS if parameters is None else parameters,
        function.get("strict") is True,
    )


def _check_names(tool: Tool, family: Family) -> None:
    why = "cannot be written in this model's calls: rename it"
    if not family.names.fullmatch(tool.name):
        raise _refusal(f"{tool.field}.name", f"{shown(tool.name)} {why}")
    properties = tool.parameters.get("properties")
    for key in properties if isinstance(properties, dict) else ():
        if not family.keys.fullmatch(key):
            raise _refusal(f"{tool.field}.parameters.properties", f"{shown(key)} {why}")


def _choose(choice: object, tools: tuple[Tool, ...]) -> tuple[ChoiceKind, tuple[Tool, ...]]:
    match choice:
        case None | "auto":
            return "auto", tools
        case "none":
            return "none", tools
        case "required":
            return "required", tools
        case {"type": "function", "function": {"name": str(name)}}:
            return "named", (_by_name(tools, name),)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode,
                                                         "tools": [_, *_] as allowed}}:  # fmt: skip
            kind: ChoiceKind = "required" if mode == "required" else "auto"
            chosen = {tool.index: tool for tool in (_allowed(tools, item) for item in allowed)}
            return kind, tuple(chosen.values())
    raise _refusal(
        "tool_choice",
        "must be 'auto', 'required', 'none', or name a tool as "
        '{"type": "function", "function": {"name": ...}}, '
        f"got {shown(choice)}",
    )


def _allowed(tools: tuple[Tool, ...], item: object) -> Tool:
    match item:
        case {"type": "function", "function": {"name": str(name)}}:
            return _by_name(tools, name)
    raise _refusal("tool_choice", f"allowed_tools must hold functions, got {shown(item)}")


def _by_name(tools: tuple[Tool, ...], name: str) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    raise _refusal("tool_choice", f"names {shown(name)}, which is none of the tools")


def _refusal(param: str, why: str) -> ValidationError:
    return ValidationError(f"{param} {why}", param=param)
