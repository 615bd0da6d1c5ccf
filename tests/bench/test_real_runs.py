"""Each benchmark once, for real and as small as can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main as cli
from tests.e2e.conftest import Server

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(model_dir: Callable[[str], Path]) -> str:
    return str(model_dir("smollm2-135m-instruct-gguf"))


def run(tmp_path: Path, *words: str) -> dict[str, Any]:
    path = tmp_path / "result.json"
    assert cli.main(["bench", *words, "--json", str(path), "--disable-tqdm"]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["about"]["headrace"] == "0.1.0"
    return result


def test_latency_of_a_small_batch(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input-len", "8", "--output-len", "4", "--batch-size", "2", "--num-iters", "3",
             "--num-iters-warmup", "1", "--kv-cache-memory-bytes", "64M"]  # fmt: skip
    result = run(tmp_path, "latency", "--model", model, *words)
    assert len(result["latencies"]) == 3
    assert min(result["latencies"]) <= result["percentiles"]["50"] <= max(result["latencies"])
    assert result["about"]["weight_bytes"] > 50e6
    assert result["limits"]["read_bytes_per_second"] > 0
    assert "Latency of a batch" in capsys.readouterr().out


def test_throughput_of_few_prompts(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input-len", "8", "--output-len", "4", "--num-prompts", "3", "--num-iters", "2",
             "--kv-cache-memory-bytes", "64M"]  # fmt: skip
    result = run(tmp_path, "throughput", model, *words)
    assert (result["num_requests"], result["num_input_tokens"]) == (3, 24)
    assert result["num_output_tokens"] == 12
    assert result["tokens_per_second"] == pytest.approx(36 / result["elapsed_time"])
    assert len(result["passes"]) == 2
    assert "Offline throughput" in capsys.readouterr().out


def test_request_that_does_not_fit_is_one_line_and_status_2(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input-len", "60", "--output-len", "10", "--max-model-len", "64",
             "--kv-cache-memory-bytes", "64M"]  # fmt: skip
    assert cli.main(["bench", "throughput", model, *words]) == 2
    err = capsys.readouterr().err
    assert "take up to 70 tokens, the context holds 64" in err
    assert "Traceback" not in err


def test_startup_is_timed_in_fresh_processes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--num-iters", "1", "--num-iters-warmup", "0", "--kv-cache-memory-bytes", "64M"]
    result = run(tmp_path, "startup", model, *words)
    medians = result["medians"]
    assert list(medians) == [
        "import headrace", "import headrace.server.app", "LLM class to first token",
        "headrace serve to ready", "headrace serve to first answer",
    ]  # fmt: skip
    assert 0 < medians["headrace serve to ready"] < medians["headrace serve to first answer"]
    assert "Starting" in capsys.readouterr().out


def test_startup_that_fails_is_one_line_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = ["--num-iters", "1", "--num-iters-warmup", "0", "--disable-tqdm"]
    assert cli.main(["bench", "startup", str(tmp_path / "empty"), *words]) == 2
    err = capsys.readouterr().err
    assert "did not start: " in err
    assert "the folder is empty" in err
    assert err.count("\n") == 1


def test_load_on_a_real_server(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server([model, "--kv-cache-memory-bytes", "64M"], tmp_path / "log")
    try:
        server.wait_ready()
        words = ["--port", str(server.port), "--num-prompts", "4", "--input-len", "8",
                 "--output-len", "5", "--ignore-eos"]  # fmt: skip
        result = run(tmp_path, "serve", *words)
        chat = run(tmp_path, "serve", *words, "--endpoint", "/v1/chat/completions")
    finally:
        assert server.stop() == 0
    [completions], [chats] = result["runs"], chat["runs"]
    assert (completions["completed"], completions["failed"]) == (4, 0)
    assert (completions["total_input_tokens"], completions["total_output_tokens"]) == (32, 20)
    assert 0 < completions["median_ttft_ms"] < completions["median_e2el_ms"]
    assert (chats["completed"], chats["total_output_tokens"]) == (4, 20)
    assert chats["total_input_tokens"] > 32  # the template's own
    assert "Time to first token" in capsys.readouterr().out
