"""`bench serve` as a whole, against a scripted server in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main as cli
from tests.bench.scripted import (
    Act,
    Asked,
    ScriptedServer,
    answer,
    scripted_server,
    streams,
    text,
    usage,
)

MODELS = answer(200, b'{"data": [{"id": "mine", "root": "/no/such/model"}, {"id": "other"}]}')
ANSWER = streams(text("a"), text("b", "length"), usage(4, 2))


def serving(act: Act, *, models: bytes = MODELS, busy: int = 0) -> Act:
    """Lists models (after some refusals), and answers the rest by `act`."""
    refusals = [answer(503, b"{}")] * busy

    async def both(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.line.startswith("GET /v1/models "):
            writer.write(refusals.pop() if refusals else models)
        else:
            await act(asked, writer)

    return both


@pytest.fixture
def start() -> Iterator[Callable[[Act], ScriptedServer]]:
    """Serve in a thread of its own, until the test ends."""
    threads: list[tuple[threading.Thread, Callable[[], object]]] = []

    def begin(act: Act) -> ScriptedServer:
        ready = threading.Event()
        found: list[ScriptedServer] = []
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            async with scripted_server(act) as server:
                found.append(server)
                ready.set()
                await stop.wait()

        def work() -> None:
            loop.run_until_complete(serve())
            loop.close()

        thread = threading.Thread(target=work)
        thread.start()
        threads.append((thread, lambda: loop.call_soon_threadsafe(stop.set)))
        assert ready.wait(10)
        return found[0]

    yield begin
    for thread, end in threads:
        end()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "p{i}", "output_tokens": {i + 1}}}\n' for i in range(6)))
    return str(path)


def bench(server: ScriptedServer, prompts: str, *words: str) -> int:
    return cli.main([
        "bench", "serve", "--port", str(server.port), "--dataset-name", "custom",
        "--dataset-path", prompts, "--num-prompts", "6", "--no-shuffle", "--disable-tqdm", *words,
    ])  # fmt: skip


def asked_of(server: ScriptedServer) -> list[dict[str, Any]]:
    return [asked.json() for asked in server.asked if asked.line.startswith("POST")]


def test_every_request_is_sent_once_and_the_result_is_told_and_written(
    start: Any, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(serving(ANSWER, busy=1))
    path = tmp_path / "result.json"
    words = ["--num-warmups", "2", "--json", str(path), "--api-key", "secret"]
    assert bench(server, prompts, *words) == 0
    bodies = asked_of(server)
    assert [body["prompt"] for body in bodies[:2]] == ["p0", "p1"]
    assert sorted(body["prompt"] for body in bodies[2:]) == [f"p{i}" for i in range(6)]
    assert all(body["model"] == "mine" for body in bodies)
    assert all(asked.headers["authorization"] == "Bearer secret" for asked in server.asked)
    out = capsys.readouterr().out
    assert "mine at http://127.0.0.1" in out
    assert "Output tokens:" in out
    result = json.loads(path.read_text())
    [run] = result["runs"]
    assert (run["completed"], run["failed"], run["total_output_tokens"]) == (6, 0, 12)
    assert run["p99_ttft_ms"] >= run["median_ttft_ms"] > 0
    assert result["settings"]["request_rate"] == "inf"
    assert "secret" not in path.read_text()


def test_each_concurrency_is_a_run_and_is_kept(
    start: Any, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(serving(ANSWER))
    words = ["--max-concurrency", "1", "3", "--save-result", "--save-detailed", "--num-warmups",
             "0", "--result-dir", str(tmp_path), "--percentile-metrics", "e2el",
             "--metric-percentiles", "75"]  # fmt: skip
    assert bench(server, prompts, *words) == 0
    assert len(asked_of(server)) == 12
    [path] = tmp_path.glob("headrace-infqps-concurrency-1-3-mine-*.json")
    runs = json.loads(path.read_text())["runs"]
    assert [run["max_concurrency"] for run in runs] == [1, 3]
    assert [len(run["e2els"]) for run in runs] == [6, 6]
    assert "p75_e2el_ms" in runs[0]
    assert "mean_ttft_ms" not in runs[0]
    connections = {a.connection for a in server.asked if a.line.startswith("POST")}
    assert len(connections) == 3
    assert capsys.readouterr().out.count("Successful requests") == 2


def test_failures_are_counted_with_their_reasons(
    start: Any, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.json()["prompt"] in ("p1", "p4"):
            writer.write(answer(503, b'{"error": {"message": "full"}}'))
        elif asked.json()["prompt"] == "p2":
            writer.close()
        else:
            await ANSWER(asked, writer)

    assert bench(start(serving(act)), prompts) == 0
    out = capsys.readouterr().out
    assert "2 x HTTP 503: full" in out
    assert "1 x the connection was closed before an answer" in out


def test_nothing_but_failures_is_status_1(
    start: Any, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def act(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(400, b"no"))

    assert bench(start(serving(act)), prompts, "--num-warmups", "0") == 1
    assert "6 x HTTP 400: no" in capsys.readouterr().out


def test_chats_carry_messages(start: Any, prompts: str) -> None:
    server = start(serving(ANSWER))
    assert bench(server, prompts, "--endpoint", "/v1/chat/completions", "--model", "other") == 0
    body = asked_of(server)[0]
    assert body["messages"] == [{"role": "user", "content": "p0"}]
    assert body["model"] == "other"


@pytest.mark.parametrize(
    ("models", "words", "said"),
    [
        (answer(200, b"{}"), [], "lists no models (HTTP 200); name one with --model"),
        (answer(401, b"{}"), [], "a key with --api-key"),
        (answer(503, b"{}"), ["--ready-timeout", "0.3"], "no server after 0.3 s: HTTP 503"),
        (MODELS, ["--endpoint", "/v1/chat/completions"], "failed a first request: HTTP 500: down"),
    ],
)
def test_server_that_cannot_be_measured_is_one_line_and_status_1(
    models: bytes, words: list[str], said: str, start: Any, prompts: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async def act(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(500, b"down"))

    assert bench(start(serving(act, models=models)), prompts, *words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_tokenizer_that_is_not_here_is_one_line_and_status_2(
    start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(serving(ANSWER))
    assert cli.main(["bench", "serve", "--port", str(server.port)]) == 2
    err = capsys.readouterr().err
    assert "name one with --tokenizer" in err
    assert err.count("\n") == 1
    assert asked_of(server) == []


@pytest.mark.model
def test_random_prompts_come_from_the_tokenizer_that_is_named(
    start: Any, model_dir: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(serving(ANSWER))
    folder = str(model_dir("smollm2-135m-instruct"))
    words = ["--tokenizer", folder, "--num-prompts", "3", "--input-len", "11", "--disable-tqdm"]
    assert cli.main(["bench", "serve", "--port", str(server.port), *words]) == 0
    bodies = asked_of(server)
    assert [len(body["prompt"]) for body in bodies] == [11] * 4
    assert len({tuple(body["prompt"]) for body in bodies}) == 4
    assert cli.main(["bench", "serve", "--port", str(server.port), *words,
                     "--prompts-as-text"]) == 0  # fmt: skip
    assert all(isinstance(body["prompt"], str) for body in asked_of(server)[4:])
