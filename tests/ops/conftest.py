"""The homes under test: the native one on every instruction set there is, and the torch one."""

from __future__ import annotations

import pytest

from headrace.ops.dispatch import available_isas
from headrace.ops.native_ops import NativeOps
from headrace.ops.torch_ops import TorchOps


@pytest.fixture(params=available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def native(isa: str) -> NativeOps:
    return NativeOps(2, isa)


@pytest.fixture
def reference() -> TorchOps:
    return TorchOps()


@pytest.fixture
def product_error(isa: str) -> float:
    """What products may differ by: tiles round both factors to bfloat16, others round what meets
    weights in blocks to 16 bits, and bfloat16 and what meets it to 14."""
    if isa.startswith("amx"):
        return 2e-2
    return 5e-6 if isa == "portable" else 5e-5
