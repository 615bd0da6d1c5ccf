"""The flags of `headrace bench`: other spellings, limits, help, and what they import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.settings import (
    DatasetSettings,
    LatencySettings,
    ServeSettings,
    given_options,
)
from headrace.bench.table import BENCHMARKS
from headrace.cli import main as cli
from headrace.cli.command_line import read_records
from headrace.cli.options import options_of
from headrace.config.args import EngineArgs
from headrace.errors import ConfigError
from tests.cli.test_light_start import HEAVY
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def read(name: str, *argv: str) -> list[Any]:
    records = BENCHMARKS[name].records
    return read_records("bench", list(argv), options_of(*records), records, model_flag=False)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_nothing_given_is_all_defaults(name: str) -> None:
    assert read(name) == [record() for record in BENCHMARKS[name].records]


@pytest.mark.parametrize("name", ["latency", "throughput", "startup"])
def test_flags_of_the_engine_are_taken_like_those_of_serve(name: str) -> None:
    args = read(name, "m.gguf", "--max-num-seqs", "2k", "--no-enable-prefix-caching")[0]
    assert args == EngineArgs(model="m.gguf", max_num_seqs=2000, enable_prefix_caching=False)
    assert given_options(args) == {
        "model": "m.gguf",
        "max_num_seqs": 2000,
        "enable_prefix_caching": False,
    }


def test_other_spellings_of_the_field_are_known() -> None:
    dataset = read("throughput", "--random-input-len", "5", "--random_output_len=6")[1]
    assert (dataset.input_len, dataset.output_len) == (5, 6)
    assert read("serve", "--sharegpt-output-len", "7")[1].output_len == 7
    assert read("latency", "--output-json", "x.json")[2].json == "x.json"


def test_config_file_gives_options_of_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("max-concurrency: [1, 8]\nnum_prompts: 9\nextra-body: {a: 1}\n")
    settings, dataset, *_ = read("serve", "--config", str(path), "--num-prompts", "7")
    assert (settings.max_concurrency, settings.extra_body) == ([1, 8], {"a": 1})
    assert dataset.num_prompts == 7


def test_metrics_percentiles_and_limits_are_read() -> None:
    settings = ServeSettings(
        percentile_metrics="e2el, ttft", metric_percentiles="99,50.5",
        goodput=["ttft:200", "e2el:1.5e3"],
    )  # fmt: skip
    assert settings.metrics() == ["ttft", "e2el"]
    assert settings.percentiles() == [50.5, 99.0]
    assert settings.limits() == {"ttft": 0.2, "e2el": 1.5}


def test_key_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")
    assert ServeSettings().api_key == "hidden"
    assert ServeSettings(api_key="given").api_key == "given"
    assert "hidden" not in repr(ServeSettings())


@pytest.mark.parametrize(
    ("record", "options", "names"),
    [
        (DatasetSettings, {"num_prompts": 0}, "num_prompts"),
        (DatasetSettings, {"output_len": 0}, "output_len"),
        (DatasetSettings, {"random_range_ratio": 1.0}, "random_range_ratio"),
        (DatasetSettings, {"random_range_ratio": float("nan")}, "random_range_ratio"),
        (DatasetSettings, {"dataset_name": "sharegpt"}, "--dataset-path"),
        (DatasetSettings, {"dataset_path": "x"}, "--dataset-name"),
        (LatencySettings, {"batch_size": 0}, "batch_size"),
        (LatencySettings, {"num_iters_warmup": -1}, "num_iters_warmup"),
        (ServeSettings, {"base_url": "127.0.0.1:8000"}, "base_url"),
        (ServeSettings, {"base_url": "ftp://a"}, "base_url"),
        (ServeSettings, {"base_url": "http://a:x"}, "base_url"),
        (ServeSettings, {"base_url": "http://"}, "base_url"),
        (ServeSettings, {"port": 0}, "port"),
        (ServeSettings, {"request_rate": 0.0}, "request_rate"),
        (ServeSettings, {"request_rate": float("nan")}, "request_rate"),
        (ServeSettings, {"burstiness": 0.0}, "burstiness"),
        (ServeSettings, {"max_concurrency": ["0"]}, "max_concurrency"),
        (ServeSettings, {"max_concurrency": ["x"]}, "max_concurrency"),
        (ServeSettings, {"request_timeout": 0.0}, "request_timeout"),
        (ServeSettings, {"extra_body": [1]}, "extra_body"),
        (ServeSettings, {"percentile_metrics": "ttfx"}, "percentile_metrics"),
        (ServeSettings, {"metric_percentiles": "101"}, "metric_percentiles"),
        (ServeSettings, {"metric_percentiles": "a"}, "metric_percentiles"),
        (ServeSettings, {"goodput": ["itl:5"]}, "goodput"),
        (ServeSettings, {"goodput": ["ttft"]}, "goodput"),
        (ServeSettings, {"goodput": ["ttft:-1"]}, "goodput"),
    ],
    ids=str,
)
def test_setting_that_cannot_work_is_one_line(
    record: type, options: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        record(**options)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "a benchmark is missing: latency, throughput, serve, startup"),
        (["serv"], "did you mean serve?"),
        (["serve", "--max-concurency", "1"], "did you mean --max-concurrency?"),
        (["serve", "m"], "nothing to do with 'm'"),
        (["serve", "--endpoint", "/x"], "invalid choice"),
        (["latency", "--batch-size", "x"], "not a whole number"),
        (["latency", "--num-iters", "0"], "num_iters"),
        (["latency", "--json", "/no/such/folder/x.json"], "no such folder"),
        (["throughput", "--dataset-name", "sonnet"], "invalid choice"),
        (["startup", "--help=itres"], "no such group or flag"),
        (["latency", "/no/such/model"], "no such file or folder"),
    ],
)
def test_wrong_command_line_is_one_line_and_status_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_picture_without_matplotlib_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.bench.report.find_spec", lambda _name: None)
    assert cli.main(["bench", "latency", "--plot", "x.png"]) == 2
    assert "pip install 'headrace[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_knows_groups_flags_and_all(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(*BENCHMARKS[name].records)
    assert cli.main(["bench", name, "--help"]) == 0
    overview = capsys.readouterr().out
    assert BENCHMARKS[name].help in overview
    assert all(option.flag in overview.split() for option in options)
    assert cli.main(["bench", name, "--help=report"]) == 0
    group = capsys.readouterr().out
    assert "--json" in group
    assert "--num-prompts" not in group
    assert cli.main(["bench", name, "--help=all"]) == 0
    everything = capsys.readouterr().out
    assert all(f"  {option.flag}" in everything for option in options)


def test_overview_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(benchmark.help in out for benchmark in BENCHMARKS.values())


def test_every_flag_in_the_readme_and_the_makefile_exists() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "README.md").read_text() + (root / "Makefile").read_text()
    found = re.findall(r"headrace bench (\w+)([^\n#]*)", lines)
    assert {name for name, _ in found} == set(BENCHMARKS)
    for name, words in found:
        known = {option.flag for option in options_of(*BENCHMARKS[name].records)}
        assert set(re.findall(r"--[a-z][a-z-]+", words)) <= known


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["latency", "--no-such"]])
def test_help_and_refusals_import_nothing_heavy(argv: list[str]) -> None:
    script = (
        "import json, sys; from headrace.cli.main import main; main(sys.argv[1:]);"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "bench", *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr
