"""Fetches model and tokenizer files from the Hugging Face hub; nothing that could be code."""

from __future__ import annotations

from importlib import import_module

from headrace.errors import ModelError
from headrace.logger import make_logger

logger = make_logger(__name__)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    *TOKENIZER_FILES,
)
NOT_WEIGHTS = ("*/*", "consolidated*.safetensors")
"""Left out: other formats' folders, and the same weights a second time."""


def download_model(
    name: str, *, revision: str | None, download_dir: str | None, token: str | bool | None
) -> str:
    """Fetch a model by hub id, or find it in the cache.

    Returns:
        the local folder.

    Raises:
        ModelError: not found, not allowed, or no network; one line.
    """
    return _snapshot(name, MODEL_FILES, revision, download_dir, token)


def download_tokenizer(
    name: str, *, revision: str | None, download_dir: str | None, token: str | bool | None
) -> str:
    """Fetch only the tokenizer of a hub id. As `download_model`."""
    return _snapshot(name, TOKENIZER_FILES, revision, download_dir, token)


def _snapshot(
    name: str,
    patterns: tuple[str, ...],
    revision: str | None,
    download_dir: str | None,
    token: str | bool | None,
) -> str:
    # imported on use: it takes half a second, which local models need not pay
    hub = import_module("huggingface_hub")
    errors = import_module("huggingface_hub.errors")
    logger.info("fetching %s from the hub", name)
    at = f" (revision {revision})" if revision else ""
    try:
        folder: str = hub.snapshot_download(
            name,
            revision=revision,
            cache_dir=download_dir,
            token=token,
            allow_patterns=list(patterns),
            ignore_patterns=list(NOT_WEIGHTS),
        )
    except errors.GatedRepoError:
        reason = "access has to be granted on the hub first; then give a token"
    except errors.RepositoryNotFoundError:
        reason = "no such folder here, and no such model on the hub (or it needs a token)"
    except errors.RevisionNotFoundError:
        reason = "the hub has no such revision"
    except errors.LocalEntryNotFoundError:
        reason = "not in the local cache, and the hub cannot be reached"
    except Exception as error:
        # whatever the network stack raises, the user gets one line; the cause stays attached
        raise ModelError(f"model {name}{at}: fetching it failed: {_first_line(error)}") from error
    else:
        return folder
    raise ModelError(f"model {name}{at}: {reason}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
