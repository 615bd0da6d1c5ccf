"""`headrace verify [MODEL]`: flags to records, and on to the battery, imported only then."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.cli.command_line import help_topic, read_records
from headrace.cli.help import help_text
from headrace.cli.options import options_of
from headrace.config.args import EngineArgs

SETTINGS = "headrace.verify.settings"
RUN = "headrace.verify.run"
"""The battery is no floor below the commands, so it is reached like the commands themselves."""

USAGE = """usage: headrace verify [MODEL] [options]

Asks the same questions alone, in a batch, in pieces, with cached prefixes, preempted, among
neighbours that are aborted, and on one and two threads, and compares tokens and
log-probabilities bit for bit. The exit status is 1 when something differs, or when a run did not
do what it is there for."""


def run(argv: list[str]) -> int:
    """Verify; gives the exit status.

    Raises:
        UsageError, ConfigError, ModelError: it cannot begin; one line.
    """
    settings: Any = import_module(SETTINGS)
    records = (EngineArgs, settings.VerifySettings)
    taken = {option.name for option in options_of(settings.VerifySettings)}
    taken.update(settings.ENGINE_OPTIONS)
    options = [option for option in options_of(*records) if option.name in taken]
    if (topic := help_topic(argv)) is not None:
        print(help_text(USAGE, options, topic or None))
        return 0
    args, asked = read_records("headrace verify", argv, options, records, model_flag=True)
    status: int = import_module(RUN).run(args, asked)
    return status
