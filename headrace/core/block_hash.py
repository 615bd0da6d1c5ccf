"""Names for the content of KV blocks: chained SHA-256 digests over tokens and everything that
shapes their keys and values. Holds no blocks and decides nothing about sharing.

Encoding (every number little-endian, every variable part behind its length):

    root  = SHA-256("headrace.kv.root." | u32 block_size | u32 number of keys | key fields)
    field = u32 length | name | one letter for the type of the value | u64 length | value
    block = SHA-256("headrace.kv.block" | digest before it | u32 number of tokens | u32 per token)

A digest thus stands for one prefix: two of them are equal only when block size, extra keys and
every token up to the end of the block are.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

ExtraValue: TypeAlias = str | int | bytes | None

_ROOT_DOMAIN = b"headrace.kv.root."
_BLOCK_DOMAIN = b"headrace.kv.block"


def root_digest(block_size: int, extra_keys: Mapping[str, ExtraValue]) -> bytes:
    """The digest that stands before the first block.

    Args:
        block_size: tokens per block.
        extra_keys: what the whole request depends on beside its tokens, such as its cache salt.
            The order of the keys does not matter; a missing key differs from one that is None.
    """
    fields = [_field(name, extra_keys[name]) for name in sorted(extra_keys)]
    head = struct.pack("<II", block_size, len(fields))
    return hashlib.sha256(b"".join((_ROOT_DOMAIN, head, *fields))).digest()


class BlockHashChain:
    """The digests of one request's full blocks, each computed once."""

    __slots__ = ("_block_size", "_extra_keys", "_pack", "_parent", "digests")

    def __init__(self, block_size: int, extra_keys: Mapping[str, ExtraValue]) -> None:
        self._block_size = block_size
        self._extra_keys = extra_keys
        self._pack = struct.Struct(f"<I{block_size}I").pack
        self._parent = b""
        self.digests: list[bytes] = []
        """One per full block hashed so far."""

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Make sure the first `num_blocks` blocks of `token_ids` have digests; returns them all.

        The tokens of blocks that have a digest already must not have changed since.
        """
        digests, size = self.digests, self._block_size
        if len(digests) >= num_blocks:
            return digests
        parent = self._parent or root_digest(size, self._extra_keys)
        pack, sha256 = self._pack, hashlib.sha256
        for start in range(len(digests) * size, num_blocks * size, size):
            tokens = pack(size, *token_ids[start : start + size])
            parent = sha256(_BLOCK_DOMAIN + parent + tokens).digest()
            digests.append(parent)
        self._parent = parent
        return digests


def _field(name: str, value: ExtraValue) -> bytes:
    match value:
        case None:
            kind, body = b"N", b""
        case str():
            kind, body = b"S", value.encode("utf-8", "surrogatepass")
        case bytes():
            kind, body = b"B", value
        case int():
            kind, body = b"I", str(int(value)).encode()
    key = name.encode()
    return b"".join((struct.pack("<I", len(key)), key, kind, struct.pack("<Q", len(body)), body))
