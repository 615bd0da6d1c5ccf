"""From the results of a load to its figures, under the names that are usual in the field."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.bench.load import Run
from headrace.bench.report import Row, percentile_name, summary
from headrace.bench.stream import RequestResult

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token, without the first",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
MAX_REASONS = 5


def figures(
    run: Run, metrics: list[str], percentiles: list[float], limits: dict[str, float]
) -> dict[str, Any]:
    """Counts, rates, and times in milliseconds.

    Args:
        metrics: of ttft, tpot, itl, e2el.
        limits: metric -> seconds; requests within all of them make the goodput.
    """
    done = [result for result in run.results if result.error is None]
    errors = Counter(result.error for result in run.results if result.error is not None)
    num_input = sum(result.num_prompt_tokens for result in done)
    num_output = sum(result.num_output_tokens for result in done)
    found: dict[str, Any] = {
        "duration": run.duration,
        "completed": len(done),
        "failed": len(run.results) - len(done),
        "errors": dict(errors.most_common()),
        "total_input_tokens": num_input,
        "total_cached_tokens": sum(result.num_cached_tokens for result in done),
        "total_output_tokens": num_output,
        "request_throughput": len(done) / run.duration,
        "output_throughput": num_output / run.duration,
        "total_token_throughput": (num_input + num_output) / run.duration,
        "request_goodput": None,
        "client_us_per_output_token": run.client_seconds / num_output * 1e6 if num_output else None,
    }
    if limits:
        good = sum(_is_within(result, limits) for result in done)
        found["request_goodput"] = good / run.duration
    for metric in metrics:
        times = [seconds * 1000 for seconds in times_of(metric, done)]
        for name, value in summary(times, percentiles).items():
            found[f"{name}_{metric}_ms"] = value
    return found


def times_of(metric: str, results: list[RequestResult]) -> list[float]:
    """Seconds, one a request; of itl one a gap. Requests of one token have no tpot."""
    match metric:
        case "ttft":
            return [result.ttft for result in results]
        case "tpot":
            return [tpot for result in results if (tpot := result.tpot) is not None]
        case "itl":
            return [gap for result in results for gap in result.itl]
        case "e2el":
            return [result.e2e_latency for result in results]
    raise ValueError(f"there is no metric {metric!r}")


def details(run: Run) -> dict[str, list[Any]]:
    """Times (seconds) and errors of every request, in the order they were planned."""
    results = run.results
    is_whole = [result.error is None for result in results]
    pairs = list(zip(results, is_whole, strict=True))
    return {
        "input_lens": [result.num_prompt_tokens for result in results],
        "output_lens": [result.num_output_tokens for result in results],
        "ttfts": [result.ttft if whole else None for result, whole in pairs],
        "itls": [result.itl for result in results],
        "e2els": [result.e2e_latency if whole else None for result, whole in pairs],
        "errors_by_request": [result.error for result in results],
    }


def sections(
    found: dict[str, Any], metrics: list[str], percentiles: list[float]
) -> list[tuple[str, list[Row]]]:
    """The same as a table shows it."""
    rows = [
        ("Successful requests", f"{found['completed']:,}"),
        ("Failed requests", f"{found['failed']:,}"),
        ("Duration (s)", f"{found['duration']:.2f}"),
        ("Input tokens", f"{found['total_input_tokens']:,}"),
        ("Output tokens", f"{found['total_output_tokens']:,}"),
        ("Requests/s", f"{found['request_throughput']:.2f}"),
        ("Output tokens/s", f"{found['output_throughput']:,.1f}"),
        ("Total tokens/s", f"{found['total_token_throughput']:,.1f}"),
    ]
    if found["total_cached_tokens"]:
        rows.insert(4, ("Input tokens from the cache", f"{found['total_cached_tokens']:,}"))
    if found["request_goodput"] is not None:
        rows.append(("Goodput (requests/s)", f"{found['request_goodput']:.2f}"))
    if found["client_us_per_output_token"] is not None:
        cost = found["client_us_per_output_token"]
        rows.append(("Processor time of this client (us/token)", f"{cost:.1f}"))
    shown = [("Load", rows)]
    names = ["mean", "median", *(percentile_name(p) for p in percentiles)]
    for metric in metrics:
        values = [(name, found[f"{name}_{metric}_ms"]) for name in names]
        shown.append(
            (TITLES[metric], [(f"{name.capitalize()} (ms)", f"{v:.2f}") for name, v in values])
        )
    return shown


def error_lines(errors: dict[str, int]) -> list[str]:
    """The most frequent reasons, a line each."""
    reasons = list(errors.items())
    lines = [f"{count:>7} x {reason}" for reason, count in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        lines.append(f"        and {len(reasons) - MAX_REASONS} further reasons")
    return lines


def _is_within(result: RequestResult, limits: dict[str, float]) -> bool:
    times = {"ttft": result.ttft, "tpot": result.tpot or 0.0, "e2el": result.e2e_latency}
    return all(times[name] <= limit for name, limit in limits.items())
