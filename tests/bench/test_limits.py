"""The limits of the machine: there, and of a size that machines have."""

from __future__ import annotations

import pytest

from headrace._native import available_cores, available_isas, compute_peaks, read_bandwidth
from headrace.bench.limits import MachineLimits


def test_every_usable_instruction_set_has_a_peak() -> None:
    peaks = compute_peaks(1)
    names = {isa for isa, _, _ in peaks}
    assert names == {isa for isa in available_isas() if not isa.endswith("emulated")}
    assert all(kind in ("float32", "bfloat16", "int8") for _, kind, _ in peaks)
    assert all(1e8 < rate < 1e15 for _, _, rate in peaks)


def test_memory_has_a_bandwidth() -> None:
    assert 1e7 < read_bandwidth(1 << 23, available_cores()) < 1e13
    with pytest.raises(ValueError, match="4 MiB"):
        read_bandwidth(1000, 1)


def test_limits_are_shown_and_written_with_their_units() -> None:
    limits = MachineLimits(2, 25e9, [("amx", "bfloat16", 7e12)])
    assert limits.rows() == [
        ("Reading memory (GB/s)", "25.0"),
        ("Multiply-add, amx bfloat16 (GOP/s)", "7,000"),
    ]
    assert limits.to_json()["peaks"] == [
        {"isa": "amx", "type": "bfloat16", "operations_per_second": 7e12}
    ]
