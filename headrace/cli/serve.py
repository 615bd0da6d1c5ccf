"""`headrace serve [MODEL]`: flags to options, and on to the server, which is imported only then."""

from __future__ import annotations

import signal
from importlib import import_module
from types import FrameType

from headrace.cli.command_line import help_topic, read_records
from headrace.cli.help import help_text
from headrace.cli.options import Option, options_of
from headrace.config.args import AsyncEngineArgs
from headrace.server.settings.server import ServerSettings

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
    if (topic := help_topic(argv)) is not None:
        print(help_text(USAGE, options, topic or None))
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
    records = (AsyncEngineArgs, ServerSettings)
    args, settings = read_records("headrace serve", argv, options, records)
    return args, settings


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
