"""Medians, ratios, verdicts and the page, from made-up samples."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from peer_parts.report import render, table
from peer_parts.results import Results, judge
from peer_parts.works import (
    AVX2,
    AVX512,
    CELLS,
    HEADRACE,
    INT8,
    LLAMA_CPP,
    OPENVINO,
    PEERS,
    TARGETS,
    VLLM,
    WORKS,
    Target,
    plan,
)

from tests.benchmarks.runners import COST

RUN = {
    "date": "2026-01-01", "cpu": "A | B", "cores": 2, "isa": "avx2", "headrace": "1",
    "quick": False,
    "limits": {"num_threads": 2, "read_bytes_per_second": 1000.0, "peaks": [
        {"isa": "avx2", "type": "float32", "operations_per_second": 1e9}]},
}  # fmt: skip


@pytest.fixture
def results() -> Results:
    """W2 of the GGUF file: headrace at 30 (median), a peer at 10, another failed."""
    results = Results(runs=[RUN])
    cell = CELLS["W2 gguf"]
    results.begin(cell, COST)
    for rate in (20.0, 30.0, 90.0):
        results.add(cell.key, HEADRACE, {"rate": rate, "seconds": 512.0, "others": 0.01})
    results.add(cell.key, OPENVINO, {"rate": 10.0, "seconds": 800.0, "others": 0.02})
    results.add_facts(cell.key, HEADRACE, {"version": "1"})
    results.add_facts(cell.key, OPENVINO, {"version": "2026.4"})
    results.fail(cell.key, LLAMA_CPP, "it did not compile")
    return results


def target(engine: str = HEADRACE, figure: str = "rate", **demand: object) -> Target:
    return Target("W2", "W2 gguf", engine, figure, **demand)  # type: ignore[arg-type]


def test_ratio_is_of_medians(results: Results) -> None:
    verdict = judge(target(at_least=3, versus=("", OPENVINO)), results)
    assert (verdict.measured, verdict.is_met) == (3.0, True)
    assert judge(target(at_least=3.01, versus=("", OPENVINO)), results).is_met is False


def test_share_is_the_least_time_over_the_time_taken(results: Results) -> None:
    # 256 tokens x 1000 bytes at 1000 bytes per second, in 512 seconds
    assert judge(target(figure="stream", at_least=0.5), results).measured == 0.5


def test_at_most_is_met_from_below(results: Results) -> None:
    assert judge(target(figure="seconds", at_most=512), results).is_met is True
    assert judge(target(figure="seconds", at_most=511), results).is_met is False


@pytest.mark.parametrize(
    ("versus", "why"),
    [(LLAMA_CPP, "llama_cpp: it did not compile"), (VLLM, "vllm: not run")],
)
def test_missing_peer_gives_no_verdict_but_a_reason(
    results: Results, versus: str, why: str
) -> None:
    verdict = judge(target(at_least=1, versus=("", versus)), results)
    assert verdict.is_met is None
    assert math.isnan(verdict.measured)
    assert verdict.why == why


def test_shortened_job_gives_no_verdict(results: Results) -> None:
    results.jobs["W2 gguf"] = dataclasses.asdict(CELLS["W2 gguf"].job.quick())
    verdict = judge(target(at_least=1, versus=("", OPENVINO)), results)
    assert (verdict.is_met, verdict.why) == (None, "the job was shortened")


def test_own_instruction_set_is_headrace_itself(results: Results) -> None:
    assert judge(target(AVX2, at_least=3, versus=("", OPENVINO)), results).measured == 3.0
    assert judge(target(AVX512, at_least=3, versus=("", OPENVINO)), results).is_met is None


def test_log_likelihood_change_is_relative(results: Results) -> None:
    key = "W2 bf16"
    results.begin(CELLS[key], COST)
    results.add_facts(key, HEADRACE, {"log_likelihood": -400.0})
    results.add_facts(key, INT8, {"log_likelihood": -402.0})
    found = Target("W9", key, INT8, "log_likelihood_change", at_most=0.01)
    assert judge(found, results).measured == pytest.approx(0.005)


def test_shares_are_of_the_highest_limits_found_on_the_machine(results: Results) -> None:
    faster = {**RUN["limits"], "read_bytes_per_second": 4000.0}  # type: ignore[dict-item]
    others = {**faster, "num_threads": 1}, {**faster, "num_threads": 8}
    results.add("W2 gguf", LLAMA_CPP, {"rate": 1.0, "seconds": 64.0, "others": 0.0})
    results.runs.append({**RUN, "limits": others[0]})
    results.runs.append({**RUN, "cpu": "another", "limits": others[1]})
    assert results.values("W2 gguf", LLAMA_CPP, "stream") == [4.0]
    results.runs.append({**RUN, "limits": faster})
    results.add("W2 gguf", LLAMA_CPP, {"rate": 1.0, "seconds": 128.0, "others": 0.0})
    assert results.values("W2 gguf", LLAMA_CPP, "stream") == [1.0, 0.5]


def test_results_in_a_file_come_back_whole(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "state.json")
    assert Results.read(tmp_path / "state.json") == results
    assert Results.read(tmp_path / "none.json") == Results()


def test_another_job_under_the_same_name_is_refused(results: Results) -> None:
    cell = CELLS["W2 gguf"]
    results.begin(cell, COST)
    with pytest.raises(ValueError, match="W2 gguf was run with"):
        results.begin(dataclasses.replace(cell, job=cell.job.quick()), COST)


def test_page_tells_figures_reasons_and_verdicts(results: Results) -> None:
    lines = render(results).splitlines()
    assert "All figures come from one run." in lines
    assert any(
        line.startswith("| openvino | 2026.4 | 10 | 10 to 10 | 1 | 3.00x |") for line in lines
    )
    assert any(line.startswith("| headrace | 1 | 30 | 20 to 90 | 3 |  |") for line in lines)
    assert "- llama_cpp: it did not compile" in lines
    stream = "W2 gguf, headrace: at least 60.0% share of the streaming limit"
    assert f"| W2 | {stream} | 50.0% | **missed** |" in lines
    assert any(line.endswith("| not measured (llama_cpp: it did not compile) |") for line in lines)


def test_page_says_that_it_is_made_of_several_runs(results: Results) -> None:
    results.runs.append(RUN)
    assert "The figures come from 2 runs" in render(results)


def test_table_escapes_bars_and_line_breaks() -> None:
    assert table(("a",), [("x|y\nz",)]) == "| a |\n| --- |\n| x\\|y z |"


def test_every_target_names_a_cell_and_a_work_that_exist() -> None:
    for one in TARGETS:
        assert one.work in WORKS
        assert one.cell in CELLS
        assert (one.at_least is None) != (one.at_most is None)
        assert one.versus is None or not one.versus[0] or one.versus[0] in CELLS


def test_plan_of_a_work_names_what_its_targets_need() -> None:
    cells = {cell.key: cell.engines for cell in plan(["W2"], PEERS, "amx")}
    assert cells == {"W2 gguf": (HEADRACE, INT8, OPENVINO, LLAMA_CPP), "W2 bf16": (HEADRACE, VLLM)}


def test_plan_without_peers_keeps_headrace() -> None:
    cells = plan(["W1", "W2", "W3"], [], "amx")
    assert {cell.engines for cell in cells} == {(HEADRACE,), (HEADRACE, INT8)}


def test_plan_of_instruction_sets_adds_engines_to_cells() -> None:
    cells = {cell.key: cell.engines for cell in plan(["W10"], [LLAMA_CPP], "amx")}
    both = (AVX512, AVX2, LLAMA_CPP)
    assert cells == {"W1 gguf": both, "W2 gguf": both}
    cells = {cell.key: cell.engines for cell in plan(["W10"], [LLAMA_CPP], "avx2")}
    assert cells["W1 gguf"] == (HEADRACE, AVX512, LLAMA_CPP)


def test_plan_of_int8_compares_with_weights_as_stored() -> None:
    (cell,) = plan(["W9"], PEERS, "amx")
    assert cell.engines == (HEADRACE, INT8)


def test_plan_of_serving_brings_the_offline_batch_it_is_compared_with() -> None:
    cells = {cell.key: cell.engines for cell in plan(["W5"], PEERS, "amx")}
    assert cells["W1x32 gguf"] == (HEADRACE,)
    assert cells["W5 bf16"] == (HEADRACE, VLLM)
    assert cells["W5 texts"] == (HEADRACE,)
