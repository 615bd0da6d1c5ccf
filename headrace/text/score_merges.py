"""Turns the scores of a SentencePiece vocabulary into the ordered merges of a byte-pair coder.

SentencePiece joins the neighbours whose union has the best score. So every way to split a token
into two others is a merge, ordered by the token's score. Done with hashes on whole arrays, since
large vocabularies have over a million ways to split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

MAX_TOKEN_CHARS = 1 << 16
_BASE = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xD6E8FEB86659FD93)
_TABLE_BITS = 22


def merges_from_scores(
    tokens: Sequence[str], scores: npt.NDArray[np.floating]
) -> list[tuple[str, str]]:
    """All merges, the first to be applied first.

    Args:
        tokens: the vocabulary, each token once, shorter than 65,536 characters.
        scores: one a token, higher is earlier. Equal scores: longer left part first, then
            longer right part, then order of tokens.
    """
    whole, left, right = _find_splits(tokens)
    num_chars = np.fromiter(map(len, tokens), np.int64, len(tokens))
    _, rank = np.unique(-np.asarray(scores, np.float64), return_inverse=True)
    # lengths count down from a 16-bit maximum, so that longer parts sort first
    key = (rank[whole] << 32) - (num_chars[left] << 16) - num_chars[right]
    order = np.argsort(key, kind="stable")
    text = tokens.__getitem__
    return list(zip(map(text, left[order].tolist()), map(text, right[order].tolist()), strict=True))


def _find_splits(tokens: Sequence[str]) -> tuple[I64, I64, I64]:
    """For every split of a token into two tokens: the indices of the three."""
    num_tokens = len(tokens)
    sizes = np.fromiter(map(len, tokens), np.int64, num_tokens)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    hashes = _SubstringHashes("".join(tokens))
    index = _HashIndex(hashes.of(starts, ends))
    num_cuts = np.maximum(sizes - 1, 0)
    whole = np.repeat(np.arange(num_tokens), num_cuts)
    cuts = np.arange(len(whole)) - np.repeat(np.cumsum(num_cuts) - num_cuts, num_cuts) + 1
    cuts += starts[whole]
    left = index.find(hashes.of(starts[whole], cuts))
    is_token = left >= 0
    whole, cuts, left = whole[is_token], cuts[is_token], left[is_token]
    right = index.find(hashes.of(cuts, ends[whole]))
    is_token = right >= 0
    return whole[is_token], left[is_token], right[is_token]


class _SubstringHashes:
    """Polynomial hashes modulo 2^64 of any part of a text, from running sums."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
        size = len(codes) + 1
        powers = _powers(_BASE, size)
        self._inverse_powers = _powers(pow(_BASE, -1, 2**64), size)
        self._sums = np.zeros(size, np.uint64)
        np.cumsum((codes + np.uint64(1)) * _MIX * powers[:-1], out=self._sums[1:])

    def of(self, starts: I64, ends: I64) -> U64:
        """Hashes of the parts from starts[i] to ends[i]; equal parts have equal hashes."""
        return (self._sums[ends] - self._sums[starts]) * self._inverse_powers[starts]


class _HashIndex:
    """Finds which of some distinct hashes equals each of many others."""

    def __init__(self, hashes: U64) -> None:
        self._hashes = hashes
        slots = hashes >> np.uint64(64 - _TABLE_BITS)
        self._table = np.full(1 << _TABLE_BITS, -1, np.int64)
        self._table[slots] = np.arange(len(hashes))
        # those whose slot went to another one are kept in a small sorted list
        crowded = np.nonzero(self._table[slots] != np.arange(len(hashes)))[0]
        self._crowded = crowded[np.argsort(hashes[crowded])]

    def find(self, wanted: U64) -> I64:
        """Index of each wanted hash, or -1."""
        found: I64 = self._table[wanted >> np.uint64(64 - _TABLE_BITS)]
        missed = np.nonzero((found >= 0) & (self._hashes[found] != wanted))[0]
        found[missed] = -1
        if len(self._crowded):
            candidates = self._hashes[self._crowded]
            at = np.minimum(np.searchsorted(candidates, wanted[missed]), len(candidates) - 1)
            same = candidates[at] == wanted[missed]
            found[missed[same]] = self._crowded[at[same]]
        return found


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    np.multiply.accumulate(factors, out=factors)
    return factors
