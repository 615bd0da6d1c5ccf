"""`bench latency`: how long one batch takes, offline."""

from __future__ import annotations

import time
from typing import Any

from tqdm import tqdm

from headrace.bench.datasets import make_requests
from headrace.bench.limits import MachineLimits, measure_limits
from headrace.bench.offline import (
    check_lengths,
    make_llm,
    params_of,
    prompts_of,
    streaming_rows,
    vocabulary_of,
)
from headrace.bench.report import (
    PERCENTILES,
    Table,
    about,
    check_outputs,
    load_plots,
    percentile_name,
    summary,
    write_json,
)
from headrace.bench.settings import (
    DatasetSettings,
    LatencySettings,
    PlotSettings,
    ReportSettings,
)
from headrace.config.args import EngineArgs
from headrace.llm import LLM


def run(
    args: EngineArgs, settings: LatencySettings, report: ReportSettings, plot: PlotSettings
) -> int:
    """Measure and tell; gives the exit status.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot begin; one line.
    """
    check_outputs(report.json, plot=plot.plot)
    with make_llm(args) as llm:
        latencies = measure(llm, args, settings, show=not report.disable_tqdm)
        ready, model = llm.llm_engine.ready, llm.model_config.model
    limits = measure_limits(args.num_threads)
    result = {
        "about": about(model=model, isa=ready.isa, weight_bytes=ready.weight_bytes),
        "input_len": settings.input_len,
        "output_len": settings.output_len,
        "batch_size": settings.batch_size,
        **_figures(latencies, settings),
        "latencies": latencies,
        "limits": limits.to_json(),
    }
    print(_table(result, settings, ready.weight_bytes, limits))
    if report.json:
        write_json(report.json, result)
    if plot.plot:
        load_plots().latency_percentiles(plot.plot, {"batch latency": latencies}, "s")
    return 0


def measure(llm: LLM, args: EngineArgs, settings: LatencySettings, *, show: bool) -> list[float]:
    """Seconds of each batch. All hold the same prompts; none finds them in the prefix cache."""
    dataset = DatasetSettings(
        num_prompts=settings.batch_size,
        input_len=settings.input_len,
        output_len=settings.output_len,
    )
    vocabulary = vocabulary_of(llm, has_tokenizer=not args.skip_tokenizer_init)
    requests = make_requests(dataset, vocabulary, args.seed)
    check_lengths(requests, llm.llm_engine.max_model_len)
    prompts, params = prompts_of(requests), params_of(requests, settings.temperature)
    latencies = []
    num_warmups = settings.num_iters_warmup
    for _ in tqdm(range(num_warmups + settings.num_iters), "Batches", disable=not show):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        latencies.append(time.perf_counter() - start)
    return latencies[num_warmups:]


def _figures(latencies: list[float], settings: LatencySettings) -> dict[str, Any]:
    found = summary(latencies, PERCENTILES)
    return {
        "avg_latency": found["mean"],
        "median_latency": found["median"],
        "percentiles": {f"{p:g}": found[percentile_name(p)] for p in PERCENTILES},
        "output_throughput": settings.batch_size * settings.output_len / found["median"],
        "ms_per_step": found["median"] / settings.output_len * 1000,
    }


def _table(
    result: dict[str, Any], settings: LatencySettings, weight_bytes: int, limits: MachineLimits
) -> Table:
    facts = result["about"]
    table = Table("Latency of a batch")
    table.add(
        f"{facts['model']} on {facts['cpu']} ({facts['isa']})",
        [
            ("Prompts", f"{settings.batch_size} x {settings.input_len} tokens"),
            ("Tokens generated for each", f"{settings.output_len}"),
            ("Batches measured", f"{settings.num_iters}"),
        ],
    )
    rows = [("Mean (s)", f"{result['avg_latency']:.4f}")]
    for name, value in result["percentiles"].items():
        rows.append((f"{percentile_name(float(name))} (s)", f"{value:.4f}"))
    rows.append(("Output tokens/s (median)", f"{result['output_throughput']:,.1f}"))
    rows.append(("Per generated token of each (ms, median)", f"{result['ms_per_step']:.2f}"))
    table.add("Latency", rows)
    median, steps = result["median_latency"], settings.output_len
    table.add(
        f"Limits of the machine ({limits.num_threads} threads)",
        limits.rows() + streaming_rows(weight_bytes, steps, median, limits),
    )
    return table
