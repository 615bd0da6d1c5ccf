"""Two little tokenizers, one of each kind, read from GGUF files made here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.text.token_bytes import BYTE_ALPHABET
from headrace.text.tokenizer import Tokenizer, load_tokenizer
from tests.gguf_files import write_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def make_byte_level(path: Path, **more: Any) -> Tokenizer:
    """All single bytes, a few merges, `<bos>`, `<end>` and a tool mark that is not special."""
    chars = [char for char, _ in sorted(BYTE_ALPHABET.items(), key=lambda item: item[1])]
    space = BYTE_ALPHABET_OF[0x20]
    merged = [f"{space}t", "he", f"{space}the", "lo", "Ã©"]  # the last is é
    tokens = [*chars, *merged, "<bos>", "<end>", "<tool>"]
    types = [NORMAL] * (len(tokens) - 3) + [CONTROL, CONTROL, USER_DEFINED]
    write_gguf(
        path,
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.merges": [f"{space} t", "h e", f"{space}t he", "l o", "Ã ©"],
            "tokenizer.ggml.bos_token_id": tokens.index("<bos>"),
            "tokenizer.ggml.eos_token_id": tokens.index("<end>"),
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": TEMPLATE,
            **more,
        },
    )
    return load_tokenizer(path)


def make_piece(path: Path, pieces: Sequence[str] = (), **more: Any) -> Tokenizer:
    """SentencePiece with byte fallback, whose text gets a space in front, as Llama 2's."""
    words = ["\u2581", "\u2581the", "\u2581th", "t", "h", "e", "th", "x", "é", "日", *pieces]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256), *([NORMAL] * len(words))]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))]
    write_gguf(
        path,
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": np.array(scores, np.float32),
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            **more,
        },
    )
    return load_tokenizer(path)


BYTE_ALPHABET_OF = {byte: char for char, byte in BYTE_ALPHABET.items()}


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_byte_level(tmp_path_factory.mktemp("t") / "b.gguf")


@pytest.fixture(scope="session")
def piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_piece(tmp_path_factory.mktemp("t") / "p.gguf")


@pytest.fixture(scope="session")
def bare_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """SentencePiece without the space in front, as Gemma's."""
    path = tmp_path_factory.mktemp("t") / "g.gguf"
    return make_piece(path, **{"tokenizer.ggml.add_space_prefix": False})
