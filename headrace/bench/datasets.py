"""Prompts to measure with: made from a seed, or read from a file. Sends nothing anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.bench.settings import DatasetSettings
from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer

Ids: TypeAlias = npt.NDArray[np.int64]

DEFAULT_OUTPUT_LEN = 128
MIN_SHAREGPT_LEN = 4
MAX_SHAREGPT_PROMPT_LEN = 1024
MAX_SHAREGPT_LEN = 2048
"""Conversations outside these bounds are left out, as is usual with this data set."""
MAX_TEXT_TRIES = 10


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request of a data set.

    Attributes:
        prompt: text, or token ids.
        num_prompt_tokens: None for a text that nobody has tokenised here.
        output_len: tokens to generate.
    """

    prompt: str | list[int]
    num_prompt_tokens: int | None
    output_len: int


class Vocabulary:
    """Which token ids random prompts are made of.

    Args:
        tokenizer: None to take any id but those in `excluded`.
        size: ids of the model; None: those of the tokenizer. One of the two must be given.
        excluded: ids that shall not occur, such as the end of an answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        size: int | None = None,
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        self.tokenizer = tokenizer
        limits = [] if size is None else [size]
        if tokenizer is not None:
            limits.append(tokenizer.vocab_size)
        ids = [i for i in range(min(limits)) if i not in excluded]
        if tokenizer is not None:
            ids = [i for i in ids if not tokenizer.is_special(i) and tokenizer.token_bytes(i)]
        self.ordinary_ids: Ids = np.array(ids, np.int64)
        if not len(self.ordinary_ids):
            raise ConfigError("the vocabulary has no tokens that random prompts could be made of")

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """Random ids, none of them special."""
        drawn: list[int] = rng.choice(self.ordinary_ids, count).tolist()
        return drawn


def needs_tokenizer(settings: DatasetSettings) -> bool:
    """Whether the requests cannot be made without knowing tokens."""
    return settings.dataset_name != "custom"


def make_requests(
    settings: DatasetSettings, vocabulary: Vocabulary | None, seed: int
) -> list[BenchRequest]:
    """The requests; the same for the same arguments.

    Args:
        vocabulary: may be None when `needs_tokenizer` says no.

    Raises:
        ConfigError: a file that cannot be read or holds something else; a tokenizer is missing.
    """
    rng = np.random.default_rng(seed)
    if settings.dataset_name == "custom":
        return _custom(settings, vocabulary.tokenizer if vocabulary else None, rng)
    if vocabulary is None or (settings.dataset_name == "sharegpt" and not vocabulary.tokenizer):
        raise ConfigError(f"dataset_name {settings.dataset_name} needs a tokenizer")
    if settings.dataset_name == "sharegpt":
        assert vocabulary.tokenizer is not None
        return _sharegpt(settings, vocabulary.tokenizer, rng)
    if settings.dataset_name == "prefix_repetition":
        return _prefix_repetition(settings, vocabulary, rng)
    return _random(settings, vocabulary, rng)


def as_texts(
    requests: list[BenchRequest], vocabulary: Vocabulary | None, seed: int
) -> list[BenchRequest]:
    """The same requests with prompts as text, of the same number of tokens where that can be.

    Random tokens written out and read again are often others (two may read as one). Tokens are
    then cut off or added, and the number that is reached counts.
    """
    rng = np.random.default_rng(seed)
    texts = []
    for request in requests:
        if isinstance(request.prompt, list):
            if vocabulary is None or vocabulary.tokenizer is None:
                raise ConfigError("prompts of token ids need a tokenizer to become text")
            text, count = _as_text(request.prompt, vocabulary, vocabulary.tokenizer, rng)
            request = BenchRequest(text, count, request.output_len)
        texts.append(request)
    return texts


def _as_text(
    ids: list[int], vocabulary: Vocabulary, tokenizer: Tokenizer, rng: np.random.Generator
) -> tuple[str, int]:
    wanted = len(ids)
    for _ in range(MAX_TEXT_TRIES):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == wanted:
            return text, wanted
        missing = wanted - len(ids)
        ids = ids[:wanted] if missing < 0 else ids + vocabulary.draw(rng, missing)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return text, len(tokenizer.encode(text, add_special_tokens=False))


# -- made from a seed ------------------------------------------------------------------------


def _random(
    settings: DatasetSettings, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[BenchRequest]:
    prefix = vocabulary.draw(rng, settings.random_prefix_len)
    count, ratio = settings.num_prompts, settings.random_range_ratio
    input_lens = _lengths(rng, settings.input_len, ratio, count)
    output_lens = _lengths(rng, settings.output_len or DEFAULT_OUTPUT_LEN, ratio, count)
    prompts = [prefix + vocabulary.draw(rng, length) for length in input_lens]
    return [
        BenchRequest(prompt, len(prompt), output_len)
        for prompt, output_len in zip(prompts, output_lens, strict=True)
    ]


def _lengths(rng: np.random.Generator, middle: int, ratio: float, count: int) -> list[int]:
    low = max(1, math.floor(middle * (1 - ratio)))
    high = math.ceil(middle * (1 + ratio))
    lengths: list[int] = rng.integers(low, high, count, endpoint=True).tolist()
    return lengths


def _prefix_repetition(
    settings: DatasetSettings, vocabulary: Vocabulary, rng: np.random.Generator
) -> list[BenchRequest]:
    prefixes = [
        vocabulary.draw(rng, settings.prefix_repetition_prefix_len)
        for _ in range(settings.prefix_repetition_num_prefixes)
    ]
    prompts = [
        prefixes[index % len(prefixes)]
        + vocabulary.draw(rng, settings.prefix_repetition_suffix_len)
        for index in range(settings.num_prompts)
    ]
    output_len = settings.prefix_repetition_output_len
    requests = [BenchRequest(prompt, len(prompt), output_len) for prompt in prompts]
    return [requests[index] for index in rng.permutation(len(requests))]


# -- read from a file ------------------------------------------------------------------------


def _custom(
    settings: DatasetSettings, tokenizer: Tokenizer | None, rng: np.random.Generator
) -> list[BenchRequest]:
    path = _path(settings)
    lines = [(n, line) for n, line in enumerate(_read(path).splitlines(), 1) if line.strip()]
    if settings.shuffle:
        lines = [lines[index] for index in rng.permutation(len(lines))]
    found = []
    for number, line in lines[: settings.num_prompts]:
        try:
            entry = json.loads(line)
        except ValueError:
            raise ConfigError(f"{path}:{number}: not a JSON object") from None
        found.append(_custom_request(entry, settings, tokenizer, f"{path}:{number}"))
    return _repeat(found, settings.num_prompts, path)


def _custom_request(
    entry: Any, settings: DatasetSettings, tokenizer: Tokenizer | None, where: str
) -> BenchRequest:
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    is_ids = isinstance(prompt, list) and all(type(item) is int for item in prompt)
    if not prompt or not (isinstance(prompt, str) or is_ids):
        raise ConfigError(f'{where}: "prompt" must be a text or a list of token ids')
    output_len = settings.output_len or entry.get("output_tokens", DEFAULT_OUTPUT_LEN)
    if type(output_len) is not int or output_len < 1:
        raise ConfigError(f'{where}: "output_tokens" must be a whole number from 1 on')
    num_tokens = None
    if is_ids:
        num_tokens = len(prompt)
    elif tokenizer is not None:
        num_tokens = len(tokenizer.encode(prompt))
    return BenchRequest(prompt, num_tokens, output_len)


def _sharegpt(
    settings: DatasetSettings, tokenizer: Tokenizer, rng: np.random.Generator
) -> list[BenchRequest]:
    path = _path(settings)
    try:
        entries = json.loads(_read(path))
    except ValueError:
        raise ConfigError(f"{path}: not valid JSON") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: expected a list of conversations")
    if settings.shuffle:
        entries = [entries[index] for index in rng.permutation(len(entries))]
    found: list[BenchRequest] = []
    for prompt, answer in _first_turns(entries):
        if len(found) == settings.num_prompts:
            break
        num_tokens = len(tokenizer.encode(prompt))
        output_len = settings.output_len or len(tokenizer.encode(answer, add_special_tokens=False))
        is_short = num_tokens < MIN_SHAREGPT_LEN or (
            settings.output_len is None and output_len < MIN_SHAREGPT_LEN
        )
        is_long = num_tokens > MAX_SHAREGPT_PROMPT_LEN or num_tokens + output_len > MAX_SHAREGPT_LEN
        if not is_short and not is_long:
            found.append(BenchRequest(prompt, num_tokens, output_len))
    return _repeat(found, settings.num_prompts, path)


def _first_turns(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """The first two texts of every conversation that has two."""
    for entry in entries:
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
        if isinstance(texts[0], str) and isinstance(texts[1], str):
            yield texts[0], texts[1]


def _repeat(found: list[BenchRequest], count: int, path: Path) -> list[BenchRequest]:
    if not found:
        raise ConfigError(f"{path}: no usable prompts in it")
    return [found[index % len(found)] for index in range(count)]


def _path(settings: DatasetSettings) -> Path:
    assert settings.dataset_path is not None  # the settings' own check
    return Path(settings.dataset_path).expanduser()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"dataset_path {path}: cannot be read: {reason}") from None
