"""The limits of this machine: reading memory, and arithmetic. Measured when nothing else runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace._native import available_cores, compute_peaks, read_bandwidth

MEASURED_BYTES = 1 << 29
"""Several times the caches; an engine that reads less may do so faster."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What the hardware gives at best.

    Attributes:
        num_threads: that worked together.
        read_bytes_per_second: from memory.
        peaks: (instruction set, number type, operations per second); a multiplication and an
            addition are two operations.
    """

    num_threads: int
    read_bytes_per_second: float
    peaks: list[tuple[str, str, float]]

    def to_json(self) -> dict[str, Any]:
        """As result files hold it."""
        return {
            "num_threads": self.num_threads,
            "read_bytes_per_second": self.read_bytes_per_second,
            "peaks": [
                {"isa": isa, "type": kind, "operations_per_second": rate}
                for isa, kind, rate in self.peaks
            ],
        }

    def rows(self) -> list[tuple[str, str]]:
        """As a table shows it."""
        rows = [("Reading memory (GB/s)", f"{self.read_bytes_per_second / 1e9:,.1f}")]
        for isa, kind, rate in self.peaks:
            rows.append((f"Multiply-add, {isa} {kind} (GOP/s)", f"{rate / 1e9:,.0f}"))
        return rows


def measure_limits(num_threads: int) -> MachineLimits:
    """Measure for about a second.

    Args:
        num_threads: 0 is one per core.
    """
    threads = num_threads or available_cores()
    return MachineLimits(threads, read_bandwidth(MEASURED_BYTES, threads), compute_peaks(threads))
