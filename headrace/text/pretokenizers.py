"""How byte-level vocabularies in GGUF files cut text before merging (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
)


@dataclass(frozen=True, slots=True)
class BytePairRecipe:
    """One way to prepare text for byte-level merging.

    Attributes:
        splits: patterns that cut the text, one after another.
        individual_digits: then cut digits apart.
        gpt2_split: then cut as GPT-2 does.
        nfc: compose characters first.
        ignore_merges: a piece that is a token as a whole stays whole.
        adds_bos: whether BOS is added when the file does not say.
    """

    splits: tuple[str, ...] = ()
    individual_digits: bool = False
    gpt2_split: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def make_normalizer(self) -> normalizers.Normalizer | None:
        """The step before cutting."""
        return normalizers.NFC() if self.nfc else None

    def make_pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cuts, and the spelling in the byte-level alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.splits
        ]
        if self.individual_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_split))
        return pre_tokenizers.Sequence(steps)


_GPT2 = BytePairRecipe(gpt2_split=True)
_DIGITS = BytePairRecipe(gpt2_split=True, individual_digits=True)
_QWEN = BytePairRecipe(splits=(_QWEN2,), nfc=True)
_LLAMA = BytePairRecipe(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True)

RECIPES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": BytePairRecipe(gpt2_split=True, individual_digits=True, nfc=True),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "tekken": BytePairRecipe(splits=(_TEKKEN,), ignore_merges=True),
    "deepseek-llm": BytePairRecipe(splits=_DEEPSEEK_LLM, individual_digits=True),
}
"""The name in `tokenizer.ggml.pre` -> recipe."""
