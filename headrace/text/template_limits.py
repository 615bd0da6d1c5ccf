"""How much a chat template may make: sizes are found out before the thing itself is made.

Names of filters and methods are given only where the result cannot outgrow what these functions
measure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

MAX_CHARS = 8 << 20
"""Of the result, and of any text on the way."""
MAX_ITEMS = 250_000
"""Of any list, counted with everything inside it."""
MAX_CHARS_MADE = 16 * MAX_CHARS
"""Of everything one rendering makes, kept or not."""
MAX_NUMBER_BITS = 4096
MAX_WIDTH = 9999
CHARS_PER_ITEM = 8
"""A guess of what a number or a bracket takes as text."""

TEXT_METHODS = frozenset(
    {"capitalize", "casefold", "count", "endswith", "find", "format", "format_map", "index",
     "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower",
     "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "lower", "lstrip",
     "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
     "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title",
     "upper"}
)  # fmt: skip
CONTAINER_METHODS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
SHALLOW_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length",
     "list", "map", "reject", "rejectattr", "reverse", "round", "safe", "select", "selectattr"}
)  # fmt: skip
"""These pass things on and do not look inside them."""
DEEP_FILTERS = frozenset(
    {"capitalize", "dictsort", "e", "escape", "forceescape", "format", "groupby", "indent", "join",
     "lower", "max", "min", "replace", "sort", "string", "sum", "title", "trim", "truncate",
     "unique", "upper", "wordcount"}
)  # fmt: skip
"""These print or compare things with all that is in them."""


class LimitError(SecurityError):
    """A template asked for more than it may have."""


def bounded(value: Any) -> Any:
    """The value itself, when it is not too large with everything inside it."""
    measure(value)
    return value


def measure(value: Any) -> int:
    """About how many characters a value takes as text. Raises LimitError for too many."""
    if isinstance(value, str):
        check_chars(len(value))
        return len(value)
    num_items, num_chars, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            num_chars += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, Collection) and not isinstance(item, range):
            waiting.extend(item)
        num_items += 1
        if num_items > MAX_ITEMS or len(waiting) > MAX_ITEMS:
            raise LimitError(f"it makes a list of more than {MAX_ITEMS} things")
        check_chars(num_chars)
    return num_chars + CHARS_PER_ITEM * num_items


def join_bounded(parts: Iterable[str]) -> str:
    """Join texts that are not too long together."""
    texts = list(parts)
    check_chars(sum(map(len, texts)))
    return "".join(texts)


def range_bounded(*args: int) -> range:
    """range(), not too long."""
    numbers = range(*args)
    # asked by its ends, since the length of a huge range does not fit len()
    if numbers and (numbers[-1] - numbers[0]) // numbers.step >= MAX_ITEMS:
        raise LimitError(f"it makes a range of more than {MAX_ITEMS} numbers")
    return numbers


def check_chars(count: int) -> None:
    """Refuse a text of this length."""
    if count > MAX_CHARS:
        raise LimitError(f"it makes more than {MAX_CHARS} characters")


def check_width(value: Any) -> None:
    """Refuse a large number, or a text (a format) in which one is written."""
    if isinstance(value, str):
        digits = "".join(char if char.isdigit() else " " for char in value)
        is_large = any(len(number) > len(str(MAX_WIDTH)) for number in digits.split())
    else:
        is_large = isinstance(value, int) and abs(value) > MAX_WIDTH
    if is_large:
        raise LimitError("it asks for a text of an excessive width")


def check_format(template: str, values: Iterable[Any]) -> None:
    """Refuse to format these values: large widths, or large values shown many times."""
    values = list(values)
    for value in [template, *(value for value in values if not isinstance(value, str))]:
        check_width(value)
    num_fields = template.count("%") + template.count("{")
    check_chars(len(template) + num_fields * (measure(values) + MAX_WIDTH))


def check_replace(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    """Refuse to replace: the result would be too long."""
    text, old, new = (str(bounded(value)) for value in (text, old, new))
    check_chars(len(text) + text.count(old) * len(new))


def check_join(items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    """Refuse to join with the separator `d`: the result would be too long."""
    num_items = len(items) if isinstance(items, Collection) else 0
    check_chars(measure(items) + num_items * measure(d))


def check_method(owner: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a method of a built-in value that is not known to be harmless, or grows too much.

    Returns the arguments, iterators among them read out so that they could be measured.
    """
    args = tuple(list(arg) if hasattr(arg, "__next__") else arg for arg in args)
    allowed = TEXT_METHODS if isinstance(owner, str) else CONTAINER_METHODS
    if name not in allowed:
        raise SecurityError(f"the method {name} is not available in chat templates")
    if name == "replace":
        check_replace(owner, *args)
    elif name == "join" and args:
        check_join(args[0], owner)
    return args


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be too large."""
    _BINOPS[operator](left, right)


def guard_filter(
    name: str, function: Callable[..., Any], charged: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A filter that measures what it is given first.

    Args:
        name: one of the sets above.
        charged: told every result; returns it.
    """
    num_hidden = int(hasattr(function, "jinja_pass_arg"))  # environment or context comes first

    def guarded(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[num_hidden:]
        if hasattr(value, "__next__"):
            value = list(value)
        if name in DEEP_FILTERS:
            bounded((value, others, kwargs))
        if name == "replace":
            check_replace(value, *others, **kwargs)
        elif name == "join":
            check_join(value, *others, **kwargs)
        elif name == "format":
            check_format(str(value), [*others, *kwargs.values()])
        elif name == "indent":
            width = kwargs.get("width", others[0] if others else 4)
            check_width(width)
            check_replace(value, "\n", width if isinstance(width, str) else " " * int(width))
        return charged(function(*args[:num_hidden], value, *others, **kwargs))

    if num_hidden:
        guarded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return guarded


def _check_add(left: Any, right: Any) -> None:
    if isinstance(left, (str, list, tuple)):
        bounded((left, right))


def _check_multiply(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(sequence, (str, bytes, list, tuple)):
            check_chars(measure(sequence) * times)
            if not isinstance(sequence, (str, bytes)) and times > 1:
                bounded([sequence] * min(times, MAX_ITEMS))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_modulo(left: Any, right: Any) -> None:
    if isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))


def _check_bits(count: int) -> None:
    if count > MAX_NUMBER_BITS:
        raise LimitError("it computes with excessively large numbers")


_BINOPS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_add, "*": _check_multiply, "**": _check_power, "%": _check_modulo,
}  # fmt: skip
