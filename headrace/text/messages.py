"""Checks chat messages and brings them into the plain form that every template understands.

Content becomes one string (or a list of text parts, where a template wants that), arguments of tool
calls become objects. Templates see nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import ValidationError
from headrace.text.tokenizer import check_utf8

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Type of a content part -> the key that holds its text."""
MAY_BE_NULL = ("assistant", "tool")
MAX_DEPTH = 64


def normalise_messages(messages: object, *, as_parts: bool = False) -> list[dict[str, Any]]:
    """A copy of the conversation in plain form. Other keys of a message stay as they are.

    Args:
        as_parts: content becomes a list of text parts instead of one string.

    Raises:
        ValidationError: something that is not a conversation; names the message by its index.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise ValidationError("messages must be a list", param="messages")
    if not messages:
        raise ValidationError("messages must not be empty", param="messages")
    return [_normalise(message, f"messages[{i}]", as_parts) for i, message in enumerate(messages)]


def mark_end(message: dict[str, Any], mark: str) -> None:
    """Put a mark behind the content of a message in plain form."""
    if isinstance(message["content"], str):
        message["content"] += mark
    elif message["content"]:
        message["content"][-1]["text"] += mark
    else:
        message["content"] = [{"type": "text", "text": mark}]


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Refuse what JSON could not say: lone surrogates, other types, very deep nesting.

    Raises:
        ValidationError: names the place.
    """
    if isinstance(value, str):
        check_utf8(value, where)
    elif value is None or isinstance(value, (bool, int, float)):
        return
    elif depth >= MAX_DEPTH:
        raise ValidationError(f"{where} is nested more than {MAX_DEPTH} deep", param=where)
    else:
        for key, item in _items(value, where):
            if not isinstance(key, (str, int)):
                raise ValidationError(f"{where} has a key that is not a string", param=where)
            check_json(key, where, depth + 1)
            check_json(item, where, depth + 1)


def _items(value: object, where: str) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    raise ValidationError(f"{where} holds a {type(value).__name__}", param=where)


def _normalise(message: object, where: str, as_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValidationError(f"{where} must be an object", param=where)
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValidationError(
            f"{where}.role must be one of {', '.join(ROLES)}, got {str(role)[:50]!r}",
            param=f"{where}.role",
        )
    tool_calls = _tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    if tool_calls:
        plain["tool_calls"] = tool_calls
    if "content" not in message and not (role == "assistant" and tool_calls):
        raise ValidationError(f"{where} has no content", param=f"{where}.content")
    texts = _texts(message.get("content"), role, f"{where}.content")
    plain["content"] = "\n".join(texts)
    if as_parts:
        plain["content"] = [{"type": "text", "text": text} for text in texts]
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise ValidationError(f"{where}.name must be a string", param=f"{where}.name")
    _unify_reasoning(plain)
    check_json(plain, where)
    return plain


def _texts(content: object, role: str, where: str) -> list[str]:
    """The texts of the content; null has none."""
    if isinstance(content, str):
        return [content]
    if content is None:
        if role in MAY_BE_NULL:
            return []
        raise ValidationError(f"{where} must not be null", param=where)
    if not isinstance(content, (list, tuple)):
        raise ValidationError(f"{where} must be a string or a list of parts", param=where)
    return [_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ValidationError(f"{where} must be an object with a type", param=where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise ValidationError(
            f"{where} has the type {str(kind)[:50]!r}; supported: {', '.join(TEXT_PARTS)}",
            param=where,
        )
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise ValidationError(f"{where}.{TEXT_PARTS[kind]} must be a string", param=where)
    return text


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if calls is None:
        return []
    if not isinstance(calls, (list, tuple)):
        raise ValidationError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise ValidationError(f"{where}.function must be an object", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValidationError(f"{where}.function.name must be a non-empty string", param=where)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    """Arguments as an object; they come as one, or as its JSON text, or empty."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ValidationError(f"{where} is not JSON", param=where) from None
    if not isinstance(arguments, Mapping):
        raise ValidationError(f"{where} must be a JSON object", param=where)
    return dict(arguments)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _unify_reasoning(message: dict[str, Any]) -> None:
    """Clients and templates know a thought under either of two names."""
    thought = message.get("reasoning")
    if thought is None:
        thought = message.get("reasoning_content")
    if thought is not None:
        message["reasoning"] = message["reasoning_content"] = thought
