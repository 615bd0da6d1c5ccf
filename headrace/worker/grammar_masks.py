"""What may come next for the requests of a step that follow a grammar, found while the model runs.

Loads the grammar library when the first such request comes, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ValidationError
from headrace.messages.requests import Vocabulary

_COMPILER = ("headrace.structured.compiler", "GrammarCompiler")
"""Imported on use: most cores never see a grammar."""


class StepMasks:
    """The masks of one step.

    Attributes:
        masks: [masked requests, words]; see `structured.compiler.Masks`.
        rows: for each request that samples, the row of its mask, or -1.
    """

    __slots__ = ("_done", "masks", "rows")

    def __init__(self, masks: npt.NDArray[np.uint32], rows: list[int], done: Future[None]) -> None:
        self.masks = masks
        self.rows = rows
        self._done = done

    def wait(self) -> None:
        """Until the masks are filled."""
        self._done.result()


class Grammars:
    """The grammars of one worker, and the thread that fills masks beside the model.

    Args:
        vocab_size: logits in a row.
        num_threads: the engine's number of threads.
    """

    def __init__(self, vocab_size: int, num_threads: int) -> None:
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        self._vocabulary: Vocabulary | None = None
        self._compiler: Any = None
        self._lock = Lock()
        self._thread: ThreadPoolExecutor | None = None

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take the tokens' bytes. Unless they are used now, that waits until a grammar comes."""
        self._vocabulary = vocabulary
        if vocabulary.is_used_now:
            self._loaded()

    def prepare(self, grammar: str) -> None:
        """Compile a grammar so that `start` takes no time. From any thread.

        Raises:
            ValidationError: it cannot be compiled.
        """
        self._loaded().compile(grammar)

    def start(self, grammar: str, token_ids: Sequence[int]) -> Any:
        """A `GrammarState` for a request that has generated these tokens.

        Raises:
            ValidationError: it cannot be compiled, or the tokens do not follow it.
        """
        return self._loaded().start(grammar, token_ids)

    def begin(self, states: Sequence[Any]) -> StepMasks | None:
        """Start to fill the masks of a step.

        Args:
            states: of each request that samples; None for those without a grammar.

        Returns:
            None when no request has one.
        """
        rows: list[int] = []
        present: list[Any] = []
        for state in states:
            rows.append(-1 if state is None else len(present))
            if state is not None:
                present.append(state)
        if not present:
            return None
        compiler = self._loaded()
        masks = np.empty((len(present), compiler.mask_words), np.uint32)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "grammar-masks")
        return StepMasks(masks, rows, self._thread.submit(compiler.fill, present, masks))

    def shutdown(self) -> None:
        """End the thread. Idempotent."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _loaded(self) -> Any:
        with self._lock:
            if self._compiler is None:
                if self._vocabulary is None:
                    raise ValidationError("a grammar came before the vocabulary")
                module, name = _COMPILER
                self._compiler = getattr(import_module(module), name)(
                    self._vocabulary, self._vocab_size, self._num_threads
                )
            return self._compiler
