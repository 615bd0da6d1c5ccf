"""Which file holds which family: the one table from `model_type` to a model class."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from headrace.errors import ModelError
from headrace.layers.loader import Loader
from headrace.models.model import CausalLM

_FAMILIES = {
    "llama": ("headrace.models.llama", "LlamaForCausalLM"),
    "qwen2": ("headrace.models.qwen2", "Qwen2ForCausalLM"),
    "gemma3_text": ("headrace.models.gemma3_text", "Gemma3ForCausalLM"),
}


class ModelRegistry:
    """The families this version can run."""

    @staticmethod
    def get_supported_types() -> list[str]:
        """The values of `model_type` in config.json that are known."""
        return sorted(_FAMILIES)

    @staticmethod
    def get_supported_archs() -> list[str]:
        """The values of `architectures` in config.json that are known."""
        return sorted(name for _, name in _FAMILIES.values())

    @staticmethod
    def check(model_type: str) -> None:
        """Raise ModelError when there is no such family."""
        if model_type not in _FAMILIES:
            raise ModelError(
                f"model type {model_type!r} is not supported; "
                f"supported: {', '.join(ModelRegistry.get_supported_types())}"
            )

    @staticmethod
    def make_model(model_type: str, hf_config: Mapping[str, Any], load: Loader) -> CausalLM:
        """Build the model of a family from its weights.

        Raises:
            ModelError: unknown family, a missing key, or a weight that does not fit.
        """
        ModelRegistry.check(model_type)
        module, name = _FAMILIES[model_type]
        return cast(CausalLM, getattr(import_module(module), name).from_hf(hf_config, load))
