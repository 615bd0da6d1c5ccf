"""The benchmarks: what each takes and where it is. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.settings import (
    DatasetSettings,
    LatencySettings,
    PlotSettings,
    ReportSettings,
    ServeSettings,
    StartupSettings,
    ThroughputSettings,
)
from headrace.config.args import EngineArgs


@dataclass(frozen=True)
class Benchmark:
    """One measurement.

    Attributes:
        records: what it takes, in the order of `run`'s arguments.
        run: `module:function`, which gives the exit status; imported on use.
        help: one line.
    """

    records: tuple[type, ...]
    run: str
    help: str


BENCHMARKS = {
    "latency": Benchmark(
        (EngineArgs, LatencySettings, ReportSettings, PlotSettings),
        "headrace.bench.latency:run",
        "Times one batch of random prompts, offline, from the call to the last token.",
    ),
    "throughput": Benchmark(
        (EngineArgs, DatasetSettings, ThroughputSettings, ReportSettings),
        "headrace.bench.throughput:run",
        "Answers many prompts at once, offline: requests and tokens per second.",
    ),
    "serve": Benchmark(
        (ServeSettings, DatasetSettings, ReportSettings, PlotSettings),
        "headrace.bench.serve:run",
        "Puts load on a running OpenAI-compatible server: latencies and throughput.",
    ),
    "startup": Benchmark(
        (EngineArgs, StartupSettings, ReportSettings),
        "headrace.bench.startup:run",
        "Times imports, LLM to its first token, and a server to its first answer.",
    ),
}
