"""Figures against numpy, tables, and files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from headrace.bench.report import Table, check_outputs, summary, write_json
from headrace.errors import ConfigError


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_summary_equals_numpy(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count).tolist()
    found = summary(values, [0, 12.5, 50, 99, 99.9, 100])
    assert found["mean"] == pytest.approx(sum(values) / count)
    assert found["std"] == pytest.approx(np.std(values))
    assert found["median"] == found["p50"] == pytest.approx(np.quantile(values, 0.5))
    assert found["p12.5"] == pytest.approx(np.quantile(values, 0.125))
    assert found["p99.9"] == pytest.approx(np.quantile(values, 0.999))
    assert (found["p0"], found["p100"]) == (min(values), max(values))


def test_percentiles_lie_between_neighbours() -> None:
    assert summary([4.0, 1.0, 3.0, 2.0], [25, 90])["p90"] == pytest.approx(3.7)
    assert summary([4.0, 1.0, 3.0, 2.0], [25, 90])["p25"] == pytest.approx(1.75)


def test_summary_of_nothing_is_nan() -> None:
    assert all(math.isnan(value) for value in summary([], [99]).values())


def test_table_lines_are_equally_wide_and_empty_sections_are_left_out() -> None:
    table = Table("A title")
    table.add("Figures", [("Mean (s)", "1.25"), ("Tokens", "10,000")])
    table.add("Nothing", [])
    lines = str(table).splitlines()
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith("Mean (s):")
    assert lines[2].endswith("1.25")


def test_json_file_is_json_whatever_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_json(str(path), {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (1, None)}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"d": [1, None]},
    }


def test_outputs_that_cannot_be_written_are_refused_before_the_run(tmp_path: Path) -> None:
    check_outputs(None, str(tmp_path / "x.json"))
    with pytest.raises(ConfigError, match="no such folder"):
        check_outputs(str(tmp_path / "none" / "x.json"))
    with pytest.raises(ConfigError, match=r"must name a \.png file"):
        check_outputs(plot=str(tmp_path / "x.jpg"))
    with pytest.raises(ConfigError, match="cannot be written"):
        write_json(str(tmp_path), {})
