"""`headrace bench NAME`: flags to records, and on to the benchmark, which is imported only then."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.cli.command_line import help_topic, read_records
from headrace.cli.help import help_text
from headrace.cli.options import UsageError, options_of
from headrace.config.args import EngineArgs, nearest

TABLE = "headrace.bench.table"
"""Names -> what they take and where they are. The benchmarks are no floor below the commands, so
they are reached like the commands themselves: by an import table."""


def run(argv: list[str]) -> int:
    """Measure; gives the exit status.

    Raises:
        UsageError, ConfigError, ModelError, EngineStartError: it cannot begin; one line.
    """
    benchmarks: dict[str, Any] = import_module(TABLE).BENCHMARKS
    if argv and argv[0] in ("-h", "--help"):
        print(_overview(benchmarks))
        return 0
    if not argv or argv[0] not in benchmarks:
        asked = f"there is no benchmark {argv[0]!r}" if argv else "a benchmark is missing"
        hint = nearest(argv[0], benchmarks) if argv else ""
        raise UsageError(f"{asked}{hint}: {', '.join(benchmarks)}; see headrace bench --help")
    name, *words = argv
    benchmark = benchmarks[name]
    options = options_of(*benchmark.records)
    takes_model = EngineArgs in benchmark.records
    if (topic := help_topic(words)) is not None:
        print(help_text(_usage(name, benchmark.help, takes_model), options, topic or None))
        return 0
    records = read_records(
        f"headrace bench {name}", words, options, benchmark.records, takes_model=takes_model,
        model_flag=takes_model,
    )  # fmt: skip
    module, _, function = benchmark.run.partition(":")
    status: int = getattr(import_module(module), function)(*records)
    return status


def _usage(name: str, text: str, takes_model: bool) -> str:
    model = "[MODEL] " if takes_model else ""
    return f"usage: headrace bench {name} {model}[options]\n\n{text}"


def _overview(benchmarks: dict[str, Any]) -> str:
    lines = [f"  {name:<12}{benchmark.help}" for name, benchmark in benchmarks.items()]
    more = "headrace bench NAME --help"
    return "\n".join(["usage: headrace bench NAME [options]", "", *lines, "", more])
