"""Grammars for requests: built and checked in a process of its own, under limits, and kept.

The process is started with the first request that needs it, ended when a check takes too long, and
started again for the next one.
"""

from __future__ import annotations

import asyncio
import os
import select
import struct
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TypeAlias

import msgspec

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError
from headrace.ipc.process import ChildProcess, start_process
from headrace.logger import make_logger
from headrace.messages.grammars import GrammarAnswer, GrammarQuery
from headrace.messages.requests import Vocabulary
from headrace.structured.json_schema import write_json
from headrace.structured_params import StructuredOutputsParams
from headrace.text.tokenizer import Tokenizer

logger = make_logger(__name__)

CHECKER_MODULE = "headrace.structured.proc"
START_SECONDS = 20.0
"""How long the process may take to start, which counts for no check."""
BUSY_FACTOR = 10.0
"""How many times the processor time of a check may pass on the clock: the machine has other work,
of which no schema becomes a bad one."""
MAX_KEPT = 256
MAX_KEPT_CHARACTERS = 1 << 16
"""Longer grammars are built anew each time."""
_LENGTH = struct.Struct("<I")

TimeLeft: TypeAlias = Callable[[], float]
"""Seconds that may still pass; they may turn out to be more."""


class GrammarChecker:
    """From what callers ask of texts to grammars. Safe to use from several threads.

    Args:
        config: the limits.
        tokenizer: None when the engine has none; then no grammar can be followed.
        eos_token_ids: ids that end an answer of this model.
        vocab_size: logits in a row.
    """

    def __init__(
        self,
        config: StructuredOutputsConfig,
        tokenizer: Tokenizer | None,
        eos_token_ids: list[int],
        vocab_size: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._process: _Process | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._vocabulary: Vocabulary | None = None

    def vocabulary(self) -> Vocabulary:
        """The tokens as the core needs them; made with the first grammar.

        Raises:
            ValidationError: there is no tokenizer, or no token that ends an answer.
        """
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        return self._vocabulary

    def check(self, params: StructuredOutputsParams) -> str:
        """The grammar for these parameters. May wait for others' checks and its own.

        Raises:
            ValidationError: it cannot be enforced, is over a limit, or takes too long; names the
                field.
        """
        query = self._query(params)
        known = self._find(query)
        if known is not None:
            return known
        return self._check(query, f"structured_outputs.{params.kind}")

    async def check_soon(self, params: StructuredOutputsParams) -> str:
        """The same, beside the event loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "headrace-grammar")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.check, params)

    def shutdown(self) -> None:
        """End the process. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _query(self, params: StructuredOutputsParams) -> bytes:
        vocabulary = self.vocabulary()
        names = [vocabulary.tokens[i] for i in vocabulary.special_token_ids]
        field = "structured_outputs"
        try:
            if isinstance(params.json, dict):
                field = "structured_outputs.json"
                text = write_json(params.json, field)
                params = msgspec.structs.replace(params, json=text)
            asked = msgspec.msgpack.encode(params)
            query = msgspec.msgpack.encode(GrammarQuery(params, self._config, names))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValidationError(f"{field} cannot be read: {error}", param=field) from None
        if len(asked) > self._config.max_bytes:
            raise ValidationError(
                f"structured_outputs has {len(asked)} bytes, at most {self._config.max_bytes} are "
                "allowed (--structured-outputs-max-bytes)",
                param="structured_outputs",
            )
        return query

    def _find(self, query: bytes) -> str | None:
        with self._lock:
            key = sha256(query).digest()
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def _check(self, query: bytes, field: str) -> str:
        with self._checking:
            known = self._find(query)  # somebody may have asked the same meanwhile
            if known is not None:
                return known
            answer = self._ask(query)
        if answer.grammar is None:
            text = answer.error if answer.param else f"{field}: {answer.error}"
            raise ValidationError(text, param=answer.param or field)
        if len(answer.grammar) <= MAX_KEPT_CHARACTERS:
            with self._lock:
                self._known[sha256(query).digest()] = answer.grammar
                if len(self._known) > MAX_KEPT:
                    self._known.popitem(last=False)
        return answer.grammar

    def _ask(self, query: bytes) -> GrammarAnswer:
        process = self._process
        if process is None or not process.is_alive():
            process = self._process = _Process()
        frame = None
        if process.wait_started(START_SECONDS):
            frame = process.ask(query, self._config.compile_timeout)
        if frame is not None:
            return msgspec.msgpack.decode(frame, type=GrammarAnswer)
        was_alive = process.is_alive()
        process.end()
        self._process = _Process()  # the next check need not wait for it
        limit = f"{self._config.compile_timeout:g} seconds (--structured-outputs-timeout)"
        why = f"takes longer than {limit}"
        if not was_alive:
            why = "takes more memory or deeper nesting than is allowed; ask for less at once"
        logger.warning("a grammar was refused: to compile it %s", why)
        return GrammarAnswer(None, f"to compile it {why}", None)

    def _make_vocabulary(self) -> Vocabulary:
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise ValidationError(
                "structured_outputs needs a tokenizer, and this engine has none "
                "(skip_tokenizer_init)",
                param="structured_outputs",
            )
        eos_token_ids = self._eos_token_ids or tokenizer.eos_token_ids
        if not eos_token_ids:
            raise ValidationError(
                "structured_outputs needs a model with a token that ends an answer",
                param="structured_outputs",
            )
        size = min(tokenizer.vocab_size, self._vocab_size)
        return Vocabulary(
            [tokenizer.token_bytes(i) for i in range(size)],
            [i for i in range(size) if tokenizer.is_special(i)],
            list(eos_token_ids),
        )


class _Process:
    """The running process and the two pipes to it."""

    def __init__(self) -> None:
        their_queries, self._queries = os.pipe()
        self._answers, their_answers = os.pipe()
        keep = (their_queries, their_answers)
        arguments = ["--queries", str(their_queries), "--answers", str(their_answers)]
        try:
            child = start_process("the grammar checker", CHECKER_MODULE, arguments, keep=keep)
        except BaseException:
            os.close(self._queries)
            os.close(self._answers)
            raise
        finally:
            os.close(their_queries)
            os.close(their_answers)
        os.set_blocking(self._queries, False)
        self._child = child
        self._is_started = False
        # Runs too when nobody holds it any more, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _end, child, self._queries, self._answers)

    def is_alive(self) -> bool:
        return self._child.is_ours and self._child.is_alive()

    def wait_started(self, timeout: float) -> bool:
        """Whether it takes queries, which it says once."""
        if not self._is_started:
            deadline = time.monotonic() + timeout
            self._is_started = self._answer(lambda: deadline - time.monotonic()) is not None
        return self._is_started

    def ask(self, query: bytes, timeout: float) -> bytes | None:
        """The answer, or None when it did not come in time, or the process has ended.

        Args:
            timeout: seconds of processor time.
        """
        time_left = self._time_left(timeout)
        left = memoryview(_LENGTH.pack(len(query)) + query)
        while left:
            if not _wait(self._queries, select.POLLOUT, time_left):
                return None
            try:
                left = left[os.write(self._queries, left) :]
            except BrokenPipeError:
                return None
        return self._answer(time_left)

    def _time_left(self, cpu_seconds: float) -> TimeLeft:
        child, before = self._child, self._child.cpu_seconds()
        if before is None:
            deadline = time.monotonic() + cpu_seconds
            return lambda: deadline - time.monotonic()
        most, deadline = before + cpu_seconds, time.monotonic() + BUSY_FACTOR * cpu_seconds

        def left() -> float:
            now = child.cpu_seconds()
            return -1.0 if now is None else min(most - now, deadline - time.monotonic())

        return left

    def _answer(self, time_left: TimeLeft) -> bytes | None:
        head = self._read(_LENGTH.size, time_left)
        return None if head is None else self._read(_LENGTH.unpack(head)[0], time_left)

    def _read(self, size: int, time_left: TimeLeft) -> bytes | None:
        data = b""
        while len(data) < size:
            if not _wait(self._answers, select.POLLIN, time_left):
                return None
            piece = os.read(self._answers, size - len(data))
            if not piece:
                return None
            data += piece
        return data

    def end(self) -> None:
        if self._finalizer.detach() is not None:
            _end(self._child, self._queries, self._answers)


def _end(child: ChildProcess, queries: int, answers: int) -> None:
    if not child.is_ours:
        return
    os.close(queries)
    os.close(answers)
    child.stop(0.0)


def _wait(descriptor: int, event: int, time_left: TimeLeft) -> bool:
    """Whether it became ready in time. One thread checks: its processor time passes no faster than
    the clock."""
    poll = select.poll()
    poll.register(descriptor, event)
    while True:
        seconds = time_left()
        if poll.poll(max(0.0, seconds) * 1000):
            return True
        if seconds <= 0.0:
            return False
