"""Results as a table, as a JSON file, as a picture. Measures nothing."""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from os import cpu_count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import headrace
from headrace.errors import ConfigError

Row: TypeAlias = tuple[str, str]
WIDTH = 64
PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)


@dataclass
class Table:
    """Names and values under headings, printed as they are added to."""

    title: str
    sections: list[tuple[str, Sequence[Row]]] = field(default_factory=list)

    def add(self, heading: str, rows: Sequence[Row]) -> None:
        """A group of rows; nothing, if there are none."""
        if rows:
            self.sections.append((heading, rows))

    def __str__(self) -> str:
        lines = [f" {self.title} ".center(WIDTH, "=")]
        for heading, rows in self.sections:
            lines.append(f" {heading} ".center(WIDTH, "-"))
            for name, value in rows:
                lines.append(f"{name + ':':<{WIDTH - 20}}{value:>20}")
        lines.append("=" * WIDTH)
        return "\n".join(lines)


def summary(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles (`p99`, between neighbours linearly).

    All are nan when there are no values.
    """
    if not len(values):
        names = ["mean", "median", "std", *(percentile_name(p) for p in percentiles)]
        return dict.fromkeys(names, math.nan)
    data = np.asarray(values, float)
    found = {"mean": data.mean(), "median": np.median(data), "std": data.std()}
    for percentile in percentiles:
        found[percentile_name(percentile)] = np.percentile(data, percentile)
    return {name: float(value) for name, value in found.items()}


def percentile_name(percentile: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{percentile:g}"


def about(**facts: Any) -> dict[str, Any]:
    """What a result belongs to: versions, machine, time, and the facts given."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": cpu_count(),
        **facts,
    }


def cpu_name() -> str:
    """The processor, as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def check_outputs(*paths: str | None, plot: str | None = None) -> None:
    """Find out before a long run whether its result can be written.

    Raises:
        ConfigError: a folder that does not exist, or a picture without matplotlib.
    """
    for path in (*paths, plot):
        if path is not None and not Path(path).expanduser().absolute().parent.is_dir():
            raise ConfigError(f"{path}: there is no such folder to write to")
    if plot is None:
        return
    if not plot.endswith(".png"):
        raise ConfigError(f"plot must name a .png file, got {plot!r}")
    if find_spec("matplotlib") is None:
        raise ConfigError("plot needs matplotlib: pip install 'headrace[bench]'")


def write_json(path: str, result: dict[str, Any]) -> None:
    """Write a result; numbers that JSON cannot hold become null.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        text = json.dumps(_plain(result), indent=2) + "\n"
        Path(path).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    print(f"result written to {path}", file=sys.stderr)


def load_plots() -> Any:
    """The module `bench.plots`, imported only when something is to be drawn: it is large."""
    return import_module("headrace.bench.plots")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
