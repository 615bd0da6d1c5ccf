"""What a request took: in its usage, in the last chunk of its stream, and in the request log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.outputs import RequestMetrics
from headrace.server.access.caller import Caller
from headrace.server.access.open_requests import OpenRequest
from headrace.server.observe import request_log
from headrace.server.observe.request_log import RequestLog
from headrace.server.protocol.usage import usage_details
from tests.server.conftest import frames_of
from tests.server.fakes import FakeEngine, ScriptedStream
from tests.waiting import wait_until

ClientOf = Callable[..., httpx.AsyncClient]
FIELDS = ["queue_ms", "prefill_ms", "decode_ms", "time_to_first_token_ms", "total_ms",
          "prefill_tokens", "cached_tokens", "generated_tokens", "preemptions", "draft_tokens",
          "accepted_draft_tokens"]  # fmt: skip


def test_times_are_the_longest_and_counts_are_sums() -> None:
    first = RequestMetrics(
        100.0, queued_ts=1.0, scheduled_ts=1.5, first_token_ts=2.0, last_token_ts=4.0,
        first_token_latency=1.25, e2e_latency=3.5, num_prefill_tokens=5, num_cached_tokens=2,
        num_generation_tokens=7, num_preemptions=1, num_draft_tokens=4, num_accepted_tokens=3,
    )  # fmt: skip
    second = RequestMetrics(100.0, queued_ts=1.0, scheduled_ts=3.0, num_generation_tokens=1)
    found = usage_details([first, second])
    assert [getattr(found, name) for name in FIELDS] == [
        2000.0, 500.0, 2000.0, 1250.0, 3500.0, 5, 2, 8, 1, 4, 3,
    ]  # fmt: skip
    assert usage_details([]).total_ms is None


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_usage_has_details_when_asked_for(
    client: httpx.AsyncClient, route: str, stream: bool
) -> None:
    prompt: dict[str, Any] = {"prompt": "ab"}
    if route != "/v1/completions":
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    ask = {**prompt, "stream": stream, "include_usage_details": True}
    answer = await client.post(route, json=ask)
    assert answer.status_code == 200, answer.text
    if stream:
        *chunks, last, done = frames_of(answer.text)
        assert done == "[DONE]"
        assert last["choices"] == []
        assert not any(chunk.get("usage") for chunk in chunks)
        usage = last["usage"]
    else:
        usage = answer.json()["usage"]
    assert list(usage["details"]) == FIELDS
    assert usage["details"]["generated_tokens"] == usage["completion_tokens"] == 6
    plain = await client.post("/v1/completions", json={"prompt": "ab"})
    assert "details" not in plain.json()["usage"]


async def test_operator_can_switch_details_on_for_everybody(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, enable_usage_details=True)
    answer = await client.post("/v1/completions", json={"prompt": ["ab", "c"]})
    assert answer.json()["usage"]["details"]["generated_tokens"] == 12


# -- the request log -------------------------------------------------------------------------


def ended(number: int, **metrics: Any) -> OpenRequest:
    request = OpenRequest(f"cmpl-{number}", "/v1/completions", Caller(time.time()), 1, 3, 19)
    stream = ScriptedStream(1)
    stream.metrics = RequestMetrics(time.time(), **metrics)
    request.streams.append(stream)
    return request


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_has_a_line_per_request(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(str(path))
    log.add(ended(1, num_generation_tokens=2, finish_reasons=["stop"]))
    log.close()
    (line,) = lines(path)
    assert line["time"] >= line["arrived"]
    assert line["seconds"] >= 0
    assert list(line.pop("details")) == FIELDS
    del line["time"], line["arrived"], line["seconds"]
    assert line == {
        "id": "cmpl-1", "key": None, "route": "/v1/completions", "finish_reasons": ["stop"],
        "num_answers": 1, "prompt_tokens": 3, "completion_tokens": 2,
    }  # fmt: skip


def test_last_word_of_a_request_that_was_cut_short_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    now = 0.0
    log = RequestLog(str(path), clock=lambda: now)
    request = ended(1)
    log.add(request)
    time.sleep(0.3)
    assert path.read_text() == ""
    request.streams[0].metrics.num_generation_tokens = 5
    now = request_log.LAST_WORD_SECONDS
    log.close()
    assert lines(path)[0]["completion_tokens"] == 5


@pytest.mark.parametrize("by_signal", [True, False])
def test_log_goes_on_in_a_new_file_when_the_old_one_was_moved(
    tmp_path: Path, by_signal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "LAST_WORD_SECONDS", 0.02)
    path = tmp_path / "requests.jsonl"
    log = RequestLog(str(path))
    log.add(ended(1))
    wait_until(lambda: path.read_text() != "")
    path.rename(tmp_path / "old.jsonl")
    if by_signal:
        log.reopen()
    log.add(ended(2))
    log.close()
    assert [line["id"] for line in lines(tmp_path / "old.jsonl")] == ["cmpl-1"]
    assert [line["id"] for line in lines(path)] == ["cmpl-2"]


def test_slow_disk_loses_lines_and_says_so_and_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_log, "MAX_WAITING", 3)
    monkeypatch.setattr(request_log, "LAST_WORD_SECONDS", 0.0)
    may_write = threading.Event()
    write = RequestLog._write

    def slow_write(log: RequestLog, data: bytes) -> None:
        may_write.wait()
        write(log, data)

    monkeypatch.setattr(RequestLog, "_write", slow_write)
    log = RequestLog(str(tmp_path / "requests.jsonl"))
    for number in range(20):
        log.add(ended(number))
    may_write.set()
    log.close()
    found = len(lines(tmp_path / "requests.jsonl"))
    assert 3 <= found < 20
    assert f"{20 - found} lines of the request log were left out" in caplog.text


def test_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"request_log .*: Is a directory"):
        RequestLog(str(tmp_path))
