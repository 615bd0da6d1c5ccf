"""Structural tags: free text in which, after a trigger, a tag with a schema must follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from headrace.errors import ValidationError, shown
from headrace.structured.lark import quoted

FIELD = "structured_outputs.structural_tag"
MAX_TAGS = 256


def structural_tag_grammar(tag: Any, embed_schema: Callable[[Any], str]) -> str:
    """The grammar of `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`.

    Text is free until one of the triggers has been written; then one of the structures that begin
    with it has to be completed. The answer may end wherever the text is free.

    Args:
        embed_schema: checks a schema and gives the text for its place.

    Raises:
        ValidationError: names what is wrong.
    """
    structures, triggers = _parts(tag)
    rules: list[str] = []
    by_trigger: dict[str, list[str]] = {trigger: [] for trigger in triggers}
    for i, item in enumerate(structures):
        begin, schema, end = _structure(item, i)
        fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
        if not fitting:
            _refuse(f"structures[{i}].begin starts with none of the triggers")
        rest = begin.removeprefix(fitting[0])
        body = [quoted(rest) if rest else "", f"%json {embed_schema(schema)}",
                quoted(end) if end else ""]  # fmt: skip
        rules.append(f"tag_{i}: " + " ".join(body).rstrip())
        by_trigger[fitting[0]].append(f"tag_{i}")
    options = []
    for i, (trigger, names) in enumerate(by_trigger.items()):
        if names:
            # Lazy: the free text ends with the first trigger in it.
            rules.append(f"trigger_{i}[lazy]: TEXT {quoted(trigger)}")
            options.append(f"trigger_{i} ({' | '.join(names)})")
    start = f"start: ({' | '.join(options)})* free_text"
    return "\n".join([start, "free_text: TEXT", r"TEXT: /(.|\n)*/", *rules, ""])


def _refuse(why: str) -> NoReturn:
    raise ValidationError(f"{FIELD}: {why}", param=FIELD)


def _parts(tag: Any) -> tuple[list[Any], list[str]]:
    if not isinstance(tag, dict):
        _refuse(f"must be an object, got {shown(tag)}")
    unknown = set(tag) - {"type", "structures", "triggers"}
    if unknown:
        _refuse(f"{shown(min(unknown))} is not supported; give structures and triggers")
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_TAGS:
        _refuse(f"structures must be a list of 1 to {MAX_TAGS} objects")
    if not isinstance(triggers, list) or not 0 < len(triggers) <= MAX_TAGS:
        _refuse(f"triggers must be a list of 1 to {MAX_TAGS} strings")
    for trigger in triggers:
        if not isinstance(trigger, str) or not trigger:
            _refuse(f"triggers must hold non-empty strings, got {shown(trigger)}")
    for i, trigger in enumerate(triggers):
        if any(trigger.startswith(other) for other in triggers[:i] + triggers[i + 1 :]):
            _refuse(f"one trigger begins with another: {shown(trigger)}")
    return structures, triggers


def _structure(item: Any, i: int) -> tuple[str, Any, str]:
    if not isinstance(item, dict) or set(item) - {"begin", "schema", "end"}:
        _refuse(f"structures[{i}] must be an object with begin, schema and end")
    begin, end = item.get("begin"), item.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str):
        _refuse(f"structures[{i}]: begin and end must be strings")
    return begin, item.get("schema", {}), end
