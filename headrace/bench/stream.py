"""One streamed completion or chat: its body, and the times at which its pieces come."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from headrace.bench.datasets import BenchRequest
from headrace.bench.http_client import HttpClient, RequestError
from headrace.bench.settings import CHAT, ServeSettings
from headrace.bench.sse import EventReader

DONE = b"[DONE]"
MAX_REASON = 200


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _TokenDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class RequestResult:
    """What became of one request. Times are of `time.perf_counter`, in seconds.

    Attributes:
        start: when it was sent.
        token_times: when pieces of the answer came, of one token or more each.
        num_prompt_tokens, num_output_tokens: as the server counts, else as is known here.
        num_cached_tokens: of the prompt, if the server tells.
        error: why it failed; None if it did not.
    """

    start: float = 0.0
    token_times: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to the first piece."""
        return self.token_times[0] - self.start

    @property
    def e2e_latency(self) -> float:
        """Time to the last piece."""
        return self.token_times[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Time per token after the first; None if there was only one."""
        if self.num_output_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.num_output_tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Times between pieces."""
        return [after - before for before, after in pairwise(self.token_times)]


def encode_body(request: BenchRequest, model: str, settings: ServeSettings) -> bytes:
    """The body of a request, as JSON."""
    is_chat = settings.endpoint == CHAT
    message = {"role": "user", "content": request.prompt}
    body: dict[str, Any] = {
        "model": model,
        **({"messages": [message]} if is_chat else {"prompt": request.prompt}),
        "max_tokens": request.output_len,
        "temperature": settings.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if settings.ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode({**body, **settings.extra_body})


async def send_streamed(
    client: HttpClient, path: str, body: bytes, num_prompt_tokens: int | None
) -> RequestResult:
    """Send a request and note what comes; what goes wrong is in the result's `error`."""
    reader = _AnswerReader(num_prompt_tokens)
    result = reader.result
    result.start = time.perf_counter()
    try:
        status, error_body = await client.post(path, body, reader.feed)
    except RequestError as error:
        result.error = str(error)
        return result
    if status != 200:
        result.error = f"HTTP {status}: {_message(error_body)}"
    else:
        reader.finish()
    return result


async def get_json(client: HttpClient, path: str) -> tuple[int, Any]:
    """Status, and the body as JSON; None if it is none.

    Raises:
        ConnectError: nobody answers there.
        RequestError: no whole answer.
    """
    status, body = await client.get(path)
    try:
        return status, msgspec.json.decode(body)
    except msgspec.DecodeError:
        return status, None


class _AnswerReader:
    """Reads the events of one answer as they come."""

    def __init__(self, num_prompt_tokens: int | None) -> None:
        self.result = RequestResult(num_prompt_tokens=num_prompt_tokens or 0)
        self._events = EventReader()
        self._is_ended = False
        self._has_usage = False

    def feed(self, piece: bytes) -> None:
        now = time.perf_counter()
        for data in self._events.feed(piece):
            if data == DONE:
                self._is_ended = True
                continue
            try:
                self._take(_decode(data), now)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._fail(f"an event that is no chunk: {data[:60].decode(errors='replace')}")

    def finish(self) -> None:
        """The answer's bytes are all there: were its events?"""
        result = self.result
        if not self._has_usage:
            result.num_output_tokens = len(result.token_times)
        if not self._is_ended:
            self._fail("the stream ended before the answer did")
        if not result.token_times:
            self._fail("the answer has no text")

    def _take(self, chunk: _Chunk, now: float) -> None:
        if chunk.error is not None:
            self._fail(f"an error in the stream: {_message_in(chunk.error)}")
        for choice in chunk.choices:
            # The first piece of a completion counts even if its token is half a character.
            is_first = choice.text is not None and not self.result.token_times
            if is_first or _has_content(choice):
                self.result.token_times.append(now)
            if choice.finish_reason is not None:
                self._is_ended = True
        if chunk.usage is not None:
            self._has_usage = True
            self.result.num_prompt_tokens = chunk.usage.prompt_tokens
            self.result.num_output_tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            self.result.num_cached_tokens = (details and details.cached_tokens) or 0

    def _fail(self, reason: str) -> None:
        self.result.error = self.result.error or reason


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


def _message(body: bytes) -> str:
    """What an error's body says, in short."""
    try:
        return _message_in(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _short(body.decode(errors="replace"))


def _message_in(value: Any) -> str:
    """The message in `{"error": {"message": ...}}`, `{"message": ...}`, `{"detail": ...}`."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            return _message_in(value[name])
    return _short(value if isinstance(value, str) else str(value))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
