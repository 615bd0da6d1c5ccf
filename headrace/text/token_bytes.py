"""What bytes a token stands for, by the kind of decoder its tokenizer has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import ModelError

BytesOfToken = Callable[[str], bytes]

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """How tokens become text: the joined bytes of all tokens, read as UTF-8.

    Attributes:
        to_bytes: bytes of one token, given its text in the vocabulary.
        strips_leading_space: whether a text loses one space at its very beginning, which its
            tokenizer had put there.
    """

    to_bytes: BytesOfToken
    strips_leading_space: bool = False


def make_token_decoder(state: bytes | None, where: str) -> TokenDecoder:
    """The decoder that a tokenizer's own decoder component describes.

    Args:
        state: the component as JSON, or None when the tokenizer has none.
        where: the tokenizer's file, for messages.

    Raises:
        ModelError: a kind that is not supported.
    """
    component: dict[str, Any] = json.loads(state) if state else {"type": "none"}
    is_sequence = component["type"] == "Sequence"
    parts: list[dict[str, Any]] = component["decoders"] if is_sequence else [component]
    kinds = [part["type"] for part in parts]
    if "ByteLevel" in kinds:
        return TokenDecoder(byte_level_bytes)
    if kinds == ["Metaspace"]:
        return TokenDecoder(piece_bytes, parts[0].get("prepend_scheme", "always") != "never")
    if "ByteFallback" in kinds and _replaces_space_mark(parts):
        return TokenDecoder(piece_bytes, "Strip" in kinds)
    raise ModelError(f"{where}: a tokenizer with the decoder {', '.join(kinds)} is not supported")


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token spelled in the byte-level alphabet; any other text stands for itself."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def piece_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: `<0xE2>` is one byte, the mark U+2581 is a space."""
    byte = _BYTE_PIECE.fullmatch(token)
    return bytes.fromhex(byte[1]) if byte else token.replace(_SPACE, " ").encode()


def _replaces_space_mark(parts: list[dict[str, Any]]) -> bool:
    return any(
        part["type"] == "Replace"
        and part.get("pattern") == {"String": _SPACE}
        and part.get("content") == " "
        for part in parts
    )


def _make_byte_alphabet() -> dict[str, int]:
    """The printable characters with which GPT-2's byte-level vocabularies spell bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _make_byte_alphabet()
