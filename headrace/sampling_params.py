"""What a caller may ask of sampling, and every rule about it that needs no model.

Rules that need the model (vocabulary, `max_logprobs`, context length) are checked by
`engine/input_processor.py`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec

from headrace.errors import UnsupportedError, ValidationError, shown
from headrace.logger import make_logger

logger = make_logger(__name__)

MAX_N_SEQUENCES = 16384
MAX_LOGPROB_TOKEN_IDS = 128
GREEDY_BELOW = 0.01
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class RequestOutputKind(IntEnum):
    """What each output of a request carries."""

    CUMULATIVE = 0
    """Everything generated so far."""
    DELTA = 1
    """Only what is new since the last output."""
    FINAL_ONLY = 2
    """One output, at the end."""


class StructuredOutputsParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint on the text: exactly one of the first six fields."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValidationError(
                f"structured_outputs needs exactly one of {', '.join(kinds)}; "
                f"given: {', '.join(given) or 'none'}",
                param="structured_outputs",
            )


class RepetitionDetectionParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stop when the same pattern of tokens comes `min_count` times in a row."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2


class BeamSearchParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a caller may ask of beam search."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are chosen and when it ends.

    Args:
        n: number of independent answers to one prompt.
        presence_penalty, frequency_penalty: in [-2, 2]; subtract from the logits of tokens
            already generated (once, or per occurrence).
        repetition_penalty: > 0; divides (or multiplies, when negative) logits of tokens seen in
            the prompt or the answer.
        temperature: in [0, 2]; 0 is greedy, and so is anything below 0.01.
        top_p: in (0, 1]. top_k: 0 or -1 is off. min_p: in [0, 1].
        seed: makes the answer depend on nothing but the request; -1 is None.
        stop: strings that end the answer. stop_token_ids: token ids that end it.
        max_tokens: limit of generated tokens; None fills the context.
        min_tokens: stops are ignored before this many tokens.
        logprobs, prompt_logprobs: how many alternatives per token to report; -1 is all.
        output_kind: see RequestOutputKind.

    Raises:
        ValidationError: a value outside its rule; names the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    """Filled in by the input processor, never by callers."""
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_stops()
        self._check_logprobs()
        self._check_token_lists()
        self._refuse_unsupported()
        if self.is_greedy:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """Build from values of which any may be None, meaning the default."""
        keep_none = {"max_tokens"}
        return cls(**{k: v for k, v in values.items() if v is not None or k in keep_none})

    @property
    def is_greedy(self) -> bool:
        """Whether every token is simply the most likely one."""
        return self.temperature < GREEDY_BELOW

    def clone(self) -> SamplingParams:
        """A copy that shares no mutable part with this one."""
        copy = msgspec.structs.replace(self)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (list, dict)):
                setattr(copy, name, value.copy())
        return copy

    # -- the rules, by kind ------------------------------------------------------------------

    def _normalise(self) -> None:
        if self.seed == -1 and not isinstance(self.seed, bool):
            self.seed = None
        if self.stop is None:
            self.stop = []
        elif isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.bad_words is None:
            self.bad_words = []
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if self.top_k == -1:
            self.top_k = 0
        if self.thinking_token_budget == -1 and not isinstance(self.thinking_token_budget, bool):
            self.thinking_token_budget = None
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None

    def _check_numbers(self) -> None:
        limit = max_n_sequences()
        _integer("n", self.n, 1, limit)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True)
        _real("temperature", self.temperature, 0.0, 2.0)
        if 0.0 < self.temperature < GREEDY_BELOW:
            logger.warning_once("temperatures below %s are treated as greedy", GREEDY_BELOW)
        _real("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _integer("top_k", self.top_k, 0, INT64_MAX, also="or -1 (off)")
        _real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _integer("seed", self.seed, INT64_MIN, INT64_MAX)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, INT64_MAX)
        _integer("min_tokens", self.min_tokens, 0, INT64_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValidationError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
                param="min_tokens",
                value=self.min_tokens,
            )
        if self.stream_interval is not None:
            _integer("stream_interval", self.stream_interval, 1, INT64_MAX)
        if self.thinking_token_budget is not None:
            _integer("thinking_token_budget", self.thinking_token_budget, 0, INT64_MAX)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "flat_logprobs",
                     "spaces_between_special_tokens", "include_stop_str_in_output"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValidationError(f"{name} must be a boolean", param=name, value=value)
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise ValidationError(
                "output_kind must be a RequestOutputKind",
                param="output_kind",
                value=self.output_kind,
            ) from None

    def _check_stops(self) -> None:
        stop = self.stop
        if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
            raise ValidationError(
                "stop must be a string or a list of strings", param="stop", value=stop
            )
        if any(not s for s in stop):
            raise ValidationError("stop must not hold an empty string", param="stop", value=stop)
        for s in stop:
            _utf8("stop", s)
        if stop and not self.detokenize:
            raise ValidationError(
                "stop strings need detokenize=True; use stop_token_ids instead",
                param="stop",
                value=stop,
            )
        ids = _token_ids("stop_token_ids", self.stop_token_ids or [])
        self.stop_token_ids = list(dict.fromkeys(ids))

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, -1, INT64_MAX)
        ids = self.logprob_token_ids
        if ids is not None:
            _token_ids("logprob_token_ids", ids)
            if len(ids) > MAX_LOGPROB_TOKEN_IDS:
                raise ValidationError(
                    f"logprob_token_ids holds {len(ids)} ids, "
                    f"at most {MAX_LOGPROB_TOKEN_IDS} are allowed",
                    param="logprob_token_ids",
                )
            if self.logprobs is not None and self.logprobs != len(ids):
                raise ValidationError(
                    "logprobs must equal the number of logprob_token_ids when both are given",
                    param="logprobs",
                    value=self.logprobs,
                )

    def _check_token_lists(self) -> None:
        if self.logit_bias is not None:
            self.logit_bias = _logit_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValidationError(
                    "allowed_token_ids must not be empty", param="allowed_token_ids"
                )
        words = self.bad_words
        if not isinstance(words, list) or not all(isinstance(w, str) and w for w in words):
            raise ValidationError(
                "bad_words must be a list of non-empty strings", param="bad_words", value=words
            )
        if self.extra_args is not None:
            if not isinstance(self.extra_args, dict):
                raise ValidationError("extra_args must be an object", param="extra_args")
            for key, value in self.extra_args.items():
                if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
                    raise ValidationError(
                        f"extra_args[{key!r}] does not fit 64 bits", param="extra_args", value=value
                    )

    def _refuse_unsupported(self) -> None:
        """Known fields without an implementation yet: refused, never ignored."""
        for name in ("structured_outputs", "logprob_token_ids", "thinking_token_budget",
                     "repetition_detection"):  # fmt: skip
            if getattr(self, name) is not None:
                raise UnsupportedError(f"{name} is not supported by this version yet", param=name)
        if self.flat_logprobs:
            raise UnsupportedError(
                "flat_logprobs is not supported by this version yet", param="flat_logprobs"
            )


def max_n_sequences() -> int:
    """The bound on `n`: HEADRACE_MAX_N_SEQUENCES, or 16,384."""
    text = os.environ.get("HEADRACE_MAX_N_SEQUENCES", "")
    return int(text) if text else MAX_N_SEQUENCES


def _integer(name: str, value: object, low: int, high: int, *, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        bounds = f"at least {low}" if high == INT64_MAX else f"in [{low}, {high}]"
        raise ValidationError(
            f"{name} must be an integer {bounds}{' ' + also if also else ''}, got {shown(value)}",
            param=name,
            value=value,
        )


def _real(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    ok = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (low < value if low_open else low <= value)
        and (value <= high if high < math.inf else value <= sys.float_info.max)
    )
    if not ok:
        bracket = "(" if low_open else "["
        bounds = f"in {bracket}{low:g}, {high:g}]" if high < math.inf else "finite and above 0"
        raise ValidationError(
            f"{name} must be {bounds}, got {shown(value)}", param=name, value=value
        )


def _token_ids(name: str, ids: Sequence[object]) -> list[int]:
    if not isinstance(ids, list):
        raise ValidationError(f"{name} must be a list of token ids", param=name, value=ids)
    good: list[int] = []
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            raise ValidationError(
                f"{name} must hold token ids, got {shown(token_id)}", param=name, value=token_id
            )
        good.append(token_id)
    return good


def _logit_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, dict):
        raise ValidationError("logit_bias must map token ids to numbers", param="logit_bias")
    clean: dict[int, float] = {}
    for key, value in bias.items():
        token_id = _digits(key) if isinstance(key, str) else key
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < 2**31:
            name = shown(key).strip("'")
            raise ValidationError(
                f"logit_bias key {name} is not a token id", param=f"logit_bias.{name}", value=key
            )
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise ValidationError(
                f"logit_bias of token {token_id} must be a number in [-100, 100], "
                f"got {shown(value)}",
                param=f"logit_bias.{token_id}",
                value=value,
            )
        clean[token_id] = float(value)
    return clean


def _digits(text: str) -> int | None:
    """The number a JSON key stands for: up to ten digits and nothing else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{name} holds a lone surrogate", param=name) from None
