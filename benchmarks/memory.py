"""Memory of a server under load: both its processes, beside what weights and KV cache take.

    python benchmarks/memory.py [--model PATH] [--kv-cache-mib 128] [--requests 64]

Starts `headrace serve`, puts 32 chats at a time on it, and prints the most memory each process
ever held (Linux). The targets: the engine at most weights + KV cache + 150 MB, the front process
at most 120 MB.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from peer_parts.engines import free_port

MB = 1e6
ENGINE_EXTRA, FRONT_MOST = 150.0, 120.0
START_SECONDS = 60.0
HEADRACE = (sys.executable, "-m", "headrace.cli.main")


def peak_mb(pid: int) -> float:
    """The most memory a process ever held, shared libraries and mapped files among it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / MB


def child_of(pid: int) -> int:
    """The engine core: the child that runs it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if parent == pid and b"headrace.core.proc" in command:
            return int(entry.name)
    raise SystemExit("the server has no engine core")


def wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Raises SystemExit, with the log, when the server ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(log.read_text(errors="replace"))


def weights_mib(log: str) -> float:
    """As the engine says at its start."""
    found = re.search(r"weights +([\d,]+) MiB", log)
    assert found is not None, log
    return float(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="default: the packaged one")
    parser.add_argument("--kv-cache-mib", type=int, default=128)
    parser.add_argument("--requests", type=int, default=64)
    args = parser.parse_args()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                [*HEADRACE, "serve", *([args.model] if args.model else []), "--port", str(port),
                 "--host", "127.0.0.1", "--max-model-len", "2048",
                 "--kv-cache-memory-bytes", str(args.kv_cache_mib << 20)],
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            wait_ready(url, server, log)
            subprocess.run(
                [*HEADRACE, "bench", "serve", "--disable-tqdm", "--base-url", url, "--ignore-eos",
                 "--endpoint", "/v1/chat/completions", "--max-concurrency", "32",
                 "--num-prompts", str(args.requests), "--input-len", "64", "--output-len", "32"],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            engine, front = peak_mb(child_of(server.pid)), peak_mb(server.pid)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
        held = (weights_mib(log.read_text(errors="replace")) + args.kv_cache_mib) * 2**20 / MB
    print(f"engine {engine:.0f} MB at most: {engine - held:.0f} MB beside weights and KV cache "
          f"({held:.0f} MB); target {ENGINE_EXTRA:.0f}")  # fmt: skip
    print(f"front process {front:.0f} MB at most; target {FRONT_MOST:.0f}")


if __name__ == "__main__":
    main()
