"""Turns GGUF metadata into what config.json and generation_config.json of the same model would say.

One table of keys for all architectures and one function for what only one of them has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.hub.gguf_metadata import GgufFile

TOKENS = "tokenizer.ggml.tokens"
CHAT_TEMPLATE = "tokenizer.chat_template"
END_OF_TURN_TOKENS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>")
GEMMA3_FULL_ATTENTION_EVERY = 6
GEMMA3_LOCAL_ROPE_THETA = 10000.0
GEMMA3_LAYERS_OF_27B = 62


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one GGUF architecture is called in config.json, and what it says on top."""

    model_type: str
    model_class: str
    extra: Callable[[GgufFile, str, dict[str, Any]], dict[str, Any]]


def hf_config_from_gguf(gguf: GgufFile) -> dict[str, Any]:
    """The keys config.json would have.

    Raises:
        ModelError: an architecture headrace does not know, or metadata that is missing or wrong.
    """
    name = gguf.string("general.architecture")
    arch = ARCHITECTURES.get(name)
    if arch is None:
        known = ", ".join(ARCHITECTURES)
        raise gguf.fault(f"architecture {name!r} is not supported; supported: {known}")
    if gguf.integer(f"{name}.expert_count", 0):
        raise gguf.fault("a mixture-of-experts model, which is not supported")
    config = _common_config(gguf, name)
    config["architectures"] = [arch.model_class]
    config["model_type"] = arch.model_type
    config.update(_token_ids(gguf))
    config.update(arch.extra(gguf, name, config))
    return config


def generation_config_from_gguf(gguf: GgufFile) -> dict[str, Any]:
    """The keys generation_config.json would have: which token ids begin, pad and end a text."""
    ids = _token_ids(gguf)
    ends = [ids["eos_token_id"]] if "eos_token_id" in ids else []
    further = (f"tokenizer.ggml.{role}_token_id" for role in ("eot", "eom"))
    ends += [gguf.integer(key) for key in further if key in gguf]
    if gguf.string("general.architecture", "") == "qwen2" and "pad_token_id" in ids:
        ends.append(ids["pad_token_id"])  # <|endoftext|>, which ends base-model answers
    ends += _end_of_turn_ids(gguf)
    ends = list(dict.fromkeys(ends))
    if ends:
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return ids


def _common_config(gguf: GgufFile, name: str) -> dict[str, Any]:
    def count(key: str, default: int | None = None) -> int:
        value = gguf.integer(f"{name}.{key}", default)
        if value <= 0:
            raise gguf.fault(f"{name}.{key} is {value}, expected a positive number")
        return value

    shapes = {tensor.name: tensor.shape for tensor in gguf.tensors}
    hidden_size, num_heads = count("embedding_length"), count("attention.head_count")
    head_dim = count("attention.key_length", hidden_size // num_heads)
    if count("attention.value_length", head_dim) != head_dim:
        raise gguf.fault("keys and values of different lengths are not supported")
    table = shapes.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise gguf.fault("the tensor token_embd.weight is missing or not a matrix")
    num_layers = count("block_count")
    if num_layers > len(gguf.tensors):
        raise gguf.fault(f"{name}.block_count is {num_layers}, more than there are tensors")
    config: dict[str, Any] = {
        "vocab_size": table[0],
        "hidden_size": hidden_size,
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": count("context_length"),
        # stored as float32: 1e-05 comes back as 9.99999974737875e-06
        "rms_norm_eps": float(f"{gguf.number(f'{name}.attention.layer_norm_rms_epsilon'):.3g}"),
        "rope_theta": gguf.number(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(gguf, name),
        "tie_word_embeddings": "output.weight" not in shapes,
    }
    rotary_dim = count("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    return config


def _rope_scaling(gguf: GgufFile, name: str) -> dict[str, Any] | None:
    """Scaling by a formula. Llama 3's factors come as the tensor rope_freqs.weight instead."""
    kind = gguf.string(f"{name}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": gguf.number(f"{name}.rope.scaling.factor", 1.0),
    }
    original = f"{name}.rope.scaling.original_context_length"
    if original in gguf:
        scaling["original_max_position_embeddings"] = gguf.integer(original)
    return scaling


def _token_ids(gguf: GgufFile) -> dict[str, Any]:
    roles = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    return {
        f"{role}_token_id": gguf.integer(f"tokenizer.ggml.{key}_token_id")
        for role, key in roles
        if f"tokenizer.ggml.{key}_token_id" in gguf
    }


def _end_of_turn_ids(gguf: GgufFile) -> list[int]:
    """Tokens with which the chat template ends a turn: an answer ends with them too."""
    if CHAT_TEMPLATE not in gguf or TOKENS not in gguf:
        return []
    template = gguf.string(CHAT_TEMPLATE)
    found = (gguf.index_of(TOKENS, text) for text in END_OF_TURN_TOKENS if text in template)
    return [token_id for token_id in found if token_id is not None]


def _llama(gguf: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    if "partial_rotary_factor" in config:
        # rows of a head lie in rotary pairs in such a file, and only part of them would
        raise gguf.fault("llama.rope.dimension_count is not the length of a head: not supported")
    names = {tensor.name for tensor in gguf.tensors}
    return {
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
    }


def _qwen2(gguf: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "silu", "use_sliding_window": False}


def _gemma3(gguf: GgufFile, name: str, config: dict[str, Any]) -> dict[str, Any]:
    num_layers = config["num_hidden_layers"]
    scalar = config["head_dim"]
    if num_layers == GEMMA3_LAYERS_OF_27B:
        # only the 27B model scales queries by hidden_size / num_heads; the file does not say so
        scalar = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": scalar,
        "sliding_window": gguf.integer(f"{name}.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (i + 1) % GEMMA3_FULL_ATTENTION_EVERY else "full_attention"
            for i in range(num_layers)
        ],
        "rope_local_base_freq": GEMMA3_LOCAL_ROPE_THETA,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", _llama),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _qwen2),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3),
}
"""GGUF's general.architecture -> how it is called elsewhere."""
