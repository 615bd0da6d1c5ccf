"""A model of random weights, so small that a whole battery takes a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.config.args import EngineArgs

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """Its folder; only for load_format dummy."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def tiny_args(tiny_model: Path) -> EngineArgs:
    """Its engine, as the battery would start it."""
    return EngineArgs(
        model=str(tiny_model), load_format="dummy", skip_tokenizer_init=True,
        disable_log_stats=True, max_model_len=256,
    )  # fmt: skip
