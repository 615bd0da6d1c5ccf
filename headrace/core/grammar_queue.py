"""Requests whose grammars are being compiled beside the engine loop, and then come back to it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import ValidationError
from headrace.logger import make_logger
from headrace.messages.requests import EngineCoreRequest

logger = make_logger(__name__)


class GrammarQueue:
    """Compiles in a thread of its own. All methods are for the loop's thread.

    Args:
        compile_grammar: may be called from any thread.
        on_ready: called in the other thread with the request's id, what is wrong with its grammar,
            if anything, and the field that is at fault, if one is.
    """

    def __init__(
        self,
        compile_grammar: Callable[[str], None],
        on_ready: Callable[[str, str | None, str | None], None],
    ) -> None:
        self._compile_grammar = compile_grammar
        self._on_ready = on_ready
        self._held: dict[str, tuple[EngineCoreRequest, int]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def hold(self, request: EngineCoreRequest, drawn_seed: int) -> None:
        """Keep a request until its grammar is compiled."""
        self._held[request.request_id] = (request, drawn_seed)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "core-grammar")
        self._thread.submit(self._compile, request)

    def take(self, request_id: str) -> tuple[EngineCoreRequest, int] | None:
        """Let go of a request: itself and its seed; None when it is not held (any more)."""
        return self._held.pop(request_id, None)

    def request_ids(self) -> list[str]:
        """Those that are held."""
        return list(self._held)

    def _compile(self, request: EngineCoreRequest) -> None:
        error = param = None
        if request.request_id in self._held and request.grammar is not None:
            try:
                self._compile_grammar(request.grammar)
            except ValidationError as fault:
                error, param = f"structured_outputs: {fault}", "structured_outputs"
            except BaseException:  # the library's own panics are no Exceptions
                logger.exception("the grammar of request %s failed", request.request_id)
                error = "the grammar of this request could not be compiled; see the engine's log"
        self._on_ready(request.request_id, error, param)
