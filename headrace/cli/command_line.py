"""What commands share: the words of a command line to the records that a command takes."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from headrace.cli.config_file import read_config_file
from headrace.cli.options import Option, Parser, add_options, parse


def help_topic(argv: list[str]) -> str | None:
    """What help is asked for: a topic, "" for the overview, None if no help is."""
    for word in argv:
        if word in ("-h", "--help") or word.startswith("--help="):
            return word.partition("=")[2]
    return None


def read_records(
    name: str,
    argv: list[str],
    options: list[Option],
    records: tuple[type, ...],
    *,
    takes_model: bool = True,
    model_flag: bool = False,
) -> list[Any]:
    """The records that a command line, and the file that --config names, ask for.

    Args:
        options: the flags of the records.
        takes_model: whether a word without a flag is the model.
        model_flag: whether `--model` is, too.

    Raises:
        UsageError: an unknown flag or a bad value.
        ConfigError: a value that cannot work.
    """

    def make() -> Parser:
        parser = Parser(prog=name, add_help=False, allow_abbrev=False)
        if takes_model:
            parser.add_argument("model", nargs="?", default=argparse.SUPPRESS)
        if model_flag:
            parser.add_argument("--model", default=argparse.SUPPRESS)
        parser.add_argument("--config", default=argparse.SUPPRESS)
        add_options(parser, options)
        return parser

    given = parse(make(), argv)
    path = given.pop("config", None)
    if path is not None:
        given = {**read_config_file(path, make()), **given}
    return [record(**_fields(given, record)) for record in records]


def _fields(given: dict[str, Any], record: type) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(record)}
    return {name: value for name, value in given.items() if name in names}
