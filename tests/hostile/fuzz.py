"""Malformed requests by the ten thousand: none may be a 5xx or hang, memory must stay flat, and
the engine must answer afterwards.

    python tests/hostile/fuzz.py --num 50000
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.hostile.mutations import malformed
from tests.hostile.server import Victim, victim

PATIENCE = 20.0
MAX_ANSWER = 1 << 26
QUIET = 1.0
"""Seconds after which the client says that nothing more will come: the request was not whole."""


class Attack:
    """Sends requests and notes what came back.

    Attributes:
        answers: status, or `closed` or `silent` -> how often.
        faults: numbers of requests with an answer that must not be, and why.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: collections.Counter[str] = collections.Counter()
        self.faults: list[tuple[int, str]] = []

    async def run(self, first: int, last: int, width: int) -> None:
        """Send those from first to before last, `width` at a time."""
        numbers = iter(range(first, last))

        async def work() -> None:
            for number in numbers:
                await self._send(number)

        await asyncio.gather(*(work() for _ in range(width)))

    async def _send(self, number: int, *, is_again: bool = False) -> None:
        data = malformed(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=MAX_ANSWER)
        try:
            writer.write(data)
            await writer.drain()
            self._note(number, *await self._answer(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            self._note(number, "closed", b"")
        except TimeoutError:
            if is_again:
                self._note(number, "hang", b"")
            else:  # the whole machine may have stood still
                await self._send(number, is_again=True)
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, bytes]:
        """The status and the body. Half a request is ended after a while, and is no fault."""
        try:
            async with asyncio.timeout(QUIET):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode()
        if status == "100":
            return await self._answer(reader, writer)
        head = head.lower()
        if status == "503" and b"retry-after: " in head:
            status = "503 with Retry-After"  # a time limit of the request itself was over
        return status, await self._body(head, reader)

    async def _body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(PATIENCE):
            if b"content-length: " in head:
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                return await reader.readexactly(length)
            if b"transfer-encoding: chunked" in head:
                return await reader.readuntil(b"0\r\n\r\n")
        return b""

    def _note(self, number: int, status: str, body: bytes) -> None:
        self.answers[status] += 1
        if status == "hang" or (status.startswith("5") and "Retry" not in status):
            self.faults.append((number, f"{status} {body[:300]!r}"))
        elif status.startswith("4") and body:
            try:
                error = json.loads(body)["error"]
                assert sorted(error) == ["code", "message", "param", "type"]
                assert error["code"] == int(status)
            except (ValueError, KeyError, AssertionError):
                self.faults.append((number, f"not the error body: {status} {body[:300]!r}"))


def ask(server: Victim) -> str:
    """What the engine says to a question that has one answer."""
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = json.load(answer)["choices"][0]["text"]
    return text


def main() -> int:
    """Run the attack; 0 when nothing gave way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--growth", type=float, default=20.0, help="megabytes that are no growth")
    options = parser.parse_args()
    with victim("--max-model-len", "1024", "--max-num-seqs", "32") as server:
        before = ask(server)
        attack, begin = Attack(server.port), time.monotonic()
        steps = [options.first + options.num * i // 5 for i in range(6)]
        sizes = []
        for first, last in itertools.pairwise(steps):
            asyncio.run(attack.run(first, last, options.width))
            sizes.append(server.rss())
            print(f"{last}: " + ", ".join(f"{k} {v:.0f} MB" for k, v in sizes[-1].items()))
        left, seconds = server.wait_until_idle(), time.monotonic() - begin
        print(f"{options.num} requests in {seconds:.0f} s: {dict(attack.answers.most_common())}")
        problems = [f"request {number}: {why}" for number, why in attack.faults[:20]]
        # The first fifth warms caches up: compiled templates, tokens met, grammars.
        grown = {name: sizes[-1][name] - sizes[0].get(name, 0.0) for name in ("front", "core")}
        problems += [f"{k} grew by {v:.1f} MB" for k, v in grown.items() if v > options.growth]
        problems += [f"{name} is {value}" for name, value in left.items() if value]
        if not server.is_healthy() or ask(server) != before:
            problems.append("the engine does not answer as before")
        print(f"grown since the first fifth: {grown}")
    print("\n".join(problems) or "nothing gave way")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
