"""Reads the small JSON files that lie beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import ModelError

MAX_JSON_BYTES = 16 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """A small JSON file that holds one object.

    Raises:
        ModelError: it cannot be read, or is something else.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: should hold a JSON object")
    return value
