"""Profiles the steps of a core: where Python spends the time, and how long each step took.

For an engine that runs on a CPU both are the whole truth but for the kernels themselves.
"""

from __future__ import annotations

import cProfile
import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.errors import ConfigError, ProfilerAlreadyActiveError, ValidationError
from headrace.messages.outputs import EngineCoreOutputs


class _Step(NamedTuple):
    started_at: float
    seconds: float
    num_tokens: int
    num_running: int
    num_waiting: int


class StepProfiler:
    """Takes one profile at a time. For the thread that steps.

    Args:
        folder: where profiles are written; None: it cannot take any.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._profile: cProfile.Profile | None = None
        self._steps: list[_Step] = []
        self._name = ""
        self._num_taken = 0
        self._num_to_skip = 0
        self._num_left: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether a profile is being taken."""
        return self._profile is not None

    def start(self, prefix: str | None, delay_iterations: int, max_iterations: int | None) -> None:
        """Begin a profile.

        Args:
            prefix: how the files' names begin.
            delay_iterations: steps to let pass before.
            max_iterations: steps to take; None is all until `stop`.

        Raises:
            ConfigError: there is no folder. ProfilerAlreadyActiveError: one is being taken.
            ValidationError: a number or a prefix that cannot be.
        """
        if self._folder is None:
            raise ConfigError("profiles need a folder to go to: set --profiler-dir")
        if self._profile is not None:
            raise ProfilerAlreadyActiveError("a profile is being taken; stop it first")
        if delay_iterations < 0 or (max_iterations is not None and max_iterations < 1):
            raise ValidationError("delay_iterations must be at least 0, max_iterations at least 1")
        prefix = "core" if prefix is None else prefix
        if not prefix or not prefix.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise ValidationError(
                "a profile's prefix is of letters, digits and -_.", param="prefix"
            )
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        self._num_taken += 1
        self._name = f"{prefix}-{os.getpid()}-{self._num_taken}"
        self._steps = []
        self._num_to_skip, self._num_left = delay_iterations, max_iterations
        self._profile = cProfile.Profile()

    def run(self, step: Callable[[], EngineCoreOutputs]) -> EngineCoreOutputs:
        """Run a step, and take it down when it is one to take."""
        if self._profile is None or self._num_left == 0:
            return step()
        if self._num_to_skip:
            self._num_to_skip -= 1
            return step()
        if self._num_left is not None:
            self._num_left -= 1
        started_at = time.perf_counter()
        self._profile.enable()
        try:
            outputs = step()
        finally:
            self._profile.disable()
        stats = outputs.stats
        self._steps.append(
            _Step(
                started_at, time.perf_counter() - started_at, outputs.num_step_tokens,
                stats.num_running, stats.num_waiting,
            )
        )  # fmt: skip
        return outputs

    def stop(self) -> list[str]:
        """Write the profile: `.prof` for `pstats`, `.csv` with a line per step. Returns the files;
        none when no profile was being taken."""
        profile, self._profile = self._profile, None
        if profile is None:
            return []
        folder = Path(self._folder or ".")
        calls, steps = folder / f"{self._name}.prof", folder / f"{self._name}.csv"
        if self._steps:
            profile.dump_stats(calls)
        with open(steps, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(_Step._fields)
            writer.writerows(self._steps)
        self._steps = []
        return [str(path) for path in (calls, steps) if path.exists()]
