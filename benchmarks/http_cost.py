"""What HTTP costs beside the engine's own time: processor time of the front process, and waiting.

    python benchmarks/http_cost.py [--model PATH] [--streams 32] [--requests 100]

Starts `headrace serve` and measures (Linux, nothing else on the machine):

- the front process's processor time per streamed token, `--streams` chats at a time, of 128 tokens
  and of 512: the difference of the two is the cost of a token, without that of a request;
- for chats of one token, one after the other: the time a client waits beside what the engine's own
  ledger says the request took.

Targets: 40 us per streamed token, 1 ms per request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from memory import HEADRACE, wait_ready
from peer_parts.engines import free_port

PATH = "/v1/chat/completions"
TOKEN_US, REQUEST_MS = 40.0, 1.0


def chat(max_tokens: int, number: int, **fields: Any) -> bytes:
    """A request of about a hundred tokens that no cache knows."""
    message = {"role": "user", "content": f"Number {number}. " + "word " * 100}
    return json.dumps({
        "messages": [message], "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
        **fields,
    }).encode()  # fmt: skip


def post(body: bytes, connection: str) -> bytes:
    """The bytes of a request. A client of a library would cost more than what is measured."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: {connection}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def server(model: str | None) -> Iterator[tuple[int, psutil.Process]]:
    """Its port and its front process."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*HEADRACE, "serve", *([model] if model else []), "--port", str(port),
                 "--host", "127.0.0.1", "--max-model-len", "2048"],
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            wait_ready(f"http://127.0.0.1:{port}", process, log)
            yield port, psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


async def stream(port: int, body: bytes) -> None:
    """Read a stream to its end, looking at nothing: the client has to cost little, too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(body, "close"))
    first = await reader.read(1 << 16)
    if not first.startswith(b"HTTP/1.1 200"):
        raise SystemExit(first.decode(errors="replace"))
    while await reader.read(1 << 16):
        pass
    writer.close()


async def streams(port: int, count: int, max_tokens: int, round_number: int) -> None:
    """So many at a time, once."""
    await asyncio.gather(*(
        stream(port, chat(max_tokens, round_number * count + i, stream=True)) for i in range(count)
    ))  # fmt: skip


def front_seconds(port: int, front: psutil.Process, count: int, max_tokens: int) -> float:
    """Processor time of the front process for one round of streams, the median of three."""
    spent = []
    for number in range(3):
        before = sum(front.cpu_times()[:2])
        asyncio.run(streams(port, count, max_tokens, number + max_tokens))
        spent.append(sum(front.cpu_times()[:2]) - before)
    return statistics.median(spent)


def whole_body(answer: bytes) -> bytes:
    """The body of an answer, once all of it is there."""
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    if not head.startswith(b"HTTP/1.1 200") or found is None:
        raise SystemExit(answer.decode(errors="replace"))
    return body if len(body) == int(found[1]) else b""


def request_overhead_ms(port: int, requests: int) -> list[float]:
    """Waited by the client beside the engine's time, of each chat of one token."""
    beside = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(requests):
            message = post(chat(1, number, include_usage_details=True), "keep-alive")
            start = time.perf_counter()
            connection.sendall(message)
            answer = connection.recv(1 << 16)
            while not (body := whole_body(answer)):
                answer += connection.recv(1 << 16)
            waited = 1000 * (time.perf_counter() - start)
            beside.append(waited - json.loads(body)["usage"]["details"]["total_ms"])
    return beside


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="default: the packaged one")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--requests", type=int, default=100)
    args = parser.parse_args()
    with server(args.model) as (port, front):
        asyncio.run(streams(port, args.streams, 16, 0))
        short = front_seconds(port, front, args.streams, 128)
        long = front_seconds(port, front, args.streams, 512)
        beside = request_overhead_ms(port, args.requests)
    per_token = 1e6 / args.streams
    print(f"front process, {args.streams} streams: {short * per_token / 128:.0f} us per token of "
          f"answers of 128, {long * per_token / 512:.0f} of 512, "
          f"{(long - short) * per_token / 384:.0f} without what a request costs; "
          f"target {TOKEN_US:.0f}")  # fmt: skip
    print(f"waited beside the engine's time, chats of one token: median "
          f"{statistics.median(beside):.2f} ms, highest {max(beside):.2f}; "
          f"target {REQUEST_MS:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
