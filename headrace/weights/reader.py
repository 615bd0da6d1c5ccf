"""One way to read any model's weights: by Hugging Face checkpoint name, each used exactly once.

Knows what the formats keep differently and gives everything the checkpoint's meaning. Converts no
matrix: those stay as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from headrace.config.engine import ModelConfig, ModelFacts
from headrace.errors import ModelError
from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.weights.dummy import DummyTensors
from headrace.weights.gguf import read_gguf_tensors
from headrace.weights.name_map import ROPE_FREQS
from headrace.weights.safetensors import read_safetensors

NEVER_NEEDED = ("rotary_emb.inv_freq", "masked_bias")
"""Ends of names that old checkpoints carry though they follow from the configuration."""

VECTOR_FORMATS = (WeightFormat.F32, WeightFormat.F16, WeightFormat.BF16)


class WeightReader:
    """The weights of one model.

    Data is mapped and read-only; it stays valid after `close` for those who hold a view of it.

    Args:
        tensors: name -> tensor as stored, under checkpoint names.
        source: the file or folder, for messages.
        interleaved_rows: name -> number of heads, for matrices (and biases) whose rows keep the two
            halves of each rotary pair side by side instead of half a head apart.
        norm_offset: what the file has added to every norm weight.
        ignored: names that need not be used.
        on_progress: told which share of the weights has been asked for, 0 to 1, at most a hundred
            times.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        *,
        source: str,
        interleaved_rows: Mapping[str, int] | None = None,
        norm_offset: float = 0.0,
        ignored: Collection[str] = (),
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._tensors = tensors
        self._source = source
        self._interleaved_rows = interleaved_rows or {}
        self._norm_offset = norm_offset
        self._ignored = frozenset(ignored)
        self._used: set[str] = set()
        self._on_progress = on_progress
        self._percent_told = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files. They stay mapped as long as somebody holds a view."""
        self._tensors = {}

    def names(self) -> list[str]:
        """All names there are."""
        return list(self._tensors)

    def has(self, name: str) -> bool:
        """Whether there is a weight of this name."""
        return name in self._tensors

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> StoredTensor:
        """A weight as stored; matrices are uint8 [rows, row_bytes] views of the file.

        Norm vectors come in the file's own meaning; use `get_vector` for those.

        Args:
            shape: what the model expects, if it wants that checked.

        Raises:
            ModelError: there is none of this name, or its shape is another.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self._source}: the tensor {name} is missing")
        if shape is not None and tensor.shape != shape:
            raise ModelError(
                f"{tensor.source}: tensor {name} has shape {list(tensor.shape)}, "
                f"expected {list(shape)}"
            )
        self._used.add(name)
        if self._on_progress is not None:
            percent = 100 * len(self._used) // len(self._tensors)
            if percent > self._percent_told:
                self._percent_told = percent
                self._on_progress(percent / 100)
        num_heads = self._interleaved_rows.get(name)
        return tensor if num_heads is None else _split_rotary_pairs(tensor, num_heads)

    def get_vector(self, name: str, size: int | None = None) -> npt.NDArray[np.float32]:
        """A vector as float32, in the checkpoint's meaning.

        Raises:
            ModelError: missing, not a vector, of another size, or in a block format.
        """
        tensor = self.get(name, None if size is None else (size,))
        if len(tensor.shape) != 1:
            raise ModelError(f"{tensor.source}: tensor {name} is not a vector: {tensor.shape}")
        if tensor.format not in VECTOR_FORMATS:
            raise ModelError(
                f"{tensor.source}: the vector {name} is stored as {tensor.format.label}; "
                "vectors must be F32, F16 or BF16"
            )
        vector = dequantize(tensor)
        if self._norm_offset and name.endswith("norm.weight"):
            vector = vector - np.float32(self._norm_offset)
        return vector

    @property
    def rope_freqs(self) -> npt.NDArray[np.float32] | None:
        """Llama 3's factors of the rotary frequencies, when the file brings them."""
        return self.get_vector(ROPE_FREQS) if self.has(ROPE_FREQS) else None

    def unused(self) -> list[str]:
        """Names nobody asked for, without those that follow from the configuration."""
        return [
            name
            for name in self._tensors
            if name not in self._used
            and name not in self._ignored
            and not name.endswith(NEVER_NEEDED)
        ]

    def check_all_used(self) -> None:
        """Raise ModelError when the file holds weights the model has no place for."""
        left = self.unused()
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelError(
                f"{self._source}: the model has no place for the tensors "
                f"{', '.join(left[:3])}{more}"
            )


def open_weights(
    model: ModelConfig | ModelFacts, on_progress: Callable[[float], None] | None = None
) -> WeightReader:
    """Open the weights of a model; map them, read nothing yet.

    Args:
        on_progress: see WeightReader.

    Raises:
        ModelError: files that cannot be read or are damaged.
    """
    config = model.hf_config
    ignored = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    if model.format == "dummy":
        tensors = DummyTensors(config, model.seed if isinstance(model, ModelConfig) else 0)
        source = f"dummy weights of {model.model}"
        return WeightReader(tensors, source=source, ignored=ignored, on_progress=on_progress)
    if model.format == "safetensors":
        stored = read_safetensors(Path(model.path))
        return WeightReader(stored, source=model.path, ignored=ignored, on_progress=on_progress)
    gguf = read_gguf_tensors(Path(model.path))
    return WeightReader(
        gguf.tensors,
        source=model.path,
        interleaved_rows=gguf.interleaved_rows,
        norm_offset=gguf.norm_offset,
        ignored=ignored,
        on_progress=on_progress,
    )


def _split_rotary_pairs(tensor: StoredTensor, num_heads: int) -> StoredTensor:
    """Rows x0 y0 x1 y1 ... of each head become x0 x1 ... y0 y1 ...; whole rows move, so any format.

    A bias has one number a row.
    """
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise ModelError(
            f"{tensor.source}: tensor {tensor.name} has {rows} rows, "
            f"which are not pairs for {num_heads} heads"
        )
    pairs = tensor.data.reshape(num_heads, rows // num_heads // 2, 2, -1)
    data = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.data.shape)
    return StoredTensor(tensor.name, tensor.format, tensor.shape, data, tensor.source)
