"""What starting costs: imports, LLM() to its first token, `headrace serve` to its first answer.

    python benchmarks/startup.py [MODEL] [--repeat 5]

Each figure is the median over fresh processes, the files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

FIRST_TOKEN = """
from headrace import LLM, SamplingParams
llm = LLM({model!r})
llm.generate("Hello", SamplingParams(max_tokens=1), use_tqdm=False)
llm.shutdown()
"""


def python(code: str) -> float:
    """Seconds of a fresh interpreter running this, less those of one running nothing."""

    def run(text: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", text], check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    return run(code) - (run("pass") if code.startswith("import") else 0.0)


def serve(model: str | None) -> tuple[float, float]:
    """Seconds from process start to a 200 of /health, and to the first answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headrace.cli.main", "serve", *([model] if model else []),
               "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    start = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None:
                    raise SystemExit("the server ended; run it by hand to see why") from None
                time.sleep(0.01)
        ready = time.perf_counter() - start
        body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).read()
        return ready, time.perf_counter() - start
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    def median(measure: Callable[[], float]) -> str:
        measure()
        times = [measure() for _ in range(args.repeat)]
        return f"{statistics.median(times):6.3f} s  ({min(times):.3f} to {max(times):.3f})"

    print(f"import headrace                {median(lambda: python('import headrace'))}")
    print(f"import headrace.server.app     {median(lambda: python('import headrace.server.app'))}")
    code = FIRST_TOKEN.format(model=args.model)
    print(f"LLM class to first token       {median(lambda: python(code))}")
    print(f"headrace serve to ready        {median(lambda: serve(args.model)[0])}")
    print(f"headrace serve to first answer {median(lambda: serve(args.model)[1])}")


if __name__ == "__main__":
    main()
