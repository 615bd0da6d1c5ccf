"""`bench startup`: what starting costs, in fresh processes with the files in the page cache."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tqdm import tqdm

from headrace.bench.report import Table, about, check_outputs, write_json
from headrace.bench.settings import ReportSettings, StartupSettings, given_options
from headrace.config.args import EngineArgs
from headrace.errors import EngineStartError

FIRST_TOKEN = """
import json, sys
from headrace import LLM, SamplingParams
with open(sys.argv[1]) as file:
    options = json.load(file)
prompt = {"prompt_token_ids": [1]} if options.get("skip_tokenizer_init") else "Hello"
with LLM(**options) as llm:
    llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
    print("token", flush=True)
"""
POLL_INTERVAL = 0.005
ANSWER_TIMEOUT = 60.0
END_TIMEOUT = 60.0

IMPORT = "import headrace"
SERVER_IMPORT = "import headrace.server.app"
LLM_FIRST = "LLM class to first token"
SERVE_READY = "headrace serve to ready"
SERVE_FIRST = "headrace serve to first answer"


def run(args: EngineArgs, settings: StartupSettings, report: ReportSettings) -> int:
    """Measure and tell; gives the exit status.

    Raises:
        ConfigError: the result cannot be written.
        EngineStartError: a process did not start; with its own last words.
    """
    check_outputs(report.json)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        options = Path(folder) / "options.json"
        options.write_text(json.dumps(given_options(args)), encoding="utf-8")
        times = measure(options, settings, show=not report.disable_tqdm)
    result = {
        "about": about(model=args.model),
        "medians": {name: statistics.median(values) for name, values in times.items()},
        "times": times,
    }
    table = Table("Starting")
    table.add(
        f"Seconds, median of {settings.num_iters} (fastest to slowest)",
        [
            (name, f"{statistics.median(v):.3f} ({min(v):.3f}-{max(v):.3f})")
            for name, v in times.items()
        ],
    )
    print(table)
    if report.json:
        write_json(report.json, result)
    return 0


def measure(options: Path, settings: StartupSettings, *, show: bool) -> dict[str, list[float]]:
    """What -> seconds of each start, without the warm-ups.

    Args:
        options: JSON file of the engine's options.
    """
    times: dict[str, list[float]] = {}
    kinds: list[Callable[[], dict[str, float]]] = [
        _time_imports,
        lambda: {LLM_FIRST: _time_llm(options)},
        lambda: _time_server(options),
    ]
    num_rounds = settings.num_iters_warmup + settings.num_iters
    with tqdm(total=num_rounds * len(kinds), desc="Starts", disable=not show) as bar:
        for round_number in range(num_rounds):
            for kind in kinds:
                for name, seconds in kind().items():
                    if round_number >= settings.num_iters_warmup:
                        times.setdefault(name, []).append(seconds)
                bar.update()
    return times


def _time_imports() -> dict[str, float]:
    """Beyond what an interpreter that imports nothing takes."""
    bare, package, server = (_time_code(code) for code in ("pass", IMPORT, SERVER_IMPORT))
    return {IMPORT: package - bare, SERVER_IMPORT: server - bare}


def _time_code(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def _time_llm(options: Path) -> float:
    start = time.perf_counter()
    with _process(["-c", FIRST_TOKEN, str(options)]) as (process, log):
        assert process.stdout is not None
        is_started = process.stdout.readline() == b"token\n"
        seconds = time.perf_counter() - start
        process.wait(END_TIMEOUT)
        if not is_started:
            raise EngineStartError(f"the LLM class did not start: {_last_words(log)}")
        return seconds


def _time_server(options: Path) -> dict[str, float]:
    """From the start of the process to the first 200 of /health, and to the first answer."""
    port = _free_port()
    command = ["-m", "headrace.cli.main", "serve", "--config", str(options),
               "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    start = time.perf_counter()
    with _process(command) as (process, log):
        while not _is_ready(port):
            if process.poll() is not None:
                raise EngineStartError(f"the server did not start: {_last_words(log)}")
            time.sleep(POLL_INTERVAL)
        ready = time.perf_counter() - start
        body = json.dumps({"prompt": [1], "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
                answer.read()
        except OSError as error:
            raise EngineStartError(f"the server gave no answer: {error}") from None
        return {SERVE_READY: ready, SERVE_FIRST: time.perf_counter() - start}


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            answer.read()
    except OSError:  # refused, or an answer that it is still starting
        return False
    return True


@contextlib.contextmanager
def _process(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A fresh interpreter and the file its standard error goes to; ended and waited for."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        with process:
            try:
                yield process, log
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it end as it would; the engine with it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
