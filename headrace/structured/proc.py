"""The process that checks grammars: `python -m headrace.structured.proc`, started by the front.

Whatever a schema or pattern costs, it costs this process, which is ended when it takes too long or
too much memory; requests and answers of others go on meanwhile.
"""

from __future__ import annotations

import argparse
import os
import resource
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader

import msgspec

from headrace.errors import ValidationError
from headrace.ipc.process import LIFE_PIPE, PARENT_PIPE, ParentWatch
from headrace.messages.grammars import GrammarAnswer, GrammarQuery
from headrace.messages.requests import Vocabulary
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler

MAX_MEMORY = 8 << 30
"""Of address space, most of which is never touched: threads reserve much."""
STACK_BYTES = 1 << 20
"""Half of what any thread of the core has: what nests too deep ends this process and no other."""
_LENGTH = struct.Struct("<I")


def main() -> int:
    """Answer queries until the pipe ends."""
    parser = argparse.ArgumentParser(prog="headrace.structured.proc", description=__doc__)
    parser.add_argument(PARENT_PIPE, dest="parent_pipe", type=int, required=True)
    parser.add_argument(LIFE_PIPE, dest="life_pipe", type=int, required=True)
    parser.add_argument("--queries", type=int, required=True, help="descriptor to read from")
    parser.add_argument("--answers", type=int, required=True, help="descriptor to write to")
    options = parser.parse_args()
    watch = ParentWatch(options.parent_pipe, options.life_pipe, lambda: None)
    watch.use_signal()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY if most == resource.RLIM_INFINITY else min(MAX_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    threading.stack_size(STACK_BYTES)
    with ThreadPoolExecutor(1, "checker") as pool:
        pool.submit(serve, options.queries, options.answers).result()
    return 0


def serve(queries_fd: int, answers_fd: int) -> None:
    """Say with an empty frame that it can begin; answer what comes, until the pipe ends."""
    decoder = msgspec.msgpack.Decoder(GrammarQuery)
    checker = Checker()
    with os.fdopen(queries_fd, "rb") as queries, os.fdopen(answers_fd, "wb") as answers:
        answers.write(framed(b""))
        answers.flush()
        while (frame := read_frame(queries)) is not None:
            answers.write(framed(msgspec.msgpack.encode(checker.answer(decoder.decode(frame)))))
            answers.flush()


class Checker:
    """Builds grammars and tries whether they compile, with a vocabulary of single bytes."""

    def __init__(self) -> None:
        self._compiler: GrammarCompiler | None = None

    def answer(self, query: GrammarQuery) -> GrammarAnswer:
        """The grammar, or why there is none."""
        try:
            grammar = build_grammar(query.params, query.limits)
            if self._compiler is None:
                self._compiler = _byte_compiler(query.special_tokens)
            self._compiler.try_out(grammar)
        except ValidationError as error:
            return GrammarAnswer(None, str(error), error.param)
        return GrammarAnswer(grammar)


def _byte_compiler(special_tokens: list[bytes]) -> GrammarCompiler:
    """A grammar does not depend on how texts are cut into tokens, but for the names of marks."""
    tokens = [bytes([byte]) for byte in range(256)]
    marks = [*special_tokens, b"end of text"]
    special = list(range(256, 256 + len(marks)))
    vocabulary = Vocabulary(tokens + marks, special, special[-1:])
    return GrammarCompiler(vocabulary, len(tokens) + len(marks))


def framed(data: bytes) -> bytes:
    """Bytes behind their length."""
    return _LENGTH.pack(len(data)) + data


def read_frame(pipe: BufferedReader) -> bytes | None:
    """The next bytes, or None at the end."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return data if len(data) == length else None


if __name__ == "__main__":
    sys.exit(main())
