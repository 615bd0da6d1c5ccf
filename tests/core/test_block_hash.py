"""Digests of KV blocks: equal for equal prefixes, different for everything else."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block_hash import BlockHashChain, root_digest

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
SALTS = st.one_of(st.none(), st.text(max_size=4))


def digests(tokens: list[int], block_size: int = 4, salt: str | None = None) -> list[bytes]:
    chain = BlockHashChain(block_size, {"cache_salt": salt})
    return chain.extend(tokens, len(tokens) // block_size)


def test_digests_of_known_input_are_stable() -> None:
    # Written down once: a change of the encoding must be meant.
    (digest,) = digests([1, 2, 3, 4], salt="a")
    assert digest.hex() == "46a0ba6617ef43c9fb414620a30e019d2c5c0c5e93173556cd8fb0c247ba6626"


@given(TOKENS, st.integers(1, 8), SALTS)
def test_extending_in_pieces_equals_extending_at_once(
    tokens: list[int], size: int, salt: str | None
) -> None:
    chain = BlockHashChain(size, {"cache_salt": salt})
    for num_blocks in range(len(tokens) // size + 1):
        known = list(chain.digests)
        assert chain.extend(tokens, num_blocks)[: len(known)] == known
        assert len(chain.digests) == num_blocks
    assert chain.digests == digests(tokens, size, salt)


@given(TOKENS, TOKENS, SALTS, SALTS, st.integers(1, 4))
def test_two_prefixes_agree_exactly_as_far_as_their_blocks_do(
    left: list[int], right: list[int], left_salt: str | None, right_salt: str | None, size: int
) -> None:
    pairs = list(
        zip(digests(left, size, left_salt), digests(right, size, right_salt), strict=False)
    )
    for idx, (a, b) in enumerate(pairs):
        end = (idx + 1) * size
        assert (a == b) == (left_salt == right_salt and left[:end] == right[:end])


def test_extending_with_fewer_blocks_than_known_changes_nothing() -> None:
    chain = BlockHashChain(2, {})
    known = list(chain.extend([1, 2, 3, 4], 2))
    assert chain.extend([1, 2, 3, 4], 1) == known


def test_near_equal_inputs_never_collide() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    variants: dict[bytes, object] = {}

    def note(digest: bytes, what: object) -> None:
        assert digest not in variants, (what, variants[digest])
        variants[digest] = what

    for size in (1, 2, 4, 8):
        for salt in (None, "", "\0", "a", "ab", "None", "0"):
            for idx, digest in enumerate(digests(tokens, size, salt)):
                note(digest, (size, salt, idx))
    for tokens in ([0] * 8, [0, 0, 0, 1] * 2, [1, 0, 0, 0] * 2, [256, 0, 0, 0] * 2, [2**24] * 8):
        for idx, digest in enumerate(digests(tokens, 4)):
            note(digest, (tokens, idx))


def test_fields_of_extra_keys_never_run_into_each_other() -> None:
    cases: list[dict[str, str | int | bytes | None]] = [
        {},
        {"a": None},
        {"a": ""},
        {"a": b""},
        {"a": 0},
        {"a": "0"},
        {"a": b"0"},
        {"a": 1},
        {"a": -1},
        {"aS": ""},
        {"a": "b", "c": "d"},
        {"a": "bc", "": "d"},
        {"ab": "", "c": "d"},
        {"a": "bcd"},
        {"a": "\ud800"},
        {"a": 2**70},
    ]
    assert len({root_digest(16, case) for case in cases}) == len(cases)


def test_order_of_extra_keys_does_not_matter() -> None:
    assert root_digest(16, {"a": 1, "b": 2}) == root_digest(16, {"b": 2, "a": 1})


def test_one_changed_token_changes_every_digest_from_its_block_on() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(50_000) for _ in range(64)]
    plain = digests(tokens)
    for position in range(64):
        other = digests([*tokens[:position], tokens[position] ^ 1, *tokens[position + 1 :]])
        same = [a == b for a, b in zip(plain, other, strict=True)]
        assert same == [idx < position // 4 for idx in range(16)]


def test_token_id_outside_32_bits_is_refused() -> None:
    with pytest.raises(struct.error):
        digests([2**32, 0, 0, 0])
