"""Structural tags: texts made of tags with contents of their own, alone or within free text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from headrace.errors import ValidationError, shown
from headrace.structured.lark import quoted, regex_literal

FIELD = "structured_outputs.structural_tag"
MAX_PARTS = 256
"""Of one list."""

_After: TypeAlias = tuple[str, ...] | None
"""What follows a part: one of these texts; END, nothing; or None, what is no plain text."""
END: tuple[str, ...] = ("",)
_TEXT_RULES = ["free_text: TEXT", r"TEXT: /(.|\n)*/"]


def structural_tag_grammar(tag: Any, embed_schema: Callable[[Any], str]) -> str:
    """The grammar of `{"format": ...}`, or of `{"structures": [...], "triggers": [...]}`.

    The second is short for triggered tags with a JSON schema each. See the methods of _Writer for
    what each format means.

    Args:
        embed_schema: checks a schema and gives the text for its place.

    Raises:
        ValidationError: names what is wrong, or is not supported.
    """
    writer = _Writer(embed_schema)
    if not isinstance(tag, dict):
        _refuse(f"must be an object, got {shown(tag)}")
    if tag.get("type", "structural_tag") != "structural_tag":
        _refuse(f"type must be 'structural_tag', got {shown(tag['type'])}")
    if "format" in tag:
        _check_keys(tag, {"type", "format"}, "")
        start = writer.write(tag["format"], "format", END)
    else:
        _check_keys(tag, {"type", "structures", "triggers"}, "")
        start = writer.write_structures(tag.get("structures"), tag.get("triggers"))
    return "\n".join([f"start: {start}", *_TEXT_RULES, *writer.rules, ""])


class _Writer:
    """Writes formats as expressions of a grammar, and the rules that these need."""

    def __init__(self, embed_schema: Callable[[Any], str]) -> None:
        self._embed_schema = embed_schema
        self.rules: list[str] = []

    def write(self, part: Any, path: str, after: _After) -> str:
        """An expression for a format and for `after`, when that is a text."""
        kind = part.get("type") if isinstance(part, dict) else None
        write = _FORMATS.get(kind) if isinstance(kind, str) else None
        if write is None:
            _refuse(f"{path}.type must be one of {', '.join(_FORMATS)}, got {shown(kind)}")
        return write(self, part, path, after)

    # One method per format

    def _const_string(self, part: dict[str, Any], path: str, after: _After) -> str:
        """The text `value`."""
        _check_keys(part, {"type", "value"}, path)
        return f"{quoted(_string(part, 'value', path))} {_one_of(after)}".rstrip()

    def _json_schema(self, part: dict[str, Any], path: str, after: _After) -> str:
        """JSON that `json_schema` allows."""
        _check_keys(part, {"type", "json_schema", "style"}, path)
        if part.get("style", "json") != "json":
            _refuse(f"{path}.style: only 'json' is supported")
        if "json_schema" not in part:
            _refuse(f"{path} needs json_schema")
        return f"%json {self._embed_schema(part['json_schema'])} {_one_of(after)}".rstrip()

    def _regex(self, part: dict[str, Any], path: str, after: _After) -> str:
        """A text that `pattern` matches."""
        _check_keys(part, {"type", "pattern"}, path)
        pattern = _string(part, "pattern", path)
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
            _refuse(f"{path}.pattern ends within an escape")
        literal = regex_literal(pattern)
        if after is None or after == END:
            return literal
        # In one piece with what follows, as a pattern alone would take in all it can.
        return self._rule("PART", f"{literal} {_one_of(after)}")

    def _any_text(self, part: dict[str, Any], path: str, after: _After) -> str:
        """Any text without what follows it."""
        _check_keys(part, {"type"}, path)
        if after is None:
            _refuse(f"{path}: any_text needs a text that ends it: the end of its tag, or a "
                    "const_string that follows")  # fmt: skip
        if after == END:
            return "free_text"
        # Lazy: it ends with the first of them.
        return self._rule("text", f"TEXT {_one_of(after)}", lazy=True)

    def _sequence(self, part: dict[str, Any], path: str, after: _After) -> str:
        """All of `elements`, one after the other."""
        _check_keys(part, {"type", "elements"}, path)
        elements = _list(part, "elements", path)
        pieces: list[str] = []
        i = 0
        while i < len(elements):
            here, following = f"{path}.elements[{i}]", elements[i + 1 : i + 2]
            i += 1
            if not following:
                pieces.append(self.write(elements[i - 1], here, after))
            elif isinstance(following[0], dict) and following[0].get("type") == "const_string":
                _check_keys(following[0], {"type", "value"}, f"{path}.elements[{i}]")
                text = _string(following[0], "value", f"{path}.elements[{i}]")
                pieces.append(self.write(elements[i - 1], here, (text,)))
                i += 1
                if i == len(elements):
                    pieces.append(_one_of(after))
            else:
                pieces.append(self.write(elements[i - 1], here, None))
        return " ".join(piece for piece in pieces if piece)

    def _or(self, part: dict[str, Any], path: str, after: _After) -> str:
        """One of `elements`."""
        _check_keys(part, {"type", "elements"}, path)
        elements = _list(part, "elements", path)
        written = [self.write(e, f"{path}.elements[{i}]", after) for i, e in enumerate(elements)]
        return f"({' | '.join(written)})"

    def _tag(self, part: dict[str, Any], path: str, after: _After) -> str:
        """`begin`, `content` (a format) and `end`, which may be a list: one of these."""
        begin = _string(part, "begin", path)
        return f"{quoted(begin)} {self._behind_begin(part, path, after)}"

    def _triggered_tags(self, part: dict[str, Any], path: str, after: _After) -> str:
        """Text is free until one of `triggers` is written; then one of `tags` that begin with it
        has to be completed. The answer may end wherever the text is free, and, with `at_least_one`,
        a tag has been; with `stop_after_first` it ends there."""
        _check_keys(part, {"type", "triggers", "tags", *_HOW_MANY}, path)
        if after != END:
            _refuse(f"{path}: triggered_tags are supported at the end of the text only")
        at_least_one, stop_after_first = _how_many(part, path)
        tags = {f"{path}.tags[{i}]": tag for i, tag in enumerate(_list(part, "tags", path))}
        triggers = _triggers(part.get("triggers"), f"{path}.triggers")
        options = self._behind_triggers(tags, triggers, END if stop_after_first else None)
        if stop_after_first:
            return f"({' | '.join(options if at_least_one else [*options, 'free_text'])})"
        return f"({' | '.join(options)}){'+' if at_least_one else '*'} free_text"

    def _tags_with_separator(self, part: dict[str, Any], path: str, after: _After) -> str:
        """Some of `tags`, `separator` between them and nothing else. None at all is allowed unless
        `at_least_one`; with `stop_after_first` there is one at most."""
        _check_keys(part, {"type", "tags", "separator", *_HOW_MANY}, path)
        at_least_one, stop_after_first = _how_many(part, path)
        separator = part.get("separator", "")
        if not isinstance(separator, str):
            _refuse(f"{path}.separator must be a string")
        names: list[str] = []
        for i, tag in enumerate(_list(part, "tags", path)):
            here = f"{path}.tags[{i}]"
            names.append(self._rule("tag", self._tag(_tag_at(tag, here), here, None)))
        one = f"({' | '.join(names)})"
        more = f"{quoted(separator)} {one}" if separator else one
        some = one if stop_after_first else f"{one} ({more})*"
        return f"{some if at_least_one else f'({some})?'} {_one_of(after)}".rstrip()

    # Parts of formats

    def write_structures(self, structures: Any, triggers: Any) -> str:
        """Triggered tags in the older shape."""
        if not isinstance(structures, list) or not 0 < len(structures) <= MAX_PARTS:
            _refuse(f"structures must be a list of 1 to {MAX_PARTS} objects")
        tags: dict[str, Any] = {}
        for i, item in enumerate(structures):
            if not isinstance(item, dict) or set(item) - {"begin", "schema", "end"}:
                _refuse(f"structures[{i}] must be an object with begin, schema and end")
            schema = {"type": "json_schema", "json_schema": item.get("schema", {})}
            tag = {"begin": item.get("begin"), "content": schema, "end": item.get("end", "")}
            tags[f"structures[{i}]"] = tag
        options = self._behind_triggers(tags, _triggers(triggers, "triggers"), None)
        return f"({' | '.join(options)})* free_text"

    def _behind_triggers(
        self, tags: dict[str, Any], triggers: Sequence[str], after: _After
    ) -> list[str]:
        """Free text up to a trigger and one of the tags, by path, that begin with it."""
        by_trigger: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for path, tag in tags.items():
            begin = _string(_tag_at(tag, path), "begin", path)
            fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
            if not fitting:
                _refuse(f"{path}.begin starts with none of the triggers")
            rest = begin.removeprefix(fitting[0])
            behind = self._behind_begin(tag, path, after)
            body = f"{quoted(rest)} {behind}" if rest else behind
            by_trigger[fitting[0]].append(self._rule("tag", body))
        options: list[str] = []
        for trigger, names in by_trigger.items():
            if names:
                # Lazy: the free text ends with the first trigger in it.
                upto = self._rule("trigger", f"TEXT {quoted(trigger)}", lazy=True)
                options.append(f"{upto} ({' | '.join(names)})")
        return options

    def _behind_begin(self, part: dict[str, Any], path: str, after: _After) -> str:
        _check_keys(part, {"type", "begin", "content", "end"}, path)
        end = part.get("end", "")
        ends = end if isinstance(end, list) else [end]
        if not 0 < len(ends) <= MAX_PARTS or not all(isinstance(text, str) for text in ends):
            _refuse(f"{path}.end must be a string, or a list of 1 to {MAX_PARTS} strings")
        if ends == [""]:
            return self.write(part.get("content"), f"{path}.content", after)
        if "" in ends:
            _refuse(f"{path}.end must not hold an empty string beside others")
        content = self.write(part.get("content"), f"{path}.content", tuple(ends))
        return f"{content} {_one_of(after)}".rstrip()

    def _rule(self, name: str, body: str, *, lazy: bool = False) -> str:
        """Add a rule; its name. Names in capitals are for what is one pattern."""
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name


_HOW_MANY = ("at_least_one", "stop_after_first")
_FORMATS: dict[str, Callable[[_Writer, dict[str, Any], str, _After], str]] = {
    "const_string": _Writer._const_string,
    "json_schema": _Writer._json_schema,
    "regex": _Writer._regex,
    "any_text": _Writer._any_text,
    "sequence": _Writer._sequence,
    "or": _Writer._or,
    "tag": _Writer._tag,
    "triggered_tags": _Writer._triggered_tags,
    "tags_with_separator": _Writer._tags_with_separator,
}


def _refuse(why: str) -> NoReturn:
    raise ValidationError(f"{FIELD}: {why}", param=FIELD)


def _one_of(texts: _After) -> str:
    if texts is None or texts == END:
        return ""
    return quoted(texts[0]) if len(texts) == 1 else f"({' | '.join(map(quoted, texts))})"


def _check_keys(part: dict[str, Any], known: set[str], path: str) -> None:
    unknown = sorted(set(map(str, part)) - known)
    if unknown:
        _refuse(f"{path}{'.' if path else ''}{unknown[0]} is not supported; known: "
                f"{', '.join(sorted(known))}")  # fmt: skip


def _string(part: dict[str, Any], key: str, path: str) -> str:
    text = part.get(key)
    if not isinstance(text, str) or not text:
        _refuse(f"{path}.{key} must be a non-empty string, got {shown(text)}")
    return text


def _list(part: dict[str, Any], key: str, path: str) -> list[Any]:
    items = part.get(key)
    if not isinstance(items, list) or not 0 < len(items) <= MAX_PARTS:
        _refuse(f"{path}.{key} must be a list of 1 to {MAX_PARTS} objects")
    return items


def _tag_at(tag: Any, path: str) -> dict[str, Any]:
    if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
        _refuse(f"{path} must be a tag")
    return tag


def _how_many(part: dict[str, Any], path: str) -> tuple[bool, bool]:
    at_least_one, stop_after_first = (part.get(name, False) for name in _HOW_MANY)
    if not isinstance(at_least_one, bool) or not isinstance(stop_after_first, bool):
        _refuse(f"{path}: {' and '.join(_HOW_MANY)} must be booleans")
    return at_least_one, stop_after_first


def _triggers(triggers: Any, path: str) -> Sequence[str]:
    if not isinstance(triggers, list) or not 0 < len(triggers) <= MAX_PARTS:
        _refuse(f"{path} must be a list of 1 to {MAX_PARTS} strings")
    for trigger in triggers:
        if not isinstance(trigger, str) or not trigger:
            _refuse(f"{path} must hold non-empty strings, got {shown(trigger)}")
    for i, trigger in enumerate(triggers):
        if any(trigger.startswith(other) for other in triggers[:i] + triggers[i + 1 :]):
            _refuse(f"one trigger begins with another: {shown(trigger)}")
    return triggers
