"""`bench throughput`: how much is answered per second when all prompts come at once, offline."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench.datasets import make_requests
from headrace.bench.limits import MachineLimits, measure_limits
from headrace.bench.offline import (
    check_lengths,
    make_llm,
    params_of,
    prompts_of,
    vocabulary_of,
    warm_up,
)
from headrace.bench.report import Table, about, check_outputs, write_json
from headrace.bench.settings import DatasetSettings, ReportSettings, ThroughputSettings
from headrace.config.args import EngineArgs
from headrace.llm import LLM


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts answered once."""

    elapsed_time: float
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int


def run(
    args: EngineArgs,
    dataset: DatasetSettings,
    settings: ThroughputSettings,
    report: ReportSettings,
) -> int:
    """Measure and tell; gives the exit status.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot begin; one line.
    """
    check_outputs(report.json)
    with make_llm(args) as llm:
        passes = measure(llm, args, dataset, settings, show=not report.disable_tqdm)
        ready, model = llm.llm_engine.ready, llm.model_config.model
    limits = measure_limits(args.num_threads)
    result = {
        "about": about(model=model, isa=ready.isa, weight_bytes=ready.weight_bytes),
        "dataset": asdict(dataset),
        **figures(passes),
        "passes": [asdict(one) for one in passes],
        "limits": limits.to_json(),
    }
    print(_table(result, limits))
    if report.json:
        write_json(report.json, result)
    return 0


def measure(
    llm: LLM,
    args: EngineArgs,
    dataset: DatasetSettings,
    settings: ThroughputSettings,
    *,
    show: bool,
) -> list[Pass]:
    """One record per pass. All take the same prompts; none finds an earlier one's in the cache."""
    vocabulary = vocabulary_of(llm, has_tokenizer=not args.skip_tokenizer_init)
    requests = make_requests(dataset, vocabulary, args.seed)
    check_lengths(requests, llm.llm_engine.max_model_len)
    prompts = prompts_of(requests)
    params = params_of(requests, settings.temperature, ignore_eos=settings.ignore_eos)
    warm_up(llm)
    passes = []
    for _ in range(settings.num_iters):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=show)
        elapsed = time.perf_counter() - start
        num_input = sum(len(output.prompt_token_ids) for output in outputs)
        num_output = sum(len(output.outputs[0].token_ids) for output in outputs)
        passes.append(Pass(elapsed, len(outputs), num_input, num_output))
    return passes


def figures(passes: list[Pass]) -> dict[str, Any]:
    """Rates of the pass of median length."""
    middle = sorted(passes, key=lambda one: one.elapsed_time)[(len(passes) - 1) // 2]
    tokens = middle.num_input_tokens + middle.num_output_tokens
    return {
        **asdict(middle),
        "total_num_tokens": tokens,
        "requests_per_second": middle.num_requests / middle.elapsed_time,
        "tokens_per_second": tokens / middle.elapsed_time,
        "output_tokens_per_second": middle.num_output_tokens / middle.elapsed_time,
        "median_elapsed_time": statistics.median(one.elapsed_time for one in passes),
    }


def _table(result: dict[str, Any], limits: MachineLimits) -> Table:
    facts = result["about"]
    times = [one["elapsed_time"] for one in result["passes"]]
    table = Table("Offline throughput")
    table.add(
        f"{facts['model']} on {facts['cpu']} ({facts['isa']})",
        [
            ("Requests", f"{result['num_requests']:,}"),
            ("Input tokens", f"{result['num_input_tokens']:,}"),
            ("Output tokens", f"{result['num_output_tokens']:,}"),
            ("Passes", f"{len(times)} ({min(times):.2f} to {max(times):.2f} s)"),
        ],
    )
    table.add(
        "Throughput",
        [
            ("Time (s)", f"{result['elapsed_time']:.2f}"),
            ("Requests/s", f"{result['requests_per_second']:,.2f}"),
            ("Output tokens/s", f"{result['output_tokens_per_second']:,.1f}"),
            ("Total tokens/s", f"{result['tokens_per_second']:,.1f}"),
        ],
    )
    table.add(f"Limits of the machine ({limits.num_threads} threads)", limits.rows())
    return table
