"""Log-probabilities in the two shapes of the API. The bytes of an answer's tokens, joined, are
the UTF-8 of its text, also where one token is only a part of a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from headrace.logprobs import Logprob, TokenLogprobMap
from headrace.server.protocol.chat import ChatLogprobs, ChatTokenLogprob, TokenLogprob
from headrace.server.protocol.completions import CompletionLogprobs
from headrace.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class LogprobWriter:
    """Writes the log-probabilities of one answer, piece by piece; keeps the place in its text.

    Args:
        tokenizer: None on a server without one; tokens are then written as ids.
        as_ids: write `token_id:N` instead of text.
        hides_special: whether the answer's text leaves special tokens out.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, as_ids: bool, hides_special: bool) -> None:
        self._tokenizer = None if as_ids else tokenizer
        self._bytes_of = tokenizer
        self._hides_special = hides_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def for_completion(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobMap | None]
    ) -> CompletionLogprobs:
        """Four lists, one entry per token; an entry of None (the first prompt token) is null."""
        out = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(token_ids, entries, strict=True):
            out.text_offset.append(self._offset)
            out.tokens.append(self._name(token_id))
            self._offset += len(self._decoder.decode(self._text_bytes(token_id)))
            if entry is None:
                out.token_logprobs.append(None)
                out.top_logprobs.append(None)
            else:
                out.token_logprobs.append(_finite(entry[token_id]))
                out.top_logprobs.append({self._name(i): _finite(p) for i, p in entry.items()})
        return out

    def for_chat(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobMap], top: int
    ) -> ChatLogprobs:
        """One record per token with its `top` best alternatives (-1: all there are)."""
        content = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            ranked = sorted(entry.items(), key=_rank)
            best = ranked if top < 0 else [item for item in ranked if _rank(item) <= top]
            alternatives = [
                TokenLogprob(self._name(i), _finite(p), self._bytes(i)) for i, p in best
            ]
            content.append(
                ChatTokenLogprob(
                    self._name(token_id),
                    _finite(entry[token_id]),
                    None if self._bytes_of is None else list(self._text_bytes(token_id)),
                    alternatives,
                )
            )
        return ChatLogprobs(content)

    def _name(self, token_id: int) -> str:
        """The token's text; `bytes:\\x..` where it is only a part of a character."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode() or self._tokenizer.token_text(token_id)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes(self, token_id: int) -> list[int] | None:
        return None if self._bytes_of is None else list(self._bytes_of.token_bytes(token_id))

    def _text_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text of the answer."""
        tokenizer = self._bytes_of
        if tokenizer is None or (self._hides_special and tokenizer.is_special(token_id)):
            return b""
        return tokenizer.token_bytes(token_id)


def prompt_logprobs(
    entries: Sequence[TokenLogprobMap | None] | None,
) -> list[dict[str, dict[str, Any]] | None] | None:
    """The field `prompt_logprobs`: token id -> what is known about it, per prompt token."""
    if entries is None:
        return None
    return [
        None if entry is None else {str(i): _as_dict(p) for i, p in entry.items()}
        for entry in entries
    ]


def _as_dict(value: Logprob) -> dict[str, Any]:
    return {
        "logprob": _finite(value), "rank": value.rank, "decoded_token": value.decoded_token,
    }  # fmt: skip


def _finite(value: Logprob) -> float:
    return max(value.logprob, LOWEST)


def _rank(item: tuple[int, Logprob]) -> int:
    return item[1].rank or 0


def with_prompt(
    prompt: CompletionLogprobs, answer: CompletionLogprobs | None
) -> CompletionLogprobs:
    """One record over prompt and answer, for `echo`."""
    if answer is None:
        return prompt
    return CompletionLogprobs(
        prompt.text_offset + answer.text_offset,
        prompt.token_logprobs + answer.token_logprobs,
        prompt.tokens + answer.tokens,
        prompt.top_logprobs + answer.top_logprobs,
    )
