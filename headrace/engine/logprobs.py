"""Log-probabilities as the core gives them, made into what users see."""

from __future__ import annotations

from collections.abc import Callable

from headrace.logprobs import (
    FlatLogprobs,
    Logprob,
    PromptLogprobs,
    TokenLogprobMap,
    TokenLogprobs,
)
from headrace.messages.outputs import TokenLogprobs as CoreLogprobs
from headrace.sampling_params import SamplingParams

TokenText = Callable[[int], str]
"""The text of one token by itself."""


class LogprobMaker:
    """Makes the log-probabilities of one request.

    Args:
        params: whether they are flat, and whether the alternatives are the likeliest tokens, whose
            ranks are known, or tokens that were asked for.
        token_text: None without a tokenizer.
    """

    __slots__ = ("_is_flat", "_knows_ranks", "_token_text")

    def __init__(self, params: SamplingParams, token_text: TokenText | None) -> None:
        self._is_flat = params.flat_logprobs
        self._knows_ranks = params.logprob_token_ids is None
        self._token_text = token_text

    def start(self) -> TokenLogprobs:
        """An empty container of the request's kind."""
        return FlatLogprobs() if self._is_flat else []

    def append(self, logprobs: TokenLogprobs, entry: CoreLogprobs) -> None:
        """Add a position: the chosen token first, then the alternatives."""
        logprobs.append(self._to_map(entry, self._knows_ranks))

    def prompt(self, entries: list[CoreLogprobs]) -> PromptLogprobs:
        """A whole prompt; nothing is known of its first token."""
        maps = [None, *(self._to_map(entry, True) for entry in entries)]
        if not self._is_flat:
            return maps
        flat = FlatLogprobs()
        flat.extend(maps)
        return flat

    def _to_map(self, entry: CoreLogprobs, knows_ranks: bool) -> TokenLogprobMap:
        ids = entry.token_ids
        found: TokenLogprobMap = {ids[0]: self._logprob(ids[0], entry.logprobs[0], entry.rank)}
        for i in range(1, len(ids)):
            if ids[i] not in found:
                rank = i if knows_ranks else None
                found[ids[i]] = self._logprob(ids[i], entry.logprobs[i], rank)
        return found

    def _logprob(self, token_id: int, logprob: float, rank: int | None) -> Logprob:
        text = None if self._token_text is None else self._token_text(token_id)
        return Logprob(logprob, rank, text)
