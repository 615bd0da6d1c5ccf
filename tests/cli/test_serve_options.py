"""The flags of `headrace serve`: forms, files, hints, help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main as cli
from headrace.cli.options import UsageError, options_of, size
from headrace.cli.serve import read_options
from headrace.config.args import AsyncEngineArgs
from headrace.errors import ConfigError
from headrace.server.settings.server import ServerSettings

OPTIONS = options_of(AsyncEngineArgs, ServerSettings)


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)


def read(*argv: str) -> tuple[AsyncEngineArgs, ServerSettings]:
    return read_options(list(argv), OPTIONS)


def engine(*argv: str) -> AsyncEngineArgs:
    return read(*argv)[0]


def test_nothing_given_is_all_defaults() -> None:
    assert read() == (AsyncEngineArgs(), ServerSettings())


def test_flags_reach_the_record_they_belong_to() -> None:
    args, settings = read("m.gguf", "--max-num-seqs", "4", "--port", "9", "--api-key", "a", "b")
    assert (args.model, args.max_num_seqs) == ("m.gguf", 4)
    assert engine("--quantization", "int8").quantization == "int8"
    assert (settings.port, settings.api_key) == (9, ["a", "b"])


def test_underscores_equal_dashes_in_names_not_in_values() -> None:
    assert engine("--max_num_seqs", "4").max_num_seqs == 4
    assert engine("--served_model_name=a_b").served_model_name == ["a_b"]


def test_switches_have_two_sides() -> None:
    assert engine("--no-enable-prefix-caching").enable_prefix_caching is False
    assert engine("--enable-prefix-caching").enable_prefix_caching is True
    assert engine("--no_enable_prefix_caching").enable_prefix_caching is False


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1k", 1000), ("1K", 1024), ("2M", 2 << 20), ("1.5k", 1500), ("4G", 4 << 30),
     ("1g", 10**9), ("-3", -3)],
)  # fmt: skip
def test_sizes_may_be_written_short(text: str, number: int) -> None:
    assert size(text) == number
    assert engine(f"--max-num-batched-tokens={text}").max_num_batched_tokens == number


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("-1", "auto"), ("2K", 2048)])
def test_max_model_len_may_be_auto(text: str, value: Any) -> None:
    assert engine("--max-model-len", text).max_model_len == value


def test_json_values() -> None:
    assert engine("--hf-overrides", '{"a": {"b": 1}}').hf_overrides == {"a": {"b": 1}}
    assert read("--allowed-origins", '["x"]')[1].allowed_origins == ["x"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-model-length", "5"], "did you mean --max-model-len?"),
        (["--quantization", "awq"], "int8"),
        (["--tensor-parallel-size", "2"], "unknown flag --tensor-parallel-size"),
        (["--enable-prefix-cachin"], "did you mean --enable-prefix-caching?"),
        (["--max-num", "5"], "unknown flag --max-num"),
        (["--port", "x"], "'x' is not an integer"),
        (["--port"], "expected one argument"),
        (["--max-model-len", "long"], "not a whole number"),
        (["--max-num-seqs", "1.5"], "not a whole number"),
        (["--backend", "cuda"], "invalid choice: 'cuda'"),
        (["--hf-overrides", "{"], "not valid JSON"),
        (["a", "b"], "nothing to do with 'b'"),
    ],
)
def test_bad_line_is_refused_in_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*argv)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_flag_changes_what_is_read() -> None:
    samples = {"str": "x", "int": "3", "float": "0.25", "size": "3", "length": "3", "list": "x"}
    for option in OPTIONS:
        if option.kind == "bool":
            argv = [f"--no-{option.flag[2:]}" if option.default else option.flag]
        elif option.kind == "json":
            argv = [option.flag, '["x"]' if isinstance(option.default, list) else '{"x": 1}']
        else:
            text = option.choices[-1] if option.choices else samples[option.kind]
            if option.name == "root_path":
                text = "/x"
            if option.name in ("tool_call_parser", "reasoning_parser"):
                text = "none"
            argv = [option.flag, text]
            if option.name == "ssl_cert_reqs":
                argv = [option.flag, "1", "--ssl-ca-certs", "x"]
            if option.name in ("ssl_keyfile", "ssl_certfile"):
                argv += ["--ssl-keyfile", "x", "--ssl-certfile", "x"]
        assert read(*argv) != read(), option.flag


# -- the file --------------------------------------------------------------------------------


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_config_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "model: from-file\nport: 1234\nmax_model_len: 2k\nenable-prefix-caching: false\n"
        "served-model-name: [a, b]\nhf-overrides: {x: 1}\nallowed-origins: ['*']\nseed: null\n",
    )
    args, settings = read("--config", path)
    assert (args.model, args.max_model_len, args.enable_prefix_caching) == (
        "from-file",
        2000,
        False,
    )
    assert (args.served_model_name, args.hf_overrides, args.seed) == (["a", "b"], {"x": 1}, 0)
    assert (settings.port, settings.allowed_origins) == (1234, ["*"])
    args, settings = read("mine", "--config", path, "--port", "5", "--served-model-name", "c")
    assert (args.model, args.served_model_name, settings.port) == ("mine", ["c"], 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 5", "did you mean --port?"),
        ("port: x", "'x' is not an integer"),
        ("- a", "names of flags"),
        ("a: [", "not valid YAML"),
        ("port: {a: 1}", "not an integer"),
    ],
)
def test_bad_config_file_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read("--config", path)
    assert said in str(caught.value)
    assert path in str(caught.value)


def test_missing_config_file_is_refused() -> None:
    with pytest.raises(UsageError, match="No such file"):
        read("--config", "/no/such/file.yaml")


# -- settings that cannot work ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"port": 70000}, "port"),
        ({"api_key": [""]}, "api_key"),
        ({"root_path": "api"}, "root_path"),
        ({"root_path": "/api/"}, "root_path"),
        ({"ssl_keyfile": "k"}, "ssl_certfile"),
        ({"allowed_origins": "*"}, "allowed_origins"),
        ({"max_prompts": 0}, "max_prompts"),
        ({"max_json_depth": 501}, "max_json_depth"),
        ({"max_body_size": 0}, "max_body_size"),
        ({"engine_death_linger": -1.0}, "engine_death_linger"),
        ({"uvicorn_log_level": "loud"}, "uvicorn_log_level"),
        ({"metrics_prefix": "a:b"}, "metrics_prefix"),
    ],
    ids=str,
)
def test_server_setting_that_cannot_work_is_one_line(options: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings(**options)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


# -- the command -----------------------------------------------------------------------------


def test_help_knows_groups_flags_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == 0
    overview = capsys.readouterr().out
    for option in OPTIONS:
        assert option.flag in overview.split(), option.flag
    assert cli.main(["serve", "--help=cache"]) == 0
    group = capsys.readouterr().out
    assert "--block-size" in group
    assert "--port" not in group
    assert cli.main(["serve", "--help=max_num_seqs"]) == 0
    flag = capsys.readouterr().out
    assert "Most requests computed in one step" in flag
    assert "--port" not in flag
    assert cli.main(["serve", "--help=all"]) == 0
    everything = capsys.readouterr().out
    assert all(f"  {option.flag}" in everything for option in OPTIONS)
    assert max(map(len, everything.splitlines())) <= 110


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "a command is missing"),
        (["sevre"], "did you mean serve?"),
        (["serve", "--help=prot"], "did you mean port?"),
        (["serve", "--prot", "1"], "did you mean --port?"),
        (["serve", "--api-key", ""], "api_key"),
    ],
)
def test_wrong_command_line_is_one_line_and_status_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert err.startswith("headrace")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"
    assert cli.main(["--help"]) == 0
    assert "serve" in capsys.readouterr().out


def test_json_of_defaults_is_shown_in_no_help(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["serve", "--help=api-key"])
    assert json.dumps([]) not in capsys.readouterr().out
