"""Arrivals, concurrency, and the figures of a load."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from headrace.bench.load import Plan, Run, arrival_times, run_load
from headrace.bench.serve_metrics import details, error_lines, figures, sections
from headrace.bench.stream import RequestResult
from tests.waiting import until

# -- when ------------------------------------------------------------------------------------


def test_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_spread_asked_for(burstiness: float) -> None:
    times = arrival_times(20_001, 50.0, burstiness, 1)
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_arrivals_are_seeded() -> None:
    assert arrival_times(9, 1, 1, 5) == arrival_times(9, 1, 1, 5) != arrival_times(9, 1, 1, 6)
    assert len(arrival_times(1, 1, 1, 0)) == 1


async def test_no_more_than_allowed_are_under_way_and_results_keep_their_order() -> None:
    under_way = peak = num_done = 0

    async def send(body: bytes, length: int | None) -> RequestResult:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await until(lambda: peak >= expected)
        for _ in range(10 - body[0]):  # later ones end first
            await asyncio.sleep(0)
        under_way -= 1
        return RequestResult(num_prompt_tokens=length or 0)

    def done() -> None:
        nonlocal num_done
        num_done += 1

    bodies = [(bytes([i]), i) for i in range(10)]
    for limit, expected in ((3, 3), (None, 10)):
        peak = num_done = 0
        run = await run_load(Plan(bodies, [0.0] * 10, limit), send, done)
        assert [result.num_prompt_tokens for result in run.results] == list(range(10))
        assert (peak, num_done) == (expected, 10)


async def test_requests_are_not_sent_before_they_are_due() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    sent: list[float] = []

    async def send(_body: bytes, _length: int | None) -> RequestResult:
        sent.append(loop.time() - start)
        return RequestResult()

    due = [0.0, 0.05, 0.1]
    run = await run_load(Plan([(b"", None)] * 3, due, None), send, lambda: None)
    assert all(when >= wanted - 0.002 for when, wanted in zip(sent, due, strict=True))
    assert run.duration >= 0.098


# -- figures ---------------------------------------------------------------------------------

RUN = Run(
    [
        RequestResult(10.0, [10.1, 10.3, 10.5], 7, 3, 2),
        RequestResult(11.0, [11.5], 9, 1),
        RequestResult(12.0, [12.1], 5, 1, error="HTTP 503: full"),
        RequestResult(12.0, [12.2, 12.6], 8, 5),
        RequestResult(13.0, error="HTTP 503: full"),
        RequestResult(13.0, error="no whole answer after 1 s"),
    ],
    duration=4.0,
    client_seconds=0.0009,
)


def test_figures_count_only_what_succeeded() -> None:
    found = figures(RUN, [], [], {})
    assert (found["completed"], found["failed"]) == (3, 3)
    assert found["errors"] == {"HTTP 503: full": 2, "no whole answer after 1 s": 1}
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (24, 9)
    assert found["total_cached_tokens"] == 2
    assert found["request_throughput"] == 3 / 4
    assert found["output_throughput"] == 9 / 4
    assert found["total_token_throughput"] == 33 / 4
    assert found["client_us_per_output_token"] == pytest.approx(100)
    assert found["request_goodput"] is None


def test_times_are_in_milliseconds_and_as_defined() -> None:
    found = figures(RUN, ["ttft", "tpot", "itl", "e2el"], [50, 100], {})
    assert found["mean_ttft_ms"] == pytest.approx((100 + 500 + 200) / 3)
    assert found["p50_ttft_ms"] == found["median_ttft_ms"] == pytest.approx(200)
    assert found["mean_tpot_ms"] == pytest.approx((200 + 100) / 2)
    assert found["p100_itl_ms"] == pytest.approx(400)
    assert found["median_itl_ms"] == pytest.approx(200)
    assert found["p100_e2el_ms"] == pytest.approx(600)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 0.15}, 1),
        ({"ttft": 0.25}, 2),
        ({"ttft": 1.0}, 3),
        ({"ttft": 1.0, "tpot": 0.15}, 2),
        ({"e2el": 0.55}, 2),
        ({"ttft": 0.15, "tpot": 0.15}, 0),
    ],
)
def test_goodput_counts_requests_within_all_limits(limits: dict[str, float], good: int) -> None:
    assert figures(RUN, [], [], limits)["request_goodput"] == good / 4


def test_table_shows_failures_goodput_and_times() -> None:
    found = figures(RUN, ["ttft"], [99.9], {"ttft": 1.0})
    shown = sections(found, ["ttft"], [99.9])
    rows = dict(row for _, rows in shown for row in rows)
    assert [heading for heading, _ in shown] == ["Load", "Time to first token"]
    assert rows["Failed requests"] == "3"
    assert rows["Goodput (requests/s)"] == "0.75"
    assert rows["Input tokens from the cache"] == "2"
    assert rows["P99.9 (ms)"] == "499.40"


def test_most_frequent_reasons_come_first_and_few() -> None:
    lines = error_lines({f"reason {i}": 9 - i for i in range(7)})
    assert len(lines) == 6
    assert lines[0].split() == ["9", "x", "reason", "0"]
    assert lines[-1].strip() == "and 2 further reasons"


def test_details_keep_a_place_for_every_request() -> None:
    found = details(RUN)
    assert [len(values) for values in found.values()] == [6] * 6
    assert found["ttfts"][2] is None
    assert found["e2els"][3] == pytest.approx(0.6)
    assert found["errors_by_request"][4] == "HTTP 503: full"


async def test_run_without_an_answer_has_figures_too() -> None:
    run = Run([RequestResult(error="x")], 1.0, 0.0)
    found = figures(run, ["ttft", "itl"], [99], {"ttft": 1.0})
    assert found["completed"] == 0
    assert found["client_us_per_output_token"] is None
    assert math.isnan(found["mean_ttft_ms"])
