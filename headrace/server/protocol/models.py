"""Shapes of /v1/models."""

from __future__ import annotations

from typing import Any

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """One name under which the model is served."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """All of them, the reported one first."""

    object: str = "list"
    data: list[ModelCard]
