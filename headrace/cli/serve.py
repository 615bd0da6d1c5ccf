"""`headrace serve [MODEL]`: flags to options, and on to the server, which is imported only then."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from importlib import import_module
from types import FrameType
from typing import Any

from headrace.cli.config_file import read_config_file
from headrace.cli.help import help_text
from headrace.cli.options import Option, Parser, add_options, options_of, parse
from headrace.config.args import AsyncEngineArgs
from headrace.server.settings import ServerSettings

USAGE = """usage: headrace serve [MODEL] [options]

Answers over HTTP. MODEL is a folder, a .gguf file or a hub id; without it the packaged model
is served. Numbers may be written 1k (1000) or 1K (1024). `--config FILE` reads options from a
YAML file; flags win over it."""


def run(argv: list[str]) -> int:
    """Serve; gives the exit status.

    Raises:
        UsageError, ConfigError, ModelError, EngineStartError: it cannot begin; one line.
    """
    options = options_of(AsyncEngineArgs, ServerSettings)
    for word in argv:
        if word in ("-h", "--help") or word.startswith("--help="):
            print(help_text(USAGE, options, word.partition("=")[2] or None))
            return 0
    args, settings = read_options(argv, options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)  # until the server's loop has its own
    # The heavy half is imported only when there is something to serve.
    status: int = import_module("headrace.server.run").run_server(args, settings)
    return status


def read_options(argv: list[str], options: list[Option]) -> tuple[AsyncEngineArgs, ServerSettings]:
    """The two records that a command line asks for.

    Raises:
        UsageError: an unknown flag or a bad value.
        ConfigError: a value that cannot work.
    """
    parser = make_parser(options)
    given = parse(parser, argv)
    path = given.pop("config", None)
    if path is not None:
        given = {**read_config_file(path, make_parser(options)), **given}
    return (
        AsyncEngineArgs(**_fields(given, AsyncEngineArgs)),
        ServerSettings(**_fields(given, ServerSettings)),
    )


def make_parser(options: list[Option]) -> Parser:
    """A parser whose result holds only what was given."""
    parser = Parser(prog="headrace serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS)
    parser.add_argument("--config", default=argparse.SUPPRESS)
    add_options(parser, options)
    return parser


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _fields(given: dict[str, Any], record: type) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(record)}
    return {name: value for name, value in given.items() if name in names}
