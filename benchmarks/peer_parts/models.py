"""The models of the trials: where they are, how headrace loads them, what a step of them costs."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.hub.lookup import find_model
from headrace.ops.formats import WeightFormat
from headrace.weights.dummy import checkpoint_shapes
from headrace.weights.gguf import read_gguf_tensors
from headrace.weights.safetensors import read_safetensors
from peer_parts.floors import ModelCost
from peer_parts.works import BF16, GGUF, LLAMA_1B, LLAMA_7B

FORMAT = WeightFormat.Q4_1
GGUF_Q4_1 = 3
"""The number of that format in GGUF files."""
ALIGNMENT = 32
PIECE = 1 << 24


@dataclass(frozen=True)
class TrialModel:
    """One model on disk.

    Attributes:
        settings: further options of headrace to load it.
    """

    path: Path
    cost: ModelCost
    settings: dict[str, Any] = field(default_factory=dict)


def _llama_config(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 32000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }  # fmt: skip


CONFIG_1B = _llama_config(2048, 8192, 22, 32, 8)
CONFIG_7B = _llama_config(4096, 11008, 32, 32, 32)


def find_trial_model(name: str, models: Path, scratch: Path) -> TrialModel:
    """One of the models of `works`.

    Args:
        models: folder that scripts/get_models.py has filled.
        scratch: where models of random weights are written; used again when they are there.

    Raises:
        ModelError: it is not there; one line.
        OSError: it cannot be written.
    """
    makers: dict[str, Callable[[], TrialModel]] = {
        GGUF: lambda: _stored(models / "smollm2-135m-instruct-gguf"),
        BF16: lambda: _stored(models / "smollm2-135m-instruct"),
        LLAMA_1B: lambda: _random_bfloat16(CONFIG_1B, scratch / "llama-1.5b"),
        LLAMA_7B: lambda: _random_4_bit(CONFIG_7B, scratch / "llama-7b.gguf"),
    }
    return makers[name]()


def _stored(path: Path) -> TrialModel:
    facts = find_model(str(path))
    path = Path(facts.path)
    is_gguf = facts.format == "gguf"
    tensors = read_gguf_tensors(path).tensors if is_gguf else read_safetensors(path)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = {name: tensor.data.nbytes for name, tensor in tensors.items()}
    return TrialModel(path, ModelCost.from_shapes(facts.hf_config, shapes, sizes))


def _random_bfloat16(config: Mapping[str, Any], folder: Path) -> TrialModel:
    """Weights made by headrace itself when it loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = checkpoint_shapes(config)
    sizes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
    cost = ModelCost.from_shapes(config, shapes, sizes)
    return TrialModel(folder, cost, {"load_format": "dummy", "skip_tokenizer_init": True})


def _random_4_bit(config: Mapping[str, Any], path: Path) -> TrialModel:
    """A GGUF file without a tokenizer; written under another name first."""
    shapes = checkpoint_shapes(config)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        _write_gguf(part, config, shapes)
        part.rename(path)
    sizes = {name: _num_bytes(shape) for name, shape in shapes.items()}
    cost = ModelCost.from_shapes(config, shapes, sizes)
    return TrialModel(path, cost, {"skip_tokenizer_init": True})


def _num_bytes(shape: tuple[int, ...]) -> int:
    return 4 * shape[0] if len(shape) == 1 else shape[0] * FORMAT.row_bytes(shape[1])


def _write_gguf(
    path: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Matrices of random finite blocks (scales below 0.2), norms of ones."""
    metadata = b"".join(
        _text(key) + (struct.pack("<II", 4, value) if isinstance(value, int)
                      else struct.pack("<If", 6, value) if isinstance(value, float)
                      else struct.pack("<I", 8) + _text(value))
        for key, value in _metadata(config).items()
    )  # fmt: skip
    infos, offset = b"", 0
    for name, shape in shapes.items():
        kind = 0 if len(shape) == 1 else GGUF_Q4_1
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += _text(_gguf_name(name)) + dims + struct.pack("<IQ", kind, offset)
        offset += -(-_num_bytes(shape) // ALIGNMENT) * ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(_metadata(config)))
    rng = np.random.default_rng(0)
    noise = rng.integers(0x10, 0x30, PIECE, dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        file.write(head + metadata + infos)
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        for shape in shapes.values():
            if len(shape) == 1:
                file.write(np.ones(shape, "<f4").tobytes())
            else:
                whole, rest = divmod(_num_bytes(shape), PIECE)
                for _ in range(whole):
                    file.write(noise)
                file.write(noise[:rest])
            file.write(b"\0" * (-file.tell() % ALIGNMENT))


def _metadata(config: Mapping[str, Any]) -> dict[str, str | int | float]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.dimension_count": head_dim,
        "llama.context_length": config["max_position_embeddings"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
    }


_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.layers": "blk", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _gguf_name(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
