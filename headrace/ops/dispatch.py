"""Chooses the home of the operations, and the instruction set of the native one."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, cast

from headrace.errors import ConfigError
from headrace.ops.affinity import Affinity, choose_cpus
from headrace.ops.ops import Ops

ISA_VARIABLE = "HEADRACE_ISA"
"""Forces the native kernels of one instruction set; for tests and comparisons."""

_NATIVE_MODULE = "headrace._native"


def available_isas() -> list[str]:
    """Instruction sets that are built and that this processor has, best first.

    Raises ConfigError when the native kernels are not built.
    """
    return list(_import(_NATIVE_MODULE).available_isas())


def chosen_isa() -> str:
    """The instruction set to use: the best one, or what HEADRACE_ISA names.

    Raises ConfigError when the variable names one that is not available.
    """
    isas = available_isas()
    forced = os.environ.get(ISA_VARIABLE)
    if not forced:
        return isas[0]
    if forced not in isas:
        raise ConfigError(f"{ISA_VARIABLE}={forced} is not available here; use {', '.join(isas)}")
    return forced


def make_ops(backend: str, device: str, num_threads: int, cpu_affinity: Affinity = None) -> Ops:
    """The operations of a backend, `native` or `torch`, on a device.

    Args:
        backend: `native` (CPU only) or `torch`.
        device: `cpu`, or any device PyTorch knows.
        num_threads: 0 is one per available core.
        cpu_affinity: processors to bind the threads of the native backend to.

    Raises ConfigError when they cannot be had here.
    """
    if num_threads < 0:
        raise ConfigError(f"num_threads is {num_threads}; use 0 (one per core) or more")
    if backend == "native":
        if device != "cpu":
            raise ConfigError(f"device {device} needs the torch backend; the native one has cpu")
        module = _import("headrace.ops.native_ops")
        cpus = choose_cpus(cpu_affinity, num_threads)
        return cast(Ops, module.NativeOps(num_threads, isa=chosen_isa(), cpus=cpus))
    if backend == "torch":
        module = _import("headrace.ops.torch_ops")
        try:
            return cast(Ops, module.TorchOps(device, num_threads))
        except (RuntimeError, AssertionError) as fault:  # PyTorch asserts on absent devices
            reason = str(fault).partition("\n")[0]
            raise ConfigError(f"device {device} is not usable by PyTorch: {reason}") from fault
    raise ConfigError(f"backend is {backend!r}; use native or torch")


_MISSING = {
    "torch": "the torch backend needs PyTorch: pip install headrace[torch]",
    _NATIVE_MODULE: "the native kernels are not built: pip install headrace from a wheel or source",
}


def _import(name: str) -> Any:
    """Import a home; what it lacks becomes a ConfigError that names the way out."""
    try:
        return import_module(name)
    except ModuleNotFoundError as fault:
        if fault.name in _MISSING:
            raise ConfigError(_MISSING[fault.name]) from fault
        raise
