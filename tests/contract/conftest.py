"""Engines that count upwards, and the packaged model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import LLM
from tests.engine.conftest import limit_time, tokenizer_folder

__all__ = ["limit_time", "tokenizer_folder"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The packaged model, in this process, with measurements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", "0")
        made = LLM(max_model_len=512, kv_cache_memory_bytes=64 << 20, disable_log_stats=False)
    with made:
        yield made
