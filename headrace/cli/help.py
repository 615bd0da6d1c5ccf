"""The texts of --help: all groups in short, or one group or flag in full."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from itertools import groupby

from headrace.cli.options import Option, UsageError
from headrace.config.args import nearest

WIDTH = 98


def help_text(usage: str, options: list[Option], topic: str | None) -> str:
    """What to print.

    Args:
        topic: None for an overview; a group, a flag, or `all` for details.

    Raises:
        UsageError: no such group or flag.
    """
    if topic is None:
        return _overview(usage, options)
    wanted = topic.lstrip("-").replace("_", "-").lower()
    if wanted == "all":
        chosen = options
    else:
        chosen = [option for option in options if option.group.lower() == wanted]
    if not chosen:
        chosen = [option for option in options if option.flag[2:] == wanted]
    if not chosen:
        known = [option.group for option in options] + [option.flag[2:] for option in options]
        raise UsageError(f"--help={topic}: no such group or flag{nearest(wanted, known)}")
    return "\n".join(
        f"{group}:\n" + "\n".join(_details(option) for option in members)
        for group, members in groupby(sorted(chosen, key=_order(options)), lambda o: o.group)
    )


def _overview(usage: str, options: list[Option]) -> str:
    parts = [usage, ""]
    for group, members in groupby(sorted(options, key=_order(options)), lambda o: o.group):
        flags = " ".join(option.flag for option in members)
        parts.append(f"{group}:")
        parts.append(
            textwrap.fill(
                flags,
                WIDTH,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        )
    parts += ["", "--help=GROUP, --help=FLAG or --help=all tell more."]
    return "\n".join(parts)


def _order(options: list[Option]) -> Callable[[Option], int]:
    groups = list(dict.fromkeys(option.group for option in options))
    return lambda option: groups.index(option.group)


def _details(option: Option) -> str:
    value = {"bool": "", "list": " VALUE ...", "json": " JSON"}.get(option.kind, " VALUE")
    if option.choices:
        value = " {" + ",".join(option.choices) + "}"
    flag = option.flag
    if option.kind == "bool":
        flag += f", --no-{option.flag[2:]}"
    default = option.default
    shown = "" if default is None or default in ([], {}, "") else f" (default: {_show(default)})"
    text = textwrap.fill(
        option.help + shown, WIDTH, initial_indent="      ", subsequent_indent="      "
    )
    return f"  {', '.join([flag, *option.short])}{value}\n{text}"


def _show(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
