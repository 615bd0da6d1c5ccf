"""What is refused before an engine is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.config.args import EngineArgs
from headrace.engine.setup import make_engine_config
from headrace.errors import ModelError

CONFIG = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}


def test_folder_without_a_tokenizer_is_refused_unless_none_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    args = EngineArgs(model=str(tmp_path), load_format="dummy")
    with pytest.raises(ModelError, match=r"no tokenizer.json.*--skip-tokenizer-init"):
        make_engine_config(args)
    args.skip_tokenizer_init = True
    assert make_engine_config(args).model.tokenizer is None
