"""A real server under attack: started, watched and ended by the scripts of this folder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

START_SECONDS = 120.0
MB = 1 << 20


@dataclass
class Victim:
    """One server. `port` is on 127.0.0.1."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rss(self) -> dict[str, float]:
        """Megabytes of each of its processes, by what they do."""
        front = psutil.Process(self.process.pid)
        found = {"front": front.memory_info().rss / MB}
        for child in front.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = next((p for p in child.cmdline() if p.startswith("headrace.")), "other")
                found[name.split(".")[1] if "." in name else name] = child.memory_info().rss / MB
        return found

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith(f"{name}{{"))

    def is_healthy(self) -> bool:
        """Whether /health says so within a few seconds."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until_idle(self, seconds: float = 30.0) -> dict[str, float]:
        """What is left of the work once there should be none."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        end = time.monotonic() + seconds
        while True:
            left = {name: self.metric(f"headrace:{name}") for name in names}
            if not any(left.values()) or time.monotonic() > end:
                return left
            time.sleep(0.2)


@contextlib.contextmanager
def victim(*arguments: str) -> Iterator[Victim]:
    """`headrace serve` with the packaged model and these arguments."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = Path(tempfile.mkstemp(prefix="headrace-hostile-", suffix=".log")[1])
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-uvicorn-access-log", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    server = Victim(process, port, log)
    try:
        end = time.monotonic() + START_SECONDS
        while not server.is_healthy():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
