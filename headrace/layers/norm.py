"""Normalisation."""

from __future__ import annotations

from headrace.ops.ops import F32, Array, Ops


class RMSNorm:
    """x / rms(x) * weight (Zhang and Sennrich 2019). [rows, H] -> [rows, H]"""

    def __init__(self, ops: Ops, weight: F32, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        return self.ops.rms_norm(x, self.weight, self.eps)
