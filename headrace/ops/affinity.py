"""Chooses the processors that the threads of the native home are bound to."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError

Affinity = Literal["auto"] | list[int] | None
"""One processor for each thread, chosen here or given by number; None binds nothing."""

_TOPOLOGY = Path("/sys/devices/system/cpu")
# As at first: later the calling thread may be bound to one of them.
_ALLOWED = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def choose_cpus(affinity: Affinity, num_threads: int) -> list[int]:
    """The processor of each thread, or nothing when threads are not bound.

    Args:
        affinity: see `Affinity`.
        num_threads: 0 is one per processor chosen.

    Raises ConfigError when there are fewer processors than threads, or one is not available.
    """
    if affinity is None:
        return []
    if not _ALLOWED:
        raise ConfigError("cpu_affinity: this system cannot bind threads; use none")
    cpus = cores_first(_ALLOWED, _TOPOLOGY) if affinity == "auto" else affinity
    missing = sorted(set(cpus) - _ALLOWED)
    if missing:
        raise ConfigError(
            f"cpu_affinity names processor {missing[0]}, which this process may not use; "
            f"it may use {', '.join(map(str, sorted(_ALLOWED)))}"
        )
    if num_threads > len(cpus):
        raise ConfigError(
            f"cpu_affinity has {len(cpus)} processors for {num_threads} threads (num_threads)"
        )
    return cpus[: num_threads or None]


def cores_first(cpus: Collection[int], topology: Path) -> list[int]:
    """One processor of each core, then those that share a core with one before."""
    firsts: list[int] = []
    others: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(cpus):
        file = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        core = file.read_text().strip() if file.exists() else str(cpu)
        (others if core in seen else firsts).append(cpu)
        seen.add(core)
    return firsts + others
