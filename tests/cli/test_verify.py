"""`headrace verify`: flags, the table, the file, the exit status."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main as cli
from headrace.worker.sampler import Sampler
from tests.verify.conftest import CONFIG


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """The command makes the log of its process quiet."""
    root = logging.getLogger("headrace")
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command line for a tiny model of random weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return ["verify", str(tmp_path), "--load-format", "dummy", "--num-prompts", "1",
            "--batch-size", "8", "--input-len", "40"]  # fmt: skip


def test_a_good_model_gives_a_table_a_file_and_status_0(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    assert cli.main([*words, "--json", str(path), "--quantization", "int8", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["varied", "requests", "tokens", "seen", "result"]
    assert len(lines) == 18
    assert lines[3].split()[-1] == "reference"
    assert {line.split()[-1] for line in lines[4:16]} == {"identical"}
    assert "all 13 runs gave the same tokens and log-probabilities, bit for bit" in lines[17]
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["identical"] is True
    assert [row["tokens"] for row in result["rows"]] == [49] * 13
    assert result["settings"]["num_prompts"] == 1


def test_a_difference_is_status_1_and_located(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = Sampler.sample

    def faulty(self: Sampler, logits: Any, rows: Any) -> Any:
        if len(rows) == 8:
            logits[:, 5] = 100.0
        return sample(self, logits, rows)

    monkeypatch.setattr(Sampler, "sample", faulty)
    path = tmp_path / "result.json"
    assert cli.main([*words, "--json", str(path)]) == 1
    out = capsys.readouterr().out
    [bad] = [line for line in out.splitlines() if "differs at" in line]
    assert bad.startswith("in a batch of 8 ")
    assert "differs at request 0 (greedy) token 0: expected " in bad
    assert "got 5" in bad
    assert "1 of 13 runs are not as they should be" in out
    result: dict[str, Any] = json.loads(path.read_text())
    [row] = [row for row in result["rows"] if row["difference"]]
    assert (row["difference"]["place"], row["difference"]["got"]) == ("token", "5")
    assert result["identical"] is False


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--output-len", "8"], "output_len must be at least 24"),
        (["--input-len", "16"], "input_len must be at least 40"),
        (["--batch-size", "3"], "batch_size must be at least 4"),
        (["--input-len", "500"], "the battery needs a context of 1048 tokens, it holds 512"),
        (["--max-model-len", "64"], "the battery needs a context of 128 tokens, it holds 64"),
        (["--max-num-seqs", "4"], "unknown flag --max-num-seqs"),
        (["--json", "/no/such/folder/x.json"], "there is no such folder"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_status_2(
    words: list[str], flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, *flags]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_help_shows_what_is_varied_and_what_may_be_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["verify", "--help"]) == 0
    out = capsys.readouterr().out
    assert "bit for bit" in out
    assert "--num-prompts" in out
    assert "--quantization" in out
    assert "--max-num-seqs" not in out


@pytest.mark.model
def test_a_real_model_is_reproducible(
    model_dir: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(model_dir("smollm2-135m-instruct"))
    assert cli.main(["verify", model, "--num-prompts", "1", "--batch-size", "16"]) == 0
    assert capsys.readouterr().out.count(" identical") == 12
