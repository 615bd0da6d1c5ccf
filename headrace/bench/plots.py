"""Pictures of results. The one file that imports matplotlib (extra `headrace[bench]`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

SIZE = (7.0, 4.5)


def latency_percentiles(path: str, series: Mapping[str, Sequence[float]], unit: str) -> None:
    """How long the best 0 to 100 % of all took.

    Args:
        series: name -> times, in `unit`.
    """
    figure = Figure(SIZE, layout="constrained")
    _percentiles(figure, {name: times for name, times in series.items() if len(times)}, unit)
    _save(figure, path)


def load_curves(
    path: str, series: Mapping[str, Sequence[float]], throughput: Mapping[int, float]
) -> None:
    """Percentiles of times in ms; beside them tokens per second over concurrency.

    Args:
        throughput: requests under way -> output tokens per second. One point draws no curve.
    """
    if len(throughput) < 2:
        latency_percentiles(path, series, "ms")
        return
    figure = Figure((2 * SIZE[0], SIZE[1]), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    _percentiles(left, {name: times for name, times in series.items() if len(times)}, "ms")
    axes = right.subplots()
    axes.plot(list(throughput), list(throughput.values()), marker="o")
    axes.set(xlabel="requests under way", ylabel="output tokens/s", ylim=(0, None))
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(throughput), [str(number) for number in throughput])
    axes.grid(alpha=0.3)
    _save(figure, path)


def _save(figure: Figure, path: str) -> None:
    figure.savefig(Path(path).expanduser())
    print(f"picture written to {path}", file=sys.stderr)


def _percentiles(figure: Figure, series: Mapping[str, Sequence[float]], unit: str) -> None:
    percentiles = np.linspace(0, 100, 201)
    panels = figure.subplots(len(series) or 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, times) in zip(panels, series.items(), strict=False):
        axes.plot(percentiles, np.percentile(times, percentiles))
        axes.set(ylabel=f"{name} ({unit})", xlim=(0, 100))
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("percentile")
