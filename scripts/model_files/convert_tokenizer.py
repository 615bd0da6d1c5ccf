"""The tokenizer files of a Hugging Face folder, made of a GGUF file's metadata."""

from __future__ import annotations

from model_files.errors import Failed
from model_files.files import write_json

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
