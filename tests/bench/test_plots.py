"""Pictures: files with a picture in them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="pictures need the extra headrace[bench]")

from headrace.bench.plots import latency_percentiles, load_curves

PNG = b"\x89PNG\r\n\x1a\n"


def width(path: Path) -> int:
    data = path.read_bytes()
    assert data.startswith(PNG)
    return int.from_bytes(data[16:20])


def test_latency_percentiles_are_a_picture(tmp_path: Path) -> None:
    latency_percentiles(str(tmp_path / "a.png"), {"batch latency": [1.0, 2.0, 1.5]}, "s")
    assert width(tmp_path / "a.png") == 700


def test_throughput_over_concurrency_is_drawn_beside_them(tmp_path: Path) -> None:
    series = {"ttft": [1.0, 2.0], "tpot": []}
    load_curves(str(tmp_path / "one.png"), series, {8: 100.0})
    load_curves(str(tmp_path / "two.png"), series, {1: 50.0, 8: 100.0})
    assert width(tmp_path / "two.png") == 2 * width(tmp_path / "one.png")


def test_nothing_to_draw_is_an_empty_picture(tmp_path: Path) -> None:
    load_curves(str(tmp_path / "a.png"), {"ttft": []}, {})
    assert width(tmp_path / "a.png") == 700
