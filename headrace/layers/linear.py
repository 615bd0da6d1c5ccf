"""Projections: y = x W^T + b, and the gated pair of a feed-forward block."""

from __future__ import annotations

from typing import cast, get_args

from headrace.errors import ModelError
from headrace.ops import ops as contract
from headrace.ops.ops import F32, Activation, Array, Ops

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class Linear:
    """One or several matrices applied at once. [rows, K] -> [rows, N]"""

    def __init__(self, ops: Ops, weight: contract.Linear, bias: F32 | None) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Array) -> Array:
        return self.ops.linear(x, self.weight, self.bias)


class GatedLinear:
    """activation(x W_gate^T) * (x W_up^T) (Shazeer 2020, "GLU Variants Improve Transformer")."""

    def __init__(self, ops: Ops, weight: contract.Linear, activation: str) -> None:
        self.ops = ops
        self.weight = weight
        self.activation = _activation(activation)

    def __call__(self, x: Array) -> Array:
        return self.ops.gated_linear(x, self.weight, self.activation)


def _activation(name: str) -> Activation:
    known = _ACTIVATIONS.get(name, name)
    if known not in get_args(Activation):
        raise ModelError(f"activation {name!r} is not supported; known: {', '.join(_ACTIVATIONS)}")
    return cast(Activation, known)
