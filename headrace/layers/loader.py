"""Pulls the weights of one part of a model by checkpoint name, checking every shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from headrace.errors import ModelError
from headrace.layers.embedding import Embedding
from headrace.layers.linear import GatedLinear, Linear
from headrace.layers.norm import RMSNorm
from headrace.ops.formats import StoredTensor
from headrace.ops.ops import F32, Ops, Quantization


class WeightSource(Protocol):
    """Named weights of one model, under their Hugging Face checkpoint names."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> StoredTensor:
        """Raises ModelError when there is no such weight."""
        ...

    def get_vector(self, name: str) -> F32:
        """A vector as float32, in the checkpoint's meaning."""
        ...


class Loader:
    """A view of a model's weights below one prefix, such as `model.layers.3.self_attn`.

    Attributes:
        ops: the home that prepares the weights; layers keep it to compute with.
        quantization: what the matrices of products become; embedding tables stay as stored. With
            `int8`, weights that are in blocks already stay so, and only activations are rounded.
    """

    def __init__(
        self,
        weights: WeightSource,
        ops: Ops,
        prefix: str = "",
        quantization: Quantization | None = None,
    ) -> None:
        self.weights = weights
        self.ops = ops
        self.prefix = prefix
        self.quantization = quantization

    def at(self, name: str | int) -> Loader:
        """The view one name further down."""
        return Loader(self.weights, self.ops, self._path(str(name)), self.quantization)

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name below the prefix."""
        return self.weights.has(self._path(name))

    def linear(
        self, names: Iterable[str], sizes: Iterable[int], inputs: int, *, bias: bool
    ) -> Linear:
        """Matrices [sizes[i], inputs] side by side as one projection.

        Args:
            bias: whether the checkpoint has a bias for each of them.
        """
        pairs = list(zip(names, sizes, strict=True))
        parts = [self._matrix(f"{name}.weight", (size, inputs)) for name, size in pairs]
        vector = None
        if bias:
            vector = np.concatenate([self.vector(f"{name}.bias", size) for name, size in pairs])
        return Linear(self.ops, self.ops.prepare_linear(parts, self._quantization(parts)), vector)

    def gated_linear(
        self, gate: str, up: str, size: int, inputs: int, activation: str
    ) -> GatedLinear:
        """The two matrices [size, inputs] of a gated feed-forward.

        Raises ModelError for an activation there is no kernel for.
        """
        first, second = (self._matrix(f"{name}.weight", (size, inputs)) for name in (gate, up))
        weight = self.ops.prepare_gated(first, second, self._quantization([first, second]))
        return GatedLinear(self.ops, weight, activation)

    def rms_norm(self, name: str, size: int, eps: float, *, offset: float = 0.0) -> RMSNorm:
        """A norm whose checkpoint stores `weight - offset`."""
        return RMSNorm(self.ops, self.vector(f"{name}.weight", size) + np.float32(offset), eps)

    def embedding(
        self, name: str, vocab_size: int, hidden_size: int, *, scale: float = 1.0
    ) -> Embedding:
        """An embedding table [vocab_size, hidden_size]."""
        table = self._matrix(f"{name}.weight", (vocab_size, hidden_size))
        return Embedding(self.ops, self.ops.prepare_table(table), scale)

    def tied_linear(self, embedding: str, vocab_size: int, hidden_size: int) -> Linear:
        """The output matrix of a model that uses its embedding table for it."""
        parts = [self._matrix(f"{embedding}.weight", (vocab_size, hidden_size))]
        return Linear(self.ops, self.ops.prepare_linear(parts, self._quantization(parts)), None)

    def vector(self, name: str, size: int) -> F32:
        """A vector [size] as float32."""
        path = self._path(name)
        vector = self.weights.get_vector(path)
        _check_shape(path, self.weights.get(path).source, (size,), vector.shape)
        return vector

    def _matrix(self, name: str, shape: tuple[int, int]) -> StoredTensor:
        tensor = self.weights.get(self._path(name))
        _check_shape(tensor.name, tensor.source, shape, tensor.shape)
        return tensor

    def _quantization(self, parts: list[StoredTensor]) -> Quantization | None:
        """What int8 means for these: 4-bit weights would only grow by becoming 8-bit ones."""
        if self.quantization == "int8" and any(part.format.block_size > 1 for part in parts):
            return "int8_activations"
        return self.quantization

    def _path(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name


def _check_shape(name: str, source: str, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    if tuple(found) != expected:
        raise ModelError(
            f"{source}: tensor {name} has shape {list(found)}, expected {list(expected)} "
            "from the model's configuration"
        )
