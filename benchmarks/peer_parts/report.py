"""Results as a page of Markdown. Measures and judges nothing."""

from __future__ import annotations

import inspect
import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from peer_parts import floors
from peer_parts.results import Results, Verdict, cells_with_results, judge
from peer_parts.works import HEADRACE, OTHERS, TARGETS, Cell, Job, Target

SHARE_TITLES = {
    "floor": "share of the floor",
    "stream": "share of the streaming limit",
    "peak": "share of the peak of arithmetic",
}
FIGURE_TITLES = {
    "rate": "tokens/s",
    "first_token_seconds": "seconds to first token",
    "serve_ready_seconds": "seconds to `headrace serve` ready",
    "import_seconds": "seconds of `import headrace`",
    "front_us_per_token": "us of front process per token",
    "itl_p99_over_median": "inter-token p99 / median",
    "log_likelihood_change": "change of log-likelihood",
    "median_ttft_ms": "median ms to first token",
    "median_itl_ms": "median ms between tokens",
    **SHARE_TITLES,
}
FURTHER = ("serve_ready_seconds", "import_seconds", "front_us_per_token", "itl_p99_over_median",
           "median_ttft_ms", "median_itl_ms")  # fmt: skip


def render(results: Results) -> str:
    """The whole page."""
    parts = [
        "# headrace beside its peers",
        "Written by `benchmarks/peers.py`; not edited by hand.",
        _about(results),
        "## Targets",
        _targets([judge(target, results) for target in TARGETS]),
        "## Figures",
        "Medians of the turns; in each round every engine has one turn, while the others stand "
        "still. A ratio above 1 means that headrace is faster. The last column is the largest "
        "share of the machine's processor time that strangers took during a turn; a turn with "
        "more than 5 % is tried up to three times, and the quietest try counts.",
    ]
    for cell in cells_with_results(results):
        parts += [f"### {cell.key}: {_title(cell, results)}", _cell(cell, results)]
    parts += ["## How the floors are computed", _formulas(), "## How each engine is run", NOTES]
    return "\n\n".join(parts) + "\n"


NOTES = """\
All get the same random token ids (no tokenizer in the timed part), decode greedily past any end
token, use the same number of threads and keep no prefixes; each answer's length is checked.

- headrace: `LLM.generate`, its engine in a process of its own. Of the GGUF file it multiplies
  activations of 16 bits, where OpenVINO and llama.cpp round them to 8.
- headrace int8: the same with `quantization="int8"`: 8 bits, for the GGUF file those of the
  activations alone, like the peers.
- OpenVINO GenAI: `ContinuousBatchingPipeline` on the GGUF file itself.
- vLLM for the CPU: `LLM.generate`, bfloat16.
- llama.cpp: the C functions behind llama-cpp-python, one batch a step with a token of each
  sequence, since the package's own class answers one prompt at a time and cannot batch. It is
  compiled for this processor.
- Servers get the load of `headrace bench serve` on the chat route, with texts that are as much
  shorter as the chat template is long, so that a prompt has as many tokens as offline. The packages
  of OpenVINO GenAI and llama.cpp bring no server that answers requests side by side."""


def _about(results: Results) -> str:
    rows = [_run_row(number, run) for number, run in enumerate(results.runs, 1)]
    how = "All figures come from one run."
    if len(rows) > 1:
        how = (
            f"The figures come from {len(rows)} runs, between which other things ran on the "
            "machine; within each, the engines took turns. Shares are of the highest limits found "
            "in any run on the same machine."
        )
    head = ("run", "date", "processor", "threads", "headrace", "reads GB/s", "peaks GOP/s")
    return f"{how}\n\n{table(head, rows)}"


def _run_row(number: int, run: dict[str, Any]) -> list[str]:
    limits = run["limits"]
    peaks = ", ".join(
        f"{p['isa']} {p['type']} {p['operations_per_second'] / 1e9:,.0f}" for p in limits["peaks"]
    )
    processor = f"{run['cpu']}, {run['cores']} cores, {run['isa']}"
    quick = " (quick: smaller jobs)" if run["quick"] else ""
    reads = f"{limits['read_bytes_per_second'] / 1e9:.1f}"
    return [f"{number}{quick}", run["date"], processor, str(limits["num_threads"]),
            run["headrace"], reads, peaks]  # fmt: skip


def _targets(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        target = verdict.target
        outcome: dict[bool | None, str] = {
            True: "met",
            False: "**missed**",
            None: f"not measured ({verdict.why})",
        }
        measured = "" if verdict.is_met is None else _number(target, verdict.measured)
        rows.append([target.work, _demand(target), measured, outcome[verdict.is_met]])
    return table(("work", "target", "measured", ""), rows)


def _demand(target: Target) -> str:
    if target.at_least is not None:
        bound = f"at least {_number(target, target.at_least)}"
    else:
        assert target.at_most is not None
        bound = f"at most {_number(target, target.at_most)}"
    what = FIGURE_TITLES[target.figure]
    if target.versus is not None:
        where = f" in {target.versus[0]}" if target.versus[0] else ""
        what = f"of {target.versus[1]}'s {what}{where}"
    return f"{target.cell}, {target.engine}: {bound} {what}"


def _number(target: Target, value: float) -> str:
    if target.versus is not None:
        return f"{value:.2f}x"
    if target.figure in SHARE_TITLES or target.figure == "log_likelihood_change":
        return f"{value:.1%}"
    return f"{value:.3g}"


def _title(cell: Cell, results: Results) -> str:
    job = Job(**results.jobs[cell.key]) if cell.key in results.jobs else cell.job
    if job == cell.job:
        return cell.title
    return f"{cell.title} (shortened to {job.num_prompts} x {job.input_len}, {job.output_len} out)"


def _cell(cell: Cell, results: Results) -> str:
    shares = [s for s in SHARE_TITLES if _is_told(s, cell)]
    further = [f for f in FURTHER if any(results.values(cell.key, e, f)
                                         for e in results.engines(cell.key))]  # fmt: skip
    head = ["engine", "version", cell.unit, "lowest to highest", "turns", "headrace is",
            *(SHARE_TITLES[s] for s in shares), *(FIGURE_TITLES[f] for f in further),
            "others took"]  # fmt: skip
    rows, failed = [], []
    own = results.median(cell.key, HEADRACE, cell.figure)
    for engine in results.engines(cell.key):
        values = results.values(cell.key, engine, cell.figure)
        if engine in results.failures.get(cell.key, {}):
            failed.append(f"- {engine}: {results.failures[cell.key][engine]}")
        if not values:
            continue
        median = statistics.median(values)
        ratio = median / own if cell.kind == "start" else own / median
        version = str(results.facts.get(cell.key, {}).get(engine, {}).get("version", ""))
        rows.append([
            engine, version, _rate(median), f"{_rate(min(values))} to {_rate(max(values))}",
            str(len(values)), "" if engine == HEADRACE or math.isnan(ratio) else f"{ratio:.2f}x",
            *(f"{results.median(cell.key, engine, s):.1%}" for s in shares),
            *(_further(results.median(cell.key, engine, f)) for f in further),
            f"{max(results.values(cell.key, engine, OTHERS)):.0%}",
        ])  # fmt: skip
    parts = [table(head, rows)] if rows else []
    if failed:
        parts.append("Without (further) figures:\n\n" + "\n".join(failed))
    return "\n\n".join(parts)


def _is_told(share: str, cell: Cell) -> bool:
    """Of a single stream the streaming limit, of prefill the peak, of any offline job the floor."""
    if cell.kind != "offline":
        return False
    is_prefill = cell.unit == "input tokens/s"
    return {"floor": True, "peak": is_prefill,
            "stream": not is_prefill and cell.job.num_prompts == 1}[share]  # fmt: skip


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _further(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _formulas() -> str:
    """The same words as the code's."""
    text = inspect.cleandoc(floors.__doc__ or "").partition("\n\n")[2]
    more = (
        "The streaming limit is the time of reading W once for each output token; the peak of "
        "arithmetic the time of the prefill's operations alone. The peak is the fastest float "
        "multiply-add of any width that the processor has (tiles in bfloat16 where there are "
        "some); kernels that multiply 8-bit integers may exceed it."
    )
    return re.sub(r"(?m)^    (?=\S)", "    ", text) + "\n\n" + more


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown. No cell may hold a line break; bars are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
