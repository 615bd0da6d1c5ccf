"""Options from a YAML file, checked exactly like flags. The command line wins over it."""

from __future__ import annotations

import json
from typing import Any

import yaml

from headrace.cli.options import Parser, UsageError, parse


def read_config_file(path: str, parser: Parser) -> dict[str, Any]:
    """The options a file gives.

    Args:
        parser: knows the flags; keys of the file are flags without the dashes.

    Raises:
        UsageError: a file that cannot be read, or an option in it that makes no sense.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--config {path}: {reason}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"--config {path}: not valid YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UsageError(f"--config {path}: expected names of flags with values")
    model = data.pop("model", data.pop("model_tag", None))
    try:
        words = [word for key, value in data.items() for word in _words(key, value)]
        options = parse(parser, words)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from None
    return options if model is None else {"model": str(model), **options}


def _words(key: str, value: object) -> list[str]:
    """An entry as it would be written on the command line."""
    flag = "--" + key.replace("_", "-")
    match value:
        case True:
            return [flag]
        case False:
            return ["--no-" + flag[2:]]
        case None:
            return []
        case dict():
            return [f"{flag}={json.dumps(value)}"]
        case list() if key.replace("_", "-").startswith("allowed-"):
            return [f"{flag}={json.dumps(value)}"]
        case list():
            return [flag, *(str(item) for item in value)]
        case _:
            return [f"{flag}={value}"]
