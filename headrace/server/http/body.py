"""From the bytes of a request to its typed record, within limits of size, number and depth.

JSON is read strictly: no NaN or Infinity, no lone surrogates. Fields that no record knows are
reported, never dropped in silence.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from headrace.config.args import nearest
from headrace.errors import ValidationError, shown
from headrace.server.errors import BodyTimeoutError, BodyTooLargeError, server_is_ending
from headrace.server.protocol.common import RequestRecord
from headrace.server.settings.limits import LimitSettings
from headrace.server.state import ServerState

WARNINGS_HEADER = "X-Headrace-Warnings"
STRICT_HEADER = "x-strict"
MAX_REPORTED_FIELDS = 20
THREAD_FROM = 64 << 10
"""Bodies of this many bytes and more are parsed off the event loop."""
ALONE_FROM = 1 << 20
"""Bodies of this many bytes and more are parsed one at a time: what that takes does not add up."""
DECODED = "headrace.decoded_body"
"""Key of a request's scope: its body and what it decodes to, where that is known already."""

GZIP = 16 + zlib.MAX_WBITS
"""How zlib is told that its data has the head and the tail of gzip."""

T = TypeVar("T")
Model = TypeVar("Model", bound=RequestRecord)
_STRUCTURE = re.compile(
    rb'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|,\s*+(?=[-0-9])){0,4096}+([\[{,\]}]|)',
    re.DOTALL,
)
"""A bracket, or a comma with no number behind it, outside of strings; what stands before is passed
over. A string that never ends is one up to the end, or each quote would be tried as its begin."""


async def read_body(
    request: Request, model: type[Model], state: ServerState
) -> tuple[Model, dict[str, str]]:
    """The request's record, and headers to answer with (warnings about unknown fields).

    Raises:
        ValidationError, pydantic.ValidationError: a body that is not what the route takes.
        UnsupportedError: a known field that this version cannot serve.
        Else as `read_bytes`.
    """
    body, data = request.scope.pop(DECODED, None) or (await read_bytes(request, state), None)
    settings = state.settings
    is_strict = settings.strict_requests or request.headers.get(STRICT_HEADER) == "1"

    def parse() -> tuple[Model, dict[str, str]]:
        found = parse_json(body, settings) if data is None else data
        return parse_record(found, body, model, is_strict=is_strict)

    return await off_loop(body, state, parse)


async def read_bytes(request: Request, state: ServerState) -> bytes:
    """The body of a request that says it is JSON, unpacked.

    Raises:
        ValidationError: it says something else, or cannot be unpacked.
        ClientDisconnect: the client went away before the end.
        BodyTooLargeError: more bytes than allowed, packed or unpacked.
        BodyTimeoutError: it did not come in time. NotReadyError: the server ended meanwhile.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ValidationError(
            "this route takes JSON: send the header 'Content-Type: application/json'",
            param="content-type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise ValidationError(
            f"bodies may be packed with gzip or not at all, not as {shown(encoding)} "
            "(the header Content-Encoding)",
            param="content-encoding",
        )
    settings = state.settings
    limit = settings.max_body_size
    try:
        async with asyncio.timeout(settings.body_timeout or None) as time_limit:
            state.reading.add(time_limit)
            try:
                body = await _read_limited(request, limit)
            finally:
                state.reading.discard(time_limit)
    except TimeoutError:
        if state.is_draining:
            raise server_is_ending() from None
        raise BodyTimeoutError(
            f"the body did not come to its end within {settings.body_timeout:g} s (--body-timeout)"
        ) from None
    return body if encoding == "identity" else await asyncio.to_thread(_unpack, body, limit)


def _unpack(body: bytes, limit: int) -> bytes:
    """What a gzip file holds. Never more than the limit is made, however much it would be."""
    unpacker = zlib.decompressobj(wbits=GZIP)
    try:
        plain = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValidationError(
            f"the body is not what gzip makes: {error}", param="content-encoding"
        ) from None
    if len(plain) > limit:
        raise BodyTooLargeError(_too_large(limit))
    if not unpacker.eof or unpacker.unused_data:
        what = "something follows its end" if unpacker.eof else "it ends too early"
        raise ValidationError(
            f"the body is not one whole gzip file: {what}", param="content-encoding"
        )
    return plain


async def off_loop(body: bytes, state: ServerState, work: Callable[[], T]) -> T:
    """The result of work on a body; for large ones it is done in a thread, for the largest one
    after the other."""
    if len(body) < THREAD_FROM:
        return work()
    if len(body) < ALONE_FROM:
        return await asyncio.to_thread(work)
    async with state.parse_lock:
        return await asyncio.to_thread(work)


def parse_record(
    data: dict[str, Any], body: bytes, model: type[Model], *, is_strict: bool
) -> tuple[Model, dict[str, str]]:
    """The record of a body, and headers to answer with.

    Args:
        data: what the bytes of the body decode to.

    Raises:
        ValidationError, pydantic.ValidationError, UnsupportedError: as `read_body` says.
    """
    record = model.model_validate(data)
    record.settle_known_extras()
    record.note_body(body)
    unknown = list(unknown_fields(record))
    if not unknown:
        return record, {}
    if is_strict:
        prefix, name, known = unknown[0]
        path = prefix + name
        raise ValidationError(f"there is no field {shown(path)}{nearest(name, known)}", param=path)
    names = [
        quote((prefix + name)[:80], safe="._-[]")
        for prefix, name, _known in unknown[:MAX_REPORTED_FIELDS]
    ]
    if len(unknown) > len(names):
        names.append(f"and {len(unknown) - len(names)} more")
    return record, {WARNINGS_HEADER: f"unknown fields ignored: {', '.join(names)}"}


def with_warning(headers: Mapping[str, str], text: str) -> dict[str, str]:
    """The headers of an answer, with one more warning (ASCII)."""
    before = headers.get(WARNINGS_HEADER)
    return {**headers, WARNINGS_HEADER: text if before is None else f"{before}; {text}"}


def parse_json(body: bytes, limits: LimitSettings) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValidationError: not JSON, not an object, nested too deep, or of too many values.
    """
    num_openers = body.count(b"[") + body.count(b"{")
    if (
        num_openers > limits.max_json_depth
        or num_openers + body.count(b",") > limits.max_json_values
    ):
        check_structure(body, limits.max_json_depth, limits.max_json_values)
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValidationError(
            "the body is not valid JSON (NaN, Infinity and lone surrogates are not allowed): "
            f"{error}"
        ) from None
    if not isinstance(data, dict):
        raise ValidationError("the body must be a JSON object")
    return data


def check_structure(body: bytes, max_depth: int, max_values: int) -> None:
    """Count without decoding, up to the first limit that is passed; linear in the length.

    Every value but the first begins behind a bracket or a comma. Numbers that follow a comma are
    not counted: prompts of token ids may fill a body, and take little memory.

    Raises:
        ValidationError: names the limit.
    """
    depth = num_values = 0
    for match in _STRUCTURE.finditer(body):
        mark = match[1]
        if mark in (b"[", b"{"):
            depth += 1
            num_values += 1
            if depth > max_depth:
                raise ValidationError(
                    f"the body is nested more than {max_depth} deep (--max-json-depth)"
                )
        elif mark == b",":
            num_values += 1
        elif mark:
            depth -= 1
        if num_values > max_values:
            raise ValidationError(
                f"the body holds more than {max_values} values (--max-json-values)"
            )


def unknown_fields(record: RequestRecord, prefix: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """Fields that no record knows: the path before the name, the name, and the known ones there."""
    known = list(type(record).model_fields)
    for name in record.model_extra or {}:
        yield prefix, name, known
    for name in record.model_fields_set:
        value = getattr(record, name, None)
        if isinstance(value, RequestRecord):
            yield from unknown_fields(value, f"{prefix}{name}.")


async def _read_limited(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLargeError(_too_large(limit))
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BodyTooLargeError(_too_large(limit))
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit} bytes (--max-body-size)"
