"""Look-up of n-grams once more: a scan of all tokens for every guess."""

from __future__ import annotations


def continuation(tokens: list[int], num: int, min_size: int, max_size: int) -> list[int]:
    """What came after the last earlier appearance of the longest run at the end, `num` tokens of
    it; token by token, so that a pattern goes on."""
    length = len(tokens)
    for size in range(min(max_size, length - 1), min_size - 1, -1):
        for end in range(length - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[length - size :]:
                known = list(tokens)
                for place in range(num):
                    known.append(known[end + place])
                return known[length:]
    return []
