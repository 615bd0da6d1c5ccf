"""How a runner talks with peers.py: lines of JSON, in on standard input, out on standard output.

Needs only the standard library, since each engine's own Python runs it. The first line in says
what to load, the answer is facts about the engine; each further line is one job, the answer is its
times and the number of tokens of each answer. Anything the engine itself prints goes to standard
error. An exception ends the runner with a last line that says why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Limits:
    """The most that the jobs of one engine ask for: sequences at a time, tokens of each."""

    max_seqs: int
    max_len: int


class Engine(Protocol):
    """One loaded model. All answers are greedy and do not end at an end token."""

    facts: dict[str, Any]
    """At least `version`; what else is worth saying (instruction set, settings)."""

    def generate(self, prompts: list[list[int]], output_len: int) -> list[int]:
        """Answer all prompts at once; the number of tokens of each answer.

        No prompt may be found in a cache of an earlier call.
        """


class Load(Protocol):
    """Makes an engine from a model's path, a number of threads and further settings."""

    def __call__(
        self, model: str, threads: int, limits: Limits, settings: dict[str, Any]
    ) -> Engine: ...


def serve(load: Load) -> None:
    """Answer jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not end up among the answers

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    try:
        order = json.loads(sys.stdin.readline())
        start = time.perf_counter()
        limits = Limits(order["max_seqs"], order["max_len"])
        engine = load(order["model"], order["threads"], limits, order["settings"])
        say({"facts": engine.facts, "load_seconds": time.perf_counter() - start})
        for line in iter(sys.stdin.readline, ""):
            job = json.loads(line)
            say(measure(engine, job["prompts"], job["output_len"]))
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {error}".strip()})
        raise


def measure(engine: Engine, prompts: list[list[int]], output_len: int) -> dict[str, Any]:
    """One timed call."""
    start = time.perf_counter()
    lengths = engine.generate(prompts, output_len)
    return {"seconds": time.perf_counter() - start, "output_lens": lengths}
