"""From records of options to flags, and back: a flag, a field and its help are one thing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import Any, NoReturn

from headrace.config.args import nearest

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)([kmgKMG]?)")


class UsageError(Exception):
    """A command line that makes no sense; one line."""


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(message.split()))


@dataclasses.dataclass(frozen=True)
class Option:
    """One flag, as its field describes it."""

    name: str
    help: str
    group: str
    kind: str
    choices: tuple[str, ...] | None
    short: tuple[str, ...]
    default: Any

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return "--" + self.name.replace("_", "-")


def options_of(*records: type) -> list[Option]:
    """The flags of records of options, in the order of their fields."""
    found: list[Option] = []
    for record in records:
        for item in dataclasses.fields(record):
            data = dict(item.metadata)
            if not data.get("cli"):
                continue
            default = item.default
            if item.default_factory is not dataclasses.MISSING:
                default = item.default_factory()
            found.append(
                Option(
                    item.name,
                    data["help"],
                    data["group"],
                    data["kind"],
                    data["choices"],
                    data["short"],
                    default,
                )
            )
    return found


def add_options(parser: argparse.ArgumentParser, options: list[Option]) -> None:
    """Make flags. What is not given does not appear in the result."""
    for option in options:
        names = [option.flag, *option.short]
        if option.kind == "bool":
            parser.add_argument(
                *names, dest=option.name, action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
            )  # fmt: skip
            continue
        convert = _CONVERTERS[option.kind]
        parser.add_argument(
            *names,
            dest=option.name,
            type=convert,
            choices=option.choices,
            nargs="+" if option.kind == "list" else None,
            default=argparse.SUPPRESS,
        )


def normalise(argv: list[str]) -> list[str]:
    """Flags with `_` as flags with `-`; values stay as they are."""
    out: list[str] = []
    for index, word in enumerate(argv):
        if word == "--":
            return out + argv[index:]
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


def parse(parser: Parser, argv: list[str]) -> dict[str, Any]:
    """The given options only.

    Raises:
        UsageError: an unknown flag (with the nearest one) or a bad value.
    """
    given, left = parser.parse_known_args(normalise(argv))
    if left:
        flag = left[0].partition("=")[0]
        if not flag.startswith("-"):
            raise UsageError(f"there is nothing to do with {flag!r}")
        known = [name for name in parser._option_string_actions if name.startswith("--")]
        raise UsageError(f"unknown flag {flag}{nearest(flag, known)}")
    return vars(given)


def size(text: str) -> int:
    """An integer; 1k is 1000 and 1K is 1024, also m, M, g, G."""
    match = _SIZE.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.5
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number like 2048, 2k or 2K")
    return int(match[1]) if match and not match[2] and "." not in match[1] else int(value)


def length(text: str) -> int | str:
    """A size, or `auto`."""
    return "auto" if text in ("auto", "-1") else size(text)


def json_value(text: str) -> Any:
    """Any JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid JSON") from None


def integer(text: str) -> int:
    """A plain integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


_CONVERTERS: dict[str, Any] = {
    "str": str,
    "list": str,
    "int": integer,
    "float": number,
    "size": size,
    "length": length,
    "json": json_value,
}
