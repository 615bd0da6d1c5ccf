"""What the two processes tell each other before the first request."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.config.engine import EngineConfig


class EngineHello(
    msgspec.Struct, array_like=True, tag="hello", frozen=True, forbid_unknown_fields=True
):
    """Core to front: I am here (sent at once), at stage `stage` (sent again as it goes on)."""

    pid: int
    stage: str = "starting"
    fraction: float = 0.0


class EngineSetup(
    msgspec.Struct, array_like=True, tag="setup", frozen=True, forbid_unknown_fields=True
):
    """Front to core: what to be."""

    config: EngineConfig


class EngineReady(
    msgspec.Struct, array_like=True, tag="ready", frozen=True, forbid_unknown_fields=True
):
    """Core to front: serving; and what was learnt on the way."""

    max_model_len: int
    num_blocks: int
    block_size: int
    kv_cache_bytes: int
    weight_bytes: int
    isa: str
    """Which kernels compute: amx, avx512, avx2, portable, or torch:<device>."""


class EngineFailed(
    msgspec.Struct, array_like=True, tag="failed", frozen=True, forbid_unknown_fields=True
):
    """Core to front: it cannot be; one line for the user."""

    reason: str
    is_user_error: bool = True
    """Whether the reason is a setting or a file (else it is a fault of ours, with a log)."""
    error: str = "EngineStartError"
    """The class in `headrace.errors` to raise."""


StartupMessage: TypeAlias = EngineHello | EngineReady | EngineFailed
