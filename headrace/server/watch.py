"""Noticing that a file was changed or replaced, by looking at it now and then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

WATCH_SECONDS = 1.0
Stamp = tuple[int, int, int, int]


class FileWatch:
    """Watches some files together.

    Args:
        paths: they may come and go.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._paths = list(paths)
        self._stamps = self._look()

    def has_changed(self) -> bool:
        """Whether any of them is another one, or has other contents, than at the last call.

        While one of them is missing nothing has changed: it is being replaced.
        """
        stamps = self._look()
        if None in stamps or stamps == self._stamps:
            return False
        self._stamps = stamps
        return True

    def _look(self) -> list[Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str | Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


async def watch_files(
    paths: Sequence[str | Path], on_change: Callable[[], None], *, seconds: float = WATCH_SECONDS
) -> None:
    """Call `on_change` whenever any of the files has changed; until cancelled."""
    watch = FileWatch(paths)
    while True:
        await asyncio.sleep(seconds)
        if await asyncio.to_thread(watch.has_changed):
            on_change()
