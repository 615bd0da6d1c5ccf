"""Log-probabilities as the core gives them, made into the maps users see."""

from __future__ import annotations

from collections.abc import Callable

from headrace.messages.outputs import TokenLogprobs
from headrace.outputs import Logprob, TokenLogprobMap

TokenText = Callable[[int], str]
"""The text of one token by itself."""


def to_map(entry: TokenLogprobs, token_text: TokenText | None) -> TokenLogprobMap:
    """One position: the chosen token first, then the most likely ones, best first."""
    ids = entry.token_ids
    ranks = range(1, len(ids))
    found: TokenLogprobMap = {ids[0]: _logprob(ids[0], entry.logprobs[0], entry.rank, token_text)}
    for token_id, logprob, rank in zip(ids[1:], entry.logprobs[1:], ranks, strict=True):
        if token_id not in found:
            found[token_id] = _logprob(token_id, logprob, rank, token_text)
    return found


def to_prompt_maps(
    entries: list[TokenLogprobs], token_text: TokenText | None
) -> list[TokenLogprobMap | None]:
    """A whole prompt; nothing is known of its first token."""
    return [None, *(to_map(entry, token_text) for entry in entries)]


def _logprob(token_id: int, logprob: float, rank: int, token_text: TokenText | None) -> Logprob:
    return Logprob(logprob, rank, token_text(token_id) if token_text is not None else None)
