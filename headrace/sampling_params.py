"""What a caller may ask of sampling, and every rule about it that needs no model.

Rules that need the model (vocabulary, `max_logprobs`, context length) are checked by
`engine/input_processor.py`.
"""

from __future__ import annotations

import math
import os
from enum import IntEnum
from typing import Any

import msgspec

from headrace.checks import (
    INT64_MAX,
    INT64_MIN,
    check_boolean,
    check_extra_args,
    check_integer,
    check_real,
    checked_logit_bias,
    checked_strings,
    checked_token_ids,
    plain,
)
from headrace.errors import UnsupportedError, ValidationError
from headrace.logger import make_logger
from headrace.structured_params import StructuredOutputsParams as StructuredOutputsParams

logger = make_logger(__name__)

MAX_N_SEQUENCES = 16384
MAX_LOGPROB_TOKEN_IDS = 128
MAX_PATTERN_SIZE = 1024
"""Of repetition detection, whose work per token grows with it."""
GREEDY_BELOW = 0.01


class RequestOutputKind(IntEnum):
    """What each output of a request carries."""

    CUMULATIVE = 0
    """Everything generated so far."""
    DELTA = 1
    """Only what is new since the last output."""
    FINAL_ONLY = 2
    """One output, at the end."""


class RepetitionDetectionParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stop when some pattern of generated tokens comes `min_count` times in a row.

    Args:
        max_pattern_size, min_pattern_size: how many tokens a pattern may have.
        min_count: at least 2.

    Raises:
        ValidationError: a value outside its rule.
    """

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        where = "repetition_detection"
        check_integer(f"{where}.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE)
        check_integer(f"{where}.min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_integer(f"{where}.min_count", self.min_count, 2, INT64_MAX)


class BeamSearchParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a caller may ask of beam search.

    Args:
        beam_width: beams kept after each token.
        max_tokens: tokens of the longest answer.
        ignore_eos: go on behind the end of an answer.
        temperature: of the distribution that is searched; 0 leaves it as it is.
        length_penalty: a beam's score is its log-probability over its length to this power.
        structured_outputs: what every answer must follow.

    Raises:
        ValidationError: a value outside its rule. UnsupportedError: a field that is not offered.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    watermarking: object = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, plain(getattr(self, name)))
        check_integer("beam_width", self.beam_width, 1, INT64_MAX)
        check_integer("max_tokens", self.max_tokens, 1, INT64_MAX)
        check_real("temperature", self.temperature, 0.0, 2.0)
        check_real("length_penalty", self.length_penalty, -100.0, 100.0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check_boolean(name, getattr(self, name))
        _check_structured_outputs(self.structured_outputs)
        if self.watermarking is not None:
            raise UnsupportedError(
                "beam search with watermarking is not supported", param="watermarking"
            )


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
        logprob_token_ids: report these tokens instead of the likeliest ones; their ranks are not
            known. `logprobs` may then be left out.
        flat_logprobs: give log-probabilities in a FlatLogprobs, which costs the garbage collector
            nothing.
        thinking_token_budget: most tokens between the model's marks of thinking; then the closing
            mark is put. For models whose vocabulary has the marks.
        repetition_detection: end with finish_reason `repetition`.
        deadline_ms: time for the whole request, from its arrival. When it is over the answer ends
            with finish_reason `timeout` and the text so far; a request that still waits is refused.
        max_queue_ms: how long it may wait to be started; then it is refused.
        output_kind: see RequestOutputKind.

    Numbers and arrays of NumPy or PyTorch are taken wherever a number or a list is.

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
    thinking_token_ids: tuple[int, int] | None = None
    """The marks around thinking. Filled in by the input processor, never by callers."""
    repetition_detection: RepetitionDetectionParams | None = None
    deadline_ms: float | None = None
    max_queue_ms: float | None = None
    skip_clone: bool = False
    """Either value: parameters are never copied for the caller's sake."""

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_stops()
        self._check_logprobs()
        self._check_token_lists()
        _check_structured_outputs(self.structured_outputs)
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
        for name in (*_NUMBERS, *_BOOLEANS):
            setattr(self, name, plain(getattr(self, name)))
        if self.seed == -1 and not isinstance(self.seed, bool):
            self.seed = None
        if self.stop is None:
            self.stop = []
        elif isinstance(self.stop, str):
            self.stop = [self.stop]
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
        check_integer("n", self.n, 1, limit)
        check_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_real("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True)
        check_real("temperature", self.temperature, 0.0, 2.0)
        if 0.0 < self.temperature < GREEDY_BELOW:
            logger.warning_once("temperatures below %s are treated as greedy", GREEDY_BELOW)
        check_real("top_p", self.top_p, 0.0, 1.0, low_open=True)
        check_integer("top_k", self.top_k, 0, INT64_MAX, also="or -1 (off)")
        check_real("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, INT64_MIN, INT64_MAX)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, INT64_MAX)
        check_integer("min_tokens", self.min_tokens, 0, INT64_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValidationError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
                param="min_tokens",
                value=self.min_tokens,
            )
        if self.stream_interval is not None:
            check_integer("stream_interval", self.stream_interval, 1, INT64_MAX)
        if self.thinking_token_budget is not None:
            check_integer("thinking_token_budget", self.thinking_token_budget, 0, INT64_MAX)
        for name in ("deadline_ms", "max_queue_ms"):
            if getattr(self, name) is not None:
                check_real(name, getattr(self, name), 0.0, math.inf, low_open=True)
        for name in _BOOLEANS:
            check_boolean(name, getattr(self, name))
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise ValidationError(
                "output_kind must be a RequestOutputKind",
                param="output_kind",
                value=self.output_kind,
            ) from None

    def _check_stops(self) -> None:
        self.stop = checked_strings("stop", self.stop)
        if self.stop and not self.detokenize:
            raise ValidationError(
                "stop strings need detokenize=True; use stop_token_ids instead",
                param="stop",
                value=self.stop,
            )
        ids = [] if self.stop_token_ids is None else self.stop_token_ids
        self.stop_token_ids = list(dict.fromkeys(checked_token_ids("stop_token_ids", ids)))

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, -1, INT64_MAX)
        if self.logprob_token_ids is None:
            return
        ids = self.logprob_token_ids = checked_token_ids(
            "logprob_token_ids", self.logprob_token_ids
        )
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
            self.logit_bias = checked_logit_bias(self.logit_bias)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = checked_token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValidationError(
                    "allowed_token_ids must not be empty", param="allowed_token_ids"
                )
        self.bad_words = checked_strings(
            "bad_words", [] if self.bad_words is None else self.bad_words
        )
        if self.extra_args is not None:
            check_extra_args(self.extra_args)
        repetition: object = self.repetition_detection
        if isinstance(repetition, dict):
            self.repetition_detection = _repetition(repetition)
        elif repetition is not None and not isinstance(repetition, RepetitionDetectionParams):
            raise ValidationError(
                "repetition_detection must be RepetitionDetectionParams",
                param="repetition_detection",
            )


def _check_structured_outputs(asked: object) -> None:
    if asked is not None and not isinstance(asked, StructuredOutputsParams):
        raise ValidationError(
            "structured_outputs must be StructuredOutputsParams",
            param="structured_outputs",
            value=asked,
        )


_NUMBERS = (
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
    "stream_interval", "thinking_token_budget", "deadline_ms", "max_queue_ms",
)  # fmt: skip


_BOOLEANS = (
    "ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "flat_logprobs", "skip_reading_prefix_cache",
)  # fmt: skip


def _repetition(given: dict[str, Any]) -> RepetitionDetectionParams:
    """The record a JSON object or a dict stands for."""
    try:
        return RepetitionDetectionParams(**given)
    except TypeError as error:
        raise ValidationError(
            f"repetition_detection: {error}", param="repetition_detection"
        ) from None


def max_n_sequences() -> int:
    """The bound on `n`: HEADRACE_MAX_N_SEQUENCES, or 16,384."""
    text = os.environ.get("HEADRACE_MAX_N_SEQUENCES", "")
    return int(text) if text else MAX_N_SEQUENCES
