"""GGUF tensor names and the Hugging Face checkpoint names they stand for, per architecture."""

from __future__ import annotations

ROPE_FREQS = "rope_freqs"
"""Name under which Llama 3's frequency factors are offered; checkpoints have no such tensor."""

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": ROPE_FREQS,
}
_LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_BLOCK = {
    **_LLAMA_BLOCK,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BLOCK_NAMES = {"llama": _LLAMA_BLOCK, "qwen2": _LLAMA_BLOCK, "gemma3": _GEMMA3_BLOCK}
"""Architecture -> name of a part of one layer -> its checkpoint name."""


def to_checkpoint_name(architecture: str, name: str) -> str | None:
    """The checkpoint name of a GGUF tensor, or None when there is none."""
    if name in _WHOLE:
        return _WHOLE[name]
    words = name.split(".")
    if len(words) != 4 or words[0] != "blk" or not words[1].isdecimal():
        return None
    part = BLOCK_NAMES[architecture].get(words[2])
    return f"model.layers.{words[1]}.{part}.{words[3]}" if part else None
