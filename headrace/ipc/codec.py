"""Records to bytes and back: typed msgpack only, so nobody can run code by reaching a socket."""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import msgspec

from headrace.logger import make_logger

logger = make_logger(__name__)

T = TypeVar("T")


class RecordEncoder:
    """Encodes records of any kind. Not to be shared between threads."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, record: object) -> bytes:
        """The bytes of one record.

        Raises:
            TypeError, ValueError, OverflowError, RecursionError: it holds something that msgpack
                cannot carry.
        """
        return self._encoder.encode(record)


class RecordDecoder(Generic[T]):
    """Decodes frames into one closed union of records. Not to be shared between threads.

    Args:
        union: the union's type.
        source: who sends, for the log.
    """

    def __init__(self, union: object, source: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(cast(type[T], union))
        self._source = source

    def decode(self, frame: bytes) -> T | None:
        """The record, or None, with one line in the log, for bytes that are none."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            logger.warning(
                "dropped %d bytes from %s that are no known record: %s",
                len(frame),
                self._source,
                error,
            )
            return None
