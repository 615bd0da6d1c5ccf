"""Answers to clients of HTTP/1.0, who know no chunks: the end of the connection ends them."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class EndedByClose(RequestResponseCycle):
    """A request and its answer, which has either a Content-Length or no framing at all."""

    has_length: bool

    @classmethod
    def take_over(cls, cycle: RequestResponseCycle) -> None:
        """Let one that has not begun to answer do so in this way; uvicorn makes only its own."""
        cycle.__class__ = cls

    async def send(self, message: ASGISendEvent) -> None:
        """As uvicorn does, which takes what has no length for an answer in chunks."""
        if message["type"] == "http.response.start":
            self.has_length = any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            )
            if not self.has_length:
                self.chunked_encoding = False
        elif message["type"] == "http.response.body" and not self.has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
