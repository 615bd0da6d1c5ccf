"""Builds a tokenizer from the vocabulary in a GGUF file's metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.hub.gguf_metadata import GgufFile
from headrace.text.pretokenizers import RECIPES
from headrace.text.score_merges import MAX_TOKEN_CHARS, merges_from_scores

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "\u2581"
USER_DEFINED_SCORE = 1e9
"""User-defined tokens are joined before all others, the lowest id first."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A GGUF file's tokenizer, ready for use.

    Attributes:
        backend: the coder, without BOS or EOS.
        tokens: text of every token, by id.
        roles: bos, eos, pad, unk -> id, those the file names.
        end_ids: all ids the file names as ends of an answer.
        adds_bos, adds_eos: what a text gets around it.
        chat_template: the file's own, if any.
    """

    backend: Tokenizer
    tokens: list[str]
    roles: dict[str, int]
    end_ids: list[int]
    adds_bos: bool
    adds_eos: bool
    chat_template: str | None


def read_gguf_vocabulary(path: Path) -> GgufVocabulary:
    """Read the metadata of a .gguf file and build.

    Raises:
        ModelError: no vocabulary, a kind that is not supported, or arrays that do not fit.
    """
    gguf = GgufFile(path)
    kind = gguf.string(PREFIX + "model", "no vocabulary")
    if kind not in ("gpt2", "llama"):
        raise gguf.fault(
            f"the tokenizer kind {kind!r} is not supported, only gpt2 and llama; "
            "give another with --tokenizer FOLDER"
        )
    tokens = gguf.strings(PREFIX + "tokens")
    if kind == "llama":  # spaces are marks inside pieces, whatever the converter wrote
        tokens = [token.replace(" ", SPACE) for token in tokens]
    types = _token_types(gguf, len(tokens))
    if kind == "llama":
        backend, adds_bos = _score_backend(gguf, tokens, types), True
    else:
        backend, adds_bos = _merge_backend(gguf, tokens)
    marked = np.isin(types, (UNKNOWN, CONTROL, USER_DEFINED))
    backend.add_tokens(
        [
            AddedToken(tokens[i], special=bool(types[i] != USER_DEFINED), normalized=False)
            for i in np.nonzero(marked)[0].tolist()
            if tokens[i].strip(SPACE)  # runs of spaces are joined, not looked for
        ]
    )
    roles = _roles(gguf, len(tokens))
    ends = [roles[role] for role in ("eos", "eot", "eom") if role in roles]
    template = "tokenizer.chat_template"
    return GgufVocabulary(
        backend=backend,
        tokens=tokens,
        roles=roles,
        end_ids=list(dict.fromkeys(ends)),
        adds_bos=gguf.boolean(PREFIX + "add_bos_token", adds_bos),
        adds_eos=gguf.boolean(PREFIX + "add_eos_token", False),
        chat_template=gguf.string(template) if template in gguf else None,
    )


def _token_types(gguf: GgufFile, num_tokens: int) -> npt.NDArray[np.int64]:
    key = PREFIX + "token_type"
    if key not in gguf:
        return np.full(num_tokens, NORMAL)
    types = gguf.numbers(key).astype(np.int64)
    if len(types) != num_tokens:
        raise gguf.fault(f"{key} has {len(types)} entries for {num_tokens} tokens")
    return types


def _roles(gguf: GgufFile, num_tokens: int) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown",
             "eot": "eot", "eom": "eom"}  # fmt: skip
    roles = {}
    for role, name in names.items():
        key = f"{PREFIX}{name}_token_id"
        if key in gguf:
            roles[role] = gguf.integer(key)
            if not 0 <= roles[role] < num_tokens:
                raise gguf.fault(f"{key} is {roles[role]}, there are {num_tokens} tokens")
    return roles


def _merge_backend(gguf: GgufFile, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Byte-level byte-pair coding. Also says whether its kind adds BOS by itself."""
    name = gguf.string(PREFIX + "pre", "default")
    recipe = RECIPES.get(name)
    if recipe is None:
        raise gguf.fault(
            f"the pre-tokenizer {name!r} is not supported, only {', '.join(RECIPES)}; "
            "give the model's tokenizer with --tokenizer FOLDER"
        )
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    merges = _merges(gguf, tokens, vocabulary)
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=recipe.ignore_merges)
    except Exception as error:
        raise gguf.fault(f"the vocabulary and its merges do not fit: {error}") from error
    backend = Tokenizer(model)
    normalizer = recipe.make_normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = recipe.make_pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, recipe.adds_bos


def _merges(gguf: GgufFile, tokens: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merges, made of the strings of the vocabulary: others would double the memory it takes
    to start."""
    merges = []
    for line in gguf.strings(PREFIX + "merges"):
        try:
            left, right = line.split(" ")
        except ValueError:
            raise gguf.fault(f"{PREFIX}merges holds an entry that is not two tokens") from None
        try:
            merges.append((tokens[vocabulary[left]], tokens[vocabulary[right]]))
        except KeyError as error:
            raise gguf.fault(f"{PREFIX}merges holds {error}, which is no token") from None
    return merges


def _score_backend(gguf: GgufFile, tokens: list[str], types: npt.NDArray[np.int64]) -> Tokenizer:
    """SentencePiece byte-pair coding with byte fallback."""
    key = PREFIX + "scores"
    scores = gguf.numbers(key).astype(np.float64)
    if len(scores) != len(tokens):
        raise gguf.fault(f"{key} has {len(scores)} entries for {len(tokens)} tokens")
    user_defined = np.nonzero(types == USER_DEFINED)[0]
    scores[user_defined] = USER_DEFINED_SCORE - user_defined
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocabulary) != len(tokens) or max(map(len, tokens), default=0) >= MAX_TOKEN_CHARS:
        raise gguf.fault(f"{PREFIX}tokens holds a token twice, or one that is far too long")
    unknown = gguf.integer(PREFIX + "unknown_token_id", 0)
    if not 0 <= unknown < len(tokens):
        raise gguf.fault(f"{PREFIX}unknown_token_id is {unknown}, there are {len(tokens)} tokens")
    try:
        model = models.BPE(
            vocabulary,
            merges_from_scores(tokens, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:
        raise gguf.fault(f"the vocabulary does not make a tokenizer: {error}") from error
    backend = Tokenizer(model)
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()
    ]  # fmt: skip
    to_marks = normalizers.Replace(" ", SPACE)
    if gguf.boolean(PREFIX + "add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_marks])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = to_marks
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(steps)
    return backend
