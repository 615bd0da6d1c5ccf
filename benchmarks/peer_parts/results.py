"""What came of the turns: samples, their medians, and whether targets are met. Runs nothing."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peer_parts.floors import SHARES, Machine, ModelCost, machine_of
from peer_parts.works import CELLS, HEADRACE, INT8, Cell, Job, Target, stand_in


@dataclass
class Results:
    """All that one or several runs found out; a JSON file can hold it.

    Attributes:
        runs: date, machine, limits and versions of each call of peers.py.
        samples: (number of the run, cell, engine, values) of every turn.
        facts: cell -> engine -> what it says of itself, its version among it.
        failures: cell -> engine -> why it has no (more) samples.
        jobs, costs: cell -> the job as it was run, and what its model costs.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[int, str, str, dict[str, float]]] = field(default_factory=list)
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, dict[str, str]] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """From a file; empty if there is none."""
        if not path.is_file():
            return cls()
        results = cls(**json.loads(path.read_text(encoding="utf-8")))
        results.samples = [(run, cell, name, v) for run, cell, name, v in results.samples]
        return results

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def begin(self, cell: Cell, cost: ModelCost) -> None:
        """Before the turns of a cell.

        Raises:
            ValueError: samples of the same cell are there, of another job.
        """
        job = asdict(cell.job)
        if self.jobs.get(cell.key, job) != job:
            raise ValueError(f"{cell.key} was run with {self.jobs[cell.key]} before, now {job}")
        self.jobs[cell.key], self.costs[cell.key] = job, asdict(cost)

    def add(self, cell: str, engine: str, values: dict[str, float]) -> None:
        self.samples.append((len(self.runs) - 1, cell, engine, values))

    def add_facts(self, cell: str, engine: str, facts: dict[str, Any]) -> None:
        self.facts.setdefault(cell, {})[engine] = facts
        self.failures.get(cell, {}).pop(engine, None)

    def fail(self, cell: str, engine: str, reason: str) -> None:
        self.failures.setdefault(cell, {})[engine] = reason

    def engines(self, cell: str) -> list[str]:
        """Those with samples or failures, headrace's first."""
        found = {engine: None for _, key, engine, _ in self.samples if key == cell}
        found.update(dict.fromkeys(self.failures.get(cell, {})))
        return sorted(found, key=lambda name: (not name.startswith(HEADRACE), name))

    def values(self, cell: str, engine: str, figure: str) -> list[float]:
        """One for each turn that brought it."""
        found = []
        for run, key, name, values in self.samples:
            if (key, name) != (cell, engine):
                continue
            if figure in SHARES:
                machine = self._machine(run)
                job, cost = Job(**self.jobs[cell]), ModelCost(**self.costs[cell])
                found.append(SHARES[figure](job, cost, machine) / values["seconds"])
            elif figure in values:
                found.append(values[figure])
        return found

    def _machine(self, run: int) -> Machine:
        """The highest limits that were measured in any run on the same machine: others who use it
        can only lower what is measured, and a share should not rise by that."""
        kind = ("cpu", "cores", "isa")
        found = [
            machine_of(other["limits"])
            for other in self.runs
            if all(other[key] == self.runs[run][key] for key in kind)
            and other["limits"]["num_threads"] == self.runs[run]["limits"]["num_threads"]
        ]
        return Machine(max(limits.reads for limits in found), max(limits.peak for limits in found))

    def median(self, cell: str, engine: str, figure: str) -> float:
        """Nan if nothing was measured."""
        if figure == "log_likelihood_change":
            return self._log_likelihood_change(cell)
        values = self.values(cell, engine, figure)
        return statistics.median(values) if values else math.nan

    def _log_likelihood_change(self, cell: str) -> float:
        """Of the same paragraph by int8 weights, relative to the weights as stored."""
        facts = self.facts.get(cell, {})
        try:
            stored = facts[HEADRACE]["log_likelihood"]
            return abs(float(facts[INT8]["log_likelihood"] / stored) - 1)
        except KeyError:
            return math.nan


@dataclass(frozen=True)
class Verdict:
    """What became of a target. `is_met` is None if it was not measured, and `why` says why."""

    target: Target
    measured: float
    is_met: bool | None
    why: str = ""


def judge(target: Target, results: Results) -> Verdict:
    """Hold one target against the medians; not if the job was shortened."""
    isas: Mapping[str, Any] = results.runs[-1] if results.runs else {}
    engine = stand_in(target.engine, isas.get("isa", ""))
    measured = results.median(target.cell, engine, target.figure)
    missing = [(target.cell, engine)] if math.isnan(measured) else []
    if target.versus is not None:
        cell, other = target.versus[0] or target.cell, target.versus[1]
        divisor = results.median(cell, other, target.figure)
        if math.isnan(divisor):
            missing.append((cell, other))
        measured /= divisor
    job = results.jobs.get(target.cell)
    if not missing and job != asdict(CELLS[target.cell].job):
        return Verdict(target, math.nan, None, "the job was shortened")
    if missing:
        reasons = [results.failures.get(cell, {}).get(name, "not run") for cell, name in missing]
        return Verdict(target, math.nan, None, f"{missing[0][1]}: {reasons[0]}")
    if target.at_least is not None:
        return Verdict(target, measured, measured >= target.at_least)
    assert target.at_most is not None
    return Verdict(target, measured, measured <= target.at_most)


def cells_with_results(results: Results) -> list[Cell]:
    """In the usual order."""
    return [cell for key, cell in CELLS.items() if results.engines(key)]
