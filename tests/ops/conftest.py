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
    """What products may differ by: tiles round both factors to bfloat16."""
    return 2e-2 if isa.startswith("amx") else 5e-6
