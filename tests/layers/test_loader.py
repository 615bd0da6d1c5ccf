"""What a loader asks the operations for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.layers.loader import Loader
from headrace.ops.formats import StoredTensor, WeightFormat


class Weights:
    """Zeros of one shape and format, under any name."""

    def __init__(self, fmt: WeightFormat) -> None:
        self.fmt = fmt

    def has(self, name: str) -> bool:
        return True

    def get(self, name: str) -> StoredTensor:
        data = np.zeros((32, self.fmt.row_bytes(32)), np.uint8)
        return StoredTensor(name, self.fmt, (32, 32), data, "a.gguf")

    def get_vector(self, name: str) -> Any:
        return np.zeros(32, np.float32)


class RecordingOps:
    """Keeps what was asked for: (operation, names of the weights, quantization)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], Any]] = []

    def prepare_linear(self, parts: Any, quantization: Any = None) -> None:
        self.calls.append(("linear", [part.name for part in parts], quantization))

    def prepare_gated(self, gate: Any, up: Any, quantization: Any = None) -> None:
        self.calls.append(("gated", [gate.name, up.name], quantization))

    def prepare_table(self, table: Any) -> None:
        self.calls.append(("table", [table.name], None))


def _load_all(load: Loader) -> None:
    layer = load.at("layers").at(3)
    layer.linear(["q", "k"], [32, 32], 32, bias=False)
    layer.gated_linear("gate", "up", 32, 32, "silu")
    load.embedding("embed", 32, 32)
    load.tied_linear("embed", 32, 32)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_quantization_reaches_every_product_and_no_table(quantization: Any) -> None:
    ops: Any = RecordingOps()
    _load_all(Loader(Weights(WeightFormat.BF16), ops, quantization=quantization))
    assert ops.calls == [
        ("linear", ["layers.3.q.weight", "layers.3.k.weight"], quantization),
        ("gated", ["layers.3.gate.weight", "layers.3.up.weight"], quantization),
        ("table", ["embed.weight"], None),
        ("linear", ["embed.weight"], quantization),
    ]


def test_int8_leaves_weights_in_blocks_and_rounds_what_meets_them() -> None:
    ops: Any = RecordingOps()
    _load_all(Loader(Weights(WeightFormat.Q4_K), ops, quantization="int8"))
    assert [call[-1] for call in ops.calls] == [
        "int8_activations", "int8_activations", None, "int8_activations",
    ]  # fmt: skip


def test_quantised_weights_load_as_they_are_without_it() -> None:
    ops: Any = RecordingOps()
    _load_all(Loader(Weights(WeightFormat.Q8_0), ops))
    assert len(ops.calls) == 4
