"""A Hugging Face folder made of a GGUF file: its weights, exactly, and its configuration."""

from __future__ import annotations

import numpy as np

from model_files.convert_tokenizer import write_gguf_tokenizer
from model_files.errors import Failed
from model_files.files import write_json, write_safetensors
from model_files.gguf_file import Gguf


def to_bfloat16(x):
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


GGUF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA3_NAMES = {
    **GGUF_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def convert_gguf(source, target):
    (path,) = source.glob("*.gguf")
    gguf = Gguf(path)
    arch = gguf.meta["general.architecture"]
    if arch not in ("llama", "qwen2", "gemma3"):
        raise Failed(f"{path.name}: no conversion for architecture {arch}")
    names = GEMMA3_NAMES if arch == "gemma3" else GGUF_NAMES
    heads = {
        "q": gguf.meta[f"{arch}.attention.head_count"],
        "k": gguf.meta[f"{arch}.attention.head_count_kv"],
    }

    def pieces(old):
        shape = gguf.tensors[old][0]
        rows = 1 if len(shape) == 1 else shape[0]
        part = old.split(".")[-2]
        if arch == "llama" and part in ("attn_q", "attn_k"):
            # GGUF keeps rotary pairs side by side, HF keeps them half a head apart
            x = gguf.float_rows(old, 0, rows)
            h = heads[part[-1]]
            x = x.reshape(h, rows // h // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)
            yield to_bfloat16(x).tobytes()
            return
        for first in range(0, rows, 16384):
            x = gguf.float_rows(old, first, min(rows, first + 16384))
            if arch == "gemma3" and old.endswith("norm.weight"):
                x = x - 1  # GGUF stores 1 + weight
            yield to_bfloat16(x).tobytes()

    tensors = {}
    for old, (shape, _, _) in gguf.tensors.items():
        words = old.split(".")
        new = (
            names[old]
            if words[0] != "blk"
            else (f"model.layers.{words[1]}.{names[words[2]]}.{words[3]}")
        )
        tensors[new] = ("BF16", shape, lambda old=old: pieces(old))
    write_safetensors(target / "model.safetensors", tensors)
    write_decoder_config(gguf, arch, "lm_head.weight" not in tensors, target)
    write_gguf_tokenizer(gguf, arch, target)


def write_decoder_config(gguf, arch, tied, target):
    def get(key, default=None):
        return gguf.meta.get(f"{arch}.{key}", default)

    ids = {
        k: gguf.meta.get(f"tokenizer.ggml.{v}_token_id")
        for k, v in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))
    }
    theta = get("rope.freq_base")
    head_dim = get("attention.key_length", get("embedding_length") // get("attention.head_count"))
    config = {
        "architectures": [
            {
                "llama": "LlamaForCausalLM",
                "qwen2": "Qwen2ForCausalLM",
                "gemma3": "Gemma3ForCausalLM",
            }[arch]
        ],
        "model_type": {"gemma3": "gemma3_text"}.get(arch, arch),
        "vocab_size": gguf.tensors["token_embd.weight"][0][0],
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": head_dim,
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon'):.3g}"),
        "rope_theta": theta,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.0",  # the layout; without it readers may warn
        **ids,
    }
    if arch == "gemma3":
        kinds = [
            "full_attention" if (i + 1) % 6 == 0 else "sliding_attention"
            for i in range(get("block_count"))
        ]
        config.update(
            hidden_activation="gelu_pytorch_tanh",
            attention_bias=False,
            query_pre_attn_scalar=head_dim,
            sliding_window=get("attention.sliding_window"),
            layer_types=kinds,
            sliding_window_pattern=6,
            rope_local_base_freq=10000.0,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        )
    else:
        config.update(
            hidden_act="silu",
            rope_scaling=None,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
        )
        if arch == "llama":
            config.update(attention_bias=False, mlp_bias=False)
        else:
            config.update(use_sliding_window=False)
    write_json(target / "config.json", config)
    stops = ids["eos_token_id"]
    if arch == "qwen2":
        stops = [ids["eos_token_id"], ids["pad_token_id"]]
    write_json(target / "generation_config.json", {**ids, "eos_token_id": stops})
