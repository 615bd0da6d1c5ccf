"""Server-sent events, read piece by piece. Knows nothing about what they say."""

from __future__ import annotations


class EventReader:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that these bytes complete. Comments and other fields are left."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
