"""The engines of a trial, each in its own process with its own Python: start, run, stop."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.bench.startup import IMPORT, SERVE_READY
from peer_parts.processes import Child, EngineFailed, cpu_seconds
from peer_parts.works import FIRST_TOKEN, RATE, Cell

RUNNERS = Path(__file__).parent.parent / "peer_runners"
POLL_INTERVAL = 0.02
CHAT_TIMEOUT = 60.0
WARMUP = {"prompts": [[1000, 1001, 1002, 1003]], "output_len": 2}

STARTUP_NAMES = {"import_seconds": IMPORT, "serve_ready_seconds": SERVE_READY}

Values = dict[str, float]
Prompts = list[list[int]]


@dataclass(frozen=True)
class Launch:
    """How to start one engine.

    Attributes:
        command: the runner's, up to where its own arguments would begin.
        server: command of its OpenAI-compatible server, without host and port; empty: it has none.
        startup: command that writes further times of starting to the JSON file it is given last.
        start_timeout, run_timeout: seconds.
    """

    name: str
    command: Sequence[str]
    model: str
    threads: int
    log: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    server: Sequence[str] = ()
    startup: Sequence[str] = ()
    start_timeout: float = 900.0
    run_timeout: float = 900.0

    def child(self) -> Child:
        return Child(self.command, self.env, self.log)

    def order(self, cell: Cell) -> dict[str, Any]:
        """The first line to a runner."""
        job = cell.job
        return {"model": self.model, "threads": self.threads, "max_seqs": job.num_prompts,
                "max_len": job.max_len, "settings": dict(self.settings)}  # fmt: skip


class Engine(Protocol):
    """One engine in one cell. `run` may be called any number of times between start and stop;
    between these calls it takes no processor time."""

    def start(self) -> dict[str, Any]:
        """Facts about it, with its version."""

    def run(self, prompts: Prompts) -> Values:
        """Do the cell's job once."""

    def stop(self) -> None:
        """Leave no process behind; also after a failure."""


def make_engine(launch: Launch, cell: Cell) -> Engine:
    """For the kind of the cell."""
    kinds: dict[str, type[OfflineEngine] | type[StartingEngine] | type[ServingEngine]] = {
        "offline": OfflineEngine, "start": StartingEngine, "serving": ServingEngine,
    }  # fmt: skip
    return kinds[cell.kind](launch, cell)


class OfflineEngine:
    """Loaded once, held still between its turns."""

    def __init__(self, launch: Launch, cell: Cell) -> None:
        self._launch, self._cell = launch, cell
        self._child: Child | None = None

    def start(self) -> dict[str, Any]:
        self._child = self._launch.child()
        self._child.say(self._launch.order(self._cell))
        loaded = self._child.hear(self._launch.start_timeout)
        self._child.say(WARMUP)
        self._child.hear(self._launch.start_timeout)
        self._child.pause()
        return dict(loaded["facts"])

    def run(self, prompts: Prompts) -> Values:
        assert self._child is not None
        self._child.resume()
        self._child.say({"prompts": prompts, "output_len": self._cell.job.output_len})
        done = self._child.hear(self._launch.run_timeout)
        self._child.pause()
        check_lengths(done["output_lens"], self._cell)
        return {"seconds": done["seconds"], RATE: tokens_of(self._cell) / done["seconds"]}

    def stop(self) -> None:
        if self._child is not None:
            self._child.end()


def check_lengths(lengths: list[int], cell: Cell) -> None:
    """Raises EngineFailed unless every prompt got as many tokens as were asked for."""
    if lengths != [cell.job.output_len] * cell.job.num_prompts:
        raise EngineFailed(
            f"asked for {cell.job.num_prompts} x {cell.job.output_len} tokens, "
            f"got {len(lengths)} answers of {sorted(set(lengths))}"
        )


def tokens_of(cell: Cell) -> int:
    """How many tokens of one job its rate counts."""
    each = cell.job.input_len if cell.unit == "input tokens/s" else cell.job.output_len
    return cell.job.num_prompts * each


class StartingEngine:
    """A fresh process in each turn, from its start to its first token."""

    def __init__(self, launch: Launch, cell: Cell) -> None:
        self._launch, self._cell = launch, cell

    def start(self) -> dict[str, Any]:
        """Once untimed, so that files are in the page cache."""
        return self._once(WARMUP["prompts"])[1]

    def run(self, prompts: Prompts) -> Values:
        return {FIRST_TOKEN: self._once(prompts)[0], **self._further()}

    def stop(self) -> None:
        return None

    def _further(self) -> Values:
        if not self._launch.startup:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            command = [*self._launch.startup, str(path)]
            done = subprocess.run(command, capture_output=True, text=True,
                                  timeout=self._launch.run_timeout)  # fmt: skip
            if done.returncode != 0:
                raise EngineFailed(f"startup times: {done.stderr.strip()[-300:]}")
            medians = json.loads(path.read_text(encoding="utf-8"))["medians"]
        return {name: medians[title] for name, title in STARTUP_NAMES.items()}

    def _once(self, prompts: Any) -> tuple[float, dict[str, Any]]:
        start = time.perf_counter()
        child = self._launch.child()
        try:
            child.say(self._launch.order(self._cell))
            facts = child.hear(self._launch.start_timeout)["facts"]
            child.say({"prompts": prompts, "output_len": 1})
            child.hear(self._launch.run_timeout)
            return time.perf_counter() - start, dict(facts)
        finally:
            child.end()


class ServingEngine:
    """A server, with the load of `headrace bench serve` from another process.

    The tokens of the chat template count as part of a prompt, which so is as long as offline.
    """

    def __init__(self, launch: Launch, cell: Cell) -> None:
        self._launch, self._cell = launch, cell
        self._child: Child | None = None
        self._turn = 0

    def start(self) -> dict[str, Any]:
        if not self._launch.server:
            raise EngineFailed("it has no server in this package")
        self._port = free_port()
        where = ["--host", "127.0.0.1", "--port", str(self._port)]
        self._child = Child([*self._launch.server, *where], self._launch.env, self._launch.log)
        deadline = time.monotonic() + self._launch.start_timeout
        while not _answers(self._port):
            if not self._child.is_alive:
                raise EngineFailed(f"the server ended: {self._child.last_words()}")
            if time.monotonic() > deadline:
                raise EngineFailed(f"the server is not ready after {self._launch.start_timeout} s")
            time.sleep(POLL_INTERVAL)
        self._num_template_tokens = template_tokens(self._port)
        self._child.pause()
        return {"version": "", "template_tokens": self._num_template_tokens}

    def run(self, prompts: Prompts) -> Values:
        """Random prompts of the client's own, of the same length."""
        assert self._child is not None
        self._child.resume()
        self._turn += 1
        before = cpu_seconds(self._child.pid)
        found = self._load()
        front = cpu_seconds(self._child.pid) - before
        self._child.pause()
        if found["completed"] != self._cell.job.num_prompts:
            raise EngineFailed(f"requests failed: {list(found['errors'])[:1]}")
        num_tokens = found["total_output_tokens"]
        return {
            "seconds": found["duration"],
            RATE: found["output_throughput"],
            "front_us_per_token": front / num_tokens * 1e6,
            "itl_p99_over_median": found["p99_itl_ms"] / found["median_itl_ms"],
            "median_itl_ms": found["median_itl_ms"],
            "median_ttft_ms": found["median_ttft_ms"],
        }

    def stop(self) -> None:
        if self._child is not None:
            self._child.end()

    def _load(self) -> dict[str, Any]:
        job = self._cell.job
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            command = [
                sys.executable, "-m", "headrace.cli.main", "bench", "serve", "--disable-tqdm",
                "--base-url", f"http://127.0.0.1:{self._port}",
                "--endpoint", "/v1/chat/completions", "--ignore-eos", "--temperature", "0",
                "--max-concurrency", str(job.num_prompts), "--num-prompts", str(job.num_prompts),
                "--input-len", str(job.input_len - self._num_template_tokens),
                "--output-len", str(job.output_len),
                "--seed", str(self._turn), "--json", str(path),
            ]  # fmt: skip
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self._launch.run_timeout
            )
            if not path.is_file():
                raise EngineFailed(f"the client failed: {done.stderr.strip()[-300:]}")
            (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
            return dict(run)


def template_tokens(port: int) -> int:
    """How many tokens the template of a served model adds to a text.

    Raises:
        EngineFailed: the server does not answer a chat.
    """
    # A text of one token in every vocabulary that has bytes or letters.
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=CHAT_TIMEOUT) as answer:
            return int(json.load(answer)["usage"]["prompt_tokens"]) - 1
    except OSError as error:
        raise EngineFailed(f"the server answers no chat: {error}") from error


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            answer.read()
    except OSError:
        return False
    return True
