"""Prompts that come as embeddings: from the array a caller gives to what the engine takes.

Knows arrays of NumPy; tensors of PyTorch are asked for theirs, and nothing is imported for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.config.engine import ModelConfig
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import PromptEmbeds

NAME = "prompt_embeds"


def check_takes_embeds(model: ModelConfig) -> None:
    """Raise UnsupportedError on an engine that was not told to take embeddings."""
    if not model.enable_prompt_embeds:
        raise UnsupportedError(
            f"{NAME} are taken only with --enable-prompt-embeds (enable_prompt_embeds=True)",
            param=NAME,
        )


def read_embeds(given: object, model: ModelConfig) -> PromptEmbeds:
    """Embeddings [tokens, hidden size] (or [1, tokens, hidden size]) as the engine takes them.

    Args:
        given: an array of NumPy or PyTorch, float16, bfloat16, float32 or float64; the values are
            used as float32.

    Raises:
        ValidationError: not such an array, another hidden size, no rows or more than the context
            holds, a value that is no finite float32.
    """
    array = _as_array(given)
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    width = int(model.hf_config["hidden_size"])
    if array.ndim != 2 or array.shape[1] != width:
        raise _error(
            f"must be [tokens, {width}], as the model's hidden size is, got {list(array.shape)}"
        )
    num_tokens = array.shape[0]
    if not 0 < num_tokens < model.max_model_len:
        raise _error(
            f"must have from 1 to {model.max_model_len - 1} rows, as the context of "
            f"{model.max_model_len} must leave room for an answer, got {num_tokens}"
        )
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, dtype=np.float32)
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        row, column = (int(i) for i in np.argwhere(~is_finite)[0])
        raise _error(
            f"must be finite float32 numbers, got {float(array[row, column])} in row {row}, "
            f"column {column}"
        )
    return PromptEmbeds(num_tokens, width, rows.tobytes())


def _as_array(given: Any) -> np.ndarray[Any, Any]:
    """An array of floats; shares memory with what was given where it can."""
    if not isinstance(given, np.ndarray) and callable(getattr(given, "detach", None)):
        given = _from_torch(given)
    if not isinstance(given, np.ndarray):
        raise _error(f"must be an array of NumPy or PyTorch, not {type(given).__name__}")
    if given.dtype.kind != "f":
        raise _error(f"must hold floats, not {given.dtype}")
    return given


def _from_torch(tensor: Any) -> Any:
    if not tensor.is_floating_point():
        raise _error(f"must hold floats, not {tensor.dtype}")
    try:
        # NumPy has no bfloat16; every one of them is a float32.
        return tensor.detach().to("cpu").float().numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise _error(f"cannot be read as a dense array: {reason}") from error


def _error(text: str) -> ValidationError:
    return ValidationError(f"{NAME} {text}", param=NAME)
