"""The families by the names that `--tool-call-parser` takes, and which of them a model is of."""

from __future__ import annotations

from headrace.text.tool_calls import (
    deepseek_v3,
    hermes,
    llama3_json,
    mistral,
    pythonic,
    qwen3_coder,
)
from headrace.text.tool_calls.call_parser import Family

FAMILIES: dict[str, Family] = {
    "hermes": hermes.FAMILY,
    "llama3_json": llama3_json.FAMILY,
    "mistral": mistral.FAMILY,
    "pythonic": pythonic.FAMILY,
    "qwen3_coder": qwen3_coder.FAMILY,
    "deepseek_v3": deepseek_v3.FAMILY,
    "deepseek_v31": deepseek_v3.FAMILY_V31,
}
ALIASES = {"qwen3_xml": "qwen3_coder", "llama4_pythonic": "pythonic", "llama4_json": "llama3_json"}
"""Further names that are in use for them."""
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v31"),
    (("<|python_start|>",), "pythonic"),
    (("[func_name1(",), "pythonic"),
    (('"parameters": dictionary',), "llama3_json"),
    (("<|python_tag|>",), "llama3_json"),
)
"""What a chat template holds -> the family; the first that fits."""
_BY_MODEL_TYPE = {
    "deepseek_v3": "deepseek_v3",
    "llama": "llama3_json",
    "llama4": "pythonic",
    "mistral": "mistral",
    "qwen2": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
}


def family_of(template: str | None, model_type: str) -> str | None:
    """The family whose calls a chat template teaches; where it shows tools without a sign of one,
    that of the model's type. None when it shows none."""
    if not template:
        return None
    for signs, name in _SIGNS:
        if all(sign in template for sign in signs):
            return name
    return _BY_MODEL_TYPE.get(model_type) if "tools" in template else None
