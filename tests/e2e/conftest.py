"""A real server in a process of its own, on a free loopback port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.waiting import PATIENCE

START_LIMIT = 2 * PATIENCE


class Server:
    """`headrace serve` with its log in a file; ends with everything it started."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log = log
        # Kept until the end, so that nobody else is given the port before the server listens on it.
        self._reserved = _reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "headrace.cli.main", "serve", *arguments]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def wait_ready(self) -> None:
        """Until /health says 200; fails with the log when the process ends first."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"the server ended with {self.process.returncode}:\n{self.text()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=PATIENCE).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"the server was not ready in {START_LIMIT} s:\n{self.text()}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def core(self) -> psutil.Process:
        """The engine core's process."""
        [core] = [p for p in self.children() if "headrace.core.proc" in " ".join(p.cmdline())]
        return core

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name}{{", f"{name} "))
        ]
        assert values, f"no metric {name} in:\n{text}"
        return sum(values)

    def stop(self, timeout: float = 2 * PATIENCE) -> int:
        """SIGTERM, then wait; returns the exit status."""
        self._reserved.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start servers; all are stopped, and nothing of them may be left, at the end of the module."""
    servers: list[Server] = []

    def start(*arguments: str, wait: bool = True) -> Server:
        log = tmp_path_factory.mktemp("server") / "log"
        server = Server(list(arguments), log)
        servers.append(server)
        if wait:
            server.wait_ready()
        return server

    yield start
    for server in servers:
        children = server.children() if server.process.poll() is None else []
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait(PATIENCE)
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive, f"left behind: {alive}"


def _reserve_port() -> socket.socket:
    """A socket that holds a free port, beside which one that allows it too may listen."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
