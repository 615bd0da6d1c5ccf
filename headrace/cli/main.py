"""The command `headrace`: finds the subcommand and turns what goes wrong into one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import headrace
from headrace.cli.options import UsageError
from headrace.config.args import nearest
from headrace.errors import ConfigError, EngineStartError, HeadraceError, ModelError

COMMANDS = {
    "serve": ("headrace.cli.serve", "answer over HTTP, as an OpenAI-compatible server"),
    "verify": ("headrace.cli.verify", "check that answers depend on nothing but their requests"),
    "bench": ("headrace.cli.bench", "measure latency, throughput, a server, or starting"),
}
"""Name -> module with a function `run(argv) -> status`, and a line of help. Imported on use."""

USAGE_STATUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status: 0 fine, 1 failed, 2 it could not begin as asked."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except (UsageError, ConfigError, ModelError, EngineStartError) as error:
        _complain(words, error)
        return USAGE_STATUS
    except HeadraceError as error:
        _complain(words, error)
        return 1
    except KeyboardInterrupt:
        return 130


def _complain(words: list[str], error: Exception) -> None:
    name = f"headrace {words[0]}" if words and words[0] in COMMANDS else "headrace"
    print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr)


def _run(words: list[str]) -> int:
    if words and words[0] in ("-v", "--version"):
        print(headrace.__version__)
        return 0
    if words and words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if not words:
        raise UsageError(f"a command is missing: {', '.join(COMMANDS)}; see headrace --help")
    if words[0] not in COMMANDS:
        raise UsageError(f"there is no command {words[0]!r}{nearest(words[0], COMMANDS)}")
    module, _help_line = COMMANDS[words[0]]
    status: int = import_module(module).run(words[1:])
    return status


def _help() -> str:
    lines = [f"  {name:<12}{text}" for name, (_module, text) in COMMANDS.items()]
    more = ["headrace --version", "headrace COMMAND --help"]
    return "\n".join(["usage: headrace COMMAND [options]", "", *lines, "", *more])


if __name__ == "__main__":
    sys.exit(main())
