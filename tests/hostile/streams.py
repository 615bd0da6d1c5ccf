"""Hundreds of streams, clients that leave at random, and every byte compared with the whole twin.

python tests/hostile/streams.py --streams 256 --seconds 60
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.hostile.server import Victim, victim

NUM_TWINS = 48
WORDS = ("river", "clock", "winter", "letter", "engine", "garden", "copper", "signal")
WARM_SHARE = 0.3
"""Of the time: what memory grows in it is caches and pools."""


def requests(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Pairs of route and body that differ in length, sampling, form and stops."""
    rng = random.Random(seed)
    found: list[tuple[str, dict[str, Any]]] = []
    for index in range(NUM_TWINS):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
        body: dict[str, Any] = {
            "max_tokens": rng.choice((4, 16, 48, 96)),
            "temperature": rng.choice((0.0, 0.7, 1.2)),
            "seed": index,
        }
        if index % 4 == 0:
            body["stop"] = ["\n\n", "the"]
        if index % 7 == 0:
            body["response_format"] = {"type": "json_object"}
        if index % 2:
            found.append(("/v1/completions", {**body, "prompt": text}))
        else:
            messages = [{"role": "user", "content": f"Write about {text}. 😀 é"}]
            found.append(("/v1/chat/completions", {**body, "messages": messages}))
    return found


def said(choice: dict[str, Any]) -> str:
    """The text of a whole choice or of a chunk's."""
    if "text" in choice:
        return str(choice["text"])
    message = choice.get("message") or choice["delta"]
    return message.get("content") or ""


class Load:
    """Clients that ask again and again, and what they saw."""

    def __init__(self, client: httpx.AsyncClient, leave: float) -> None:
        self._client = client
        self._leave = leave
        self.ends: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    async def run(self, twins: list[Any], width: int, seconds: float) -> None:
        """Keep so many streams open for so long."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._one(twins, random.Random(i), end) for i in range(width)))

    async def _one(self, twins: list[Any], rng: random.Random, end: float) -> None:
        while time.monotonic() < end:
            path, body, text, reason = rng.choice(twins)
            leave_after = rng.randrange(12) if rng.random() < self._leave else None
            try:
                await self._stream(path, body, text, reason, leave_after)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    async def _stream(
        self, path: str, body: dict[str, Any], text: str, reason: str, leave_after: int | None
    ) -> None:
        got, finish, num_frames, is_done = "", None, 0, False
        request = self._client.stream("POST", path, json={**body, "stream": True})
        async with request as answer:
            if answer.status_code != 200:
                await answer.aread()
                self.ends[str(answer.status_code)] += 1
                if answer.status_code != 503:
                    self.faults.append(answer.text[:200])
                return
            if leave_after == 0:
                self.ends["left"] += 1
                return
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    num_frames += 1
                    frame = json.loads(line[6:])
                    if "error" in frame:
                        self.faults.append(line[:200])
                        return
                    [choice] = frame["choices"]
                    got += said(choice)
                    finish = choice["finish_reason"] or finish
                    if num_frames == leave_after:
                        self.ends["left"] += 1
                        return
        if (got, finish, is_done) != (text, reason, True):
            self.faults.append(f"not its twin: {got!r} ({finish}) and not {text!r} ({reason})")
        self.ends["whole"] += 1


async def attack(server: Victim, options: argparse.Namespace) -> tuple[Load, list[Any]]:
    """The whole answers first, then the streams; with the sizes of the processes meanwhile."""
    sizes: list[tuple[float, dict[str, float]]] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
        twins = []
        for path, body in requests(options.seed):
            choice = (await client.post(path, json=body)).json()["choices"][0]
            twins.append((path, body, said(choice), choice["finish_reason"]))
        load, begin = Load(client, options.leave), time.monotonic()

        async def measure() -> None:
            while True:
                sizes.append((time.monotonic() - begin, await asyncio.to_thread(server.rss)))
                await asyncio.sleep(2)

        measuring = asyncio.create_task(measure())
        await load.run(twins, options.streams, options.seconds)
        measuring.cancel()
    return load, sizes


def main() -> int:
    """Run it; 0 when nothing gave way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--leave", type=float, default=0.1, help="share of clients that leave")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--growth", type=float, default=16.0, help="megabytes that are no growth")
    options = parser.parse_args()
    # A small cache: pages of it count as memory once they are used, and all are used at once.
    cache = ("--kv-cache-memory-bytes", "256M")
    with victim("--max-model-len", "1024", "--max-num-seqs", "256", *cache) as server:
        load, sizes = asyncio.run(attack(server, options))
        left = server.wait_until_idle()
        problems = load.faults[:20]
        print(f"{sum(load.ends.values())} streams: {dict(load.ends)}")
        warm = next(size for at, size in sizes if at >= WARM_SHARE * options.seconds)
        last = sizes[-1][1]
        for name in ("front", "core"):
            print(f"{name}: {warm[name]:.1f} MB warm, {last[name]:.1f} MB at the end")
            if last[name] - warm[name] > options.growth:
                problems.append(f"{name} grew by {last[name] - warm[name]:.1f} MB")
        problems += [f"{name} is {value}" for name, value in left.items() if value]
        if not server.is_healthy():
            problems.append("the server is not healthy")
        print(f"left: {left}; faults: {len(load.faults)}")
    print("\n".join(problems) or "nothing gave way")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
