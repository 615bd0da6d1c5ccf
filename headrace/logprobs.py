"""Log-probabilities as users see them: a map per token, or all tokens in one flat container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload


@dataclass(slots=True)
class Logprob:
    """One alternative at one position. `rank` counts from 1; None where it was not asked for."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobMap: TypeAlias = dict[int, Logprob]
"""token id -> Logprob; always holds the chosen token, so up to k + 1 entries, that one first."""


@dataclass(slots=True, eq=False)
class FlatLogprobs(Sequence[Any]):
    """The same as a list of maps, in a few lists of plain numbers and texts.

    Position i has the entries from start_indices[i] up to end_indices[i]; none, and so None, for
    the first token of a prompt. Maps are made when they are looked at.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append_fast(
        self,
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        ranks: Iterable[int | None],
        decoded_tokens: Iterable[str | None],
    ) -> None:
        """Add a position, its entries given as columns of one length."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.decoded_tokens.extend(decoded_tokens)
        self.end_indices.append(len(self.token_ids))

    def append(self, entries: TokenLogprobMap | None) -> None:
        """Add a position."""
        entries = entries or {}
        values = list(entries.values())
        self.append_fast(
            entries,
            [one.logprob for one in values],
            [one.rank for one in values],
            [one.decoded_token for one in values],
        )

    def extend(self, positions: Iterable[TokenLogprobMap | None]) -> None:
        """Add positions."""
        if isinstance(positions, FlatLogprobs):
            shift = len(self.token_ids)
            self.start_indices += [i + shift for i in positions.start_indices]
            self.end_indices += [i + shift for i in positions.end_indices]
            self.token_ids += positions.token_ids
            self.logprobs += positions.logprobs
            self.ranks += positions.ranks
            self.decoded_tokens += positions.decoded_tokens
            return
        for entries in positions:
            self.append(entries)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> TokenLogprobMap | FlatLogprobs | None:
        if isinstance(index, slice):
            return self._slice(range(len(self))[index])
        start, end = self.start_indices[index], self.end_indices[index]
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in range(start, end)
        } or None

    def _slice(self, positions: range) -> FlatLogprobs:
        part = FlatLogprobs()
        for position in positions:
            at = slice(self.start_indices[position], self.end_indices[position])
            part.append_fast(
                self.token_ids[at], self.logprobs[at], self.ranks[at], self.decoded_tokens[at]
            )
        return part

    def __iter__(self) -> Iterator[TokenLogprobMap | None]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


TokenLogprobs: TypeAlias = list[TokenLogprobMap] | FlatLogprobs
"""One entry per generated token."""
PromptLogprobs: TypeAlias = list[TokenLogprobMap | None] | FlatLogprobs
"""One entry per prompt token, the first None."""
