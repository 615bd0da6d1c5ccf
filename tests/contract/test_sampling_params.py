"""SamplingParams and its companions, field by field, as programs of this field know them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    ValidationError,
)
from headrace.errors import UnsupportedError
from headrace.sampling_params import MAX_PATTERN_SIZE, StructuredOutputsParams

DEFAULTS = {
    "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "stop": [],
    "stop_token_ids": [], "ignore_eos": False, "max_tokens": 16, "min_tokens": 0, "logprobs": None,
    "prompt_logprobs": None, "logprob_token_ids": None, "flat_logprobs": False, "detokenize": True,
    "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False, "output_kind": RequestOutputKind.CUMULATIVE,
    "stream_interval": None, "structured_outputs": None, "logit_bias": None,
    "allowed_token_ids": None, "bad_words": [], "extra_args": None,
    "skip_reading_prefix_cache": False, "thinking_token_budget": None,
    "repetition_detection": None, "deadline_ms": None, "max_queue_ms": None, "skip_clone": False,
}  # fmt: skip
INTERNAL = {"bad_words_token_ids", "thinking_token_ids"}


def test_fields_and_their_defaults_are_the_known_ones() -> None:
    params = SamplingParams()
    assert set(params.__struct_fields__) - INTERNAL == set(DEFAULTS)
    assert {name: getattr(params, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    "name",
    ["guided_decoding", "best_of", "use_beam_search", "early_stopping", "logits_processors",
     "truncate_prompt_tokens", "watermarking", "prompt_logprob_token_ids"],
)  # fmt: skip
def test_name_that_is_no_field_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: 1})


def test_output_kinds_have_their_numbers() -> None:
    assert [(kind.name, kind.value) for kind in RequestOutputKind] == [
        ("CUMULATIVE", 0), ("DELTA", 1), ("FINAL_ONLY", 2),
    ]  # fmt: skip


# Values of array libraries


@pytest.mark.parametrize("of", [np.int64, np.int32, np.uint8, torch.tensor])
def test_integers_of_array_libraries_are_integers(of: Any) -> None:
    params = SamplingParams(
        n=of(2), top_k=of(3), max_tokens=of(4), min_tokens=of(1), logprobs=of(5), seed=of(6),
        prompt_logprobs=of(0), stream_interval=of(2), thinking_token_budget=of(9),
    )  # fmt: skip
    assert params == SamplingParams(
        n=2, top_k=3, max_tokens=4, min_tokens=1, logprobs=5, seed=6, prompt_logprobs=0,
        stream_interval=2, thinking_token_budget=9,
    )  # fmt: skip
    assert type(params.n) is type(params.seed) is int


@pytest.mark.parametrize("of", [np.float64, np.float32, np.float16, torch.tensor])
def test_floats_of_array_libraries_are_floats(of: Any) -> None:
    params = SamplingParams(
        temperature=of(0.5), top_p=of(0.25), min_p=of(0.125), presence_penalty=of(1.0),
        frequency_penalty=of(-1.0), repetition_penalty=of(1.5), deadline_ms=of(250.0),
    )  # fmt: skip
    assert params == SamplingParams(
        temperature=0.5, top_p=0.25, min_p=0.125, presence_penalty=1.0, frequency_penalty=-1.0,
        repetition_penalty=1.5, deadline_ms=250.0,
    )  # fmt: skip
    assert type(params.temperature) is float


@pytest.mark.parametrize(
    "ids",
    [np.array([3, 1, 2]), np.array([3, 1, 2], np.uint16), torch.tensor([3, 1, 2]), (3, 1, 2),
     [np.int32(3), 1, torch.tensor(2)]],
    ids=lambda ids: type(ids).__name__,
)  # fmt: skip
@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_token_ids_of_array_libraries_are_lists(name: str, ids: Any) -> None:
    found = getattr(SamplingParams(**{name: ids}), name)
    assert found == [3, 1, 2]
    assert set(map(type, found)) == {int}


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", np.bool_(True)), ("n", np.float32(1)), ("n", np.array([1])), ("seed", np.uint64(2**63)),
     ("temperature", np.float32("nan")), ("temperature", np.array([0.5])),
     ("top_p", torch.tensor(math.inf)), ("stop_token_ids", np.array([1.0])),
     ("stop_token_ids", np.array([True])), ("stop_token_ids", np.array([-1])),
     ("stop_token_ids", np.array([[1]])), ("allowed_token_ids", torch.tensor([])),
     ("logit_bias", {np.float32(1): 1.0}), ("logit_bias", {1: np.float32("inf")})],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_value_of_an_array_library_keeps_the_rules(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        SamplingParams(**{name: value})
    assert str(error.value.param).startswith(name)


def test_logit_bias_of_numpy_numbers_is_plain() -> None:
    params = SamplingParams(logit_bias={np.int64(5): np.float32(1.5)})
    assert params.logit_bias == {5: 1.5}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


# Fields with rules of their own


def test_logprob_token_ids_may_stand_alone_or_equal_logprobs() -> None:
    assert SamplingParams(logprob_token_ids=[1, 2]).logprobs is None
    assert SamplingParams(logprob_token_ids=[1, 2], logprobs=2).logprobs == 2
    with pytest.raises(ValidationError, match="must equal the number"):
        SamplingParams(logprob_token_ids=[1, 2], logprobs=3)
    assert len(SamplingParams(logprob_token_ids=list(range(128))).logprob_token_ids or []) == 128


@pytest.mark.parametrize(
    "values",
    [{"max_pattern_size": 0}, {"max_pattern_size": MAX_PATTERN_SIZE + 1},
     {"max_pattern_size": 3, "min_pattern_size": 4}, {"max_pattern_size": 3, "min_pattern_size": 0},
     {"max_pattern_size": 3, "min_count": 1}, {"max_pattern_size": True},
     {"max_pattern_size": 2.0}],
    ids=repr,
)  # fmt: skip
def test_repetition_detection_outside_its_rules_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="repetition_detection"):
        RepetitionDetectionParams(**values)
    with pytest.raises(ValidationError, match="repetition_detection"):
        SamplingParams(repetition_detection=values)  # type: ignore[arg-type]


def test_repetition_detection_may_be_an_object() -> None:
    wanted = RepetitionDetectionParams(4, 2, 3)
    given_as = {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}
    params = SamplingParams(repetition_detection=given_as)  # type: ignore[arg-type]
    assert params.repetition_detection == wanted
    for other in ({"pattern": 3}, {}, "yes", 3):
        with pytest.raises(ValidationError, match="repetition_detection"):
            SamplingParams(repetition_detection=other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["deadline_ms", "max_queue_ms"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "5", True])
def test_deadline_outside_its_rule_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", [-1, np.int64(-1)])
def test_thinking_token_budget_of_minus_one_is_none(value: Any) -> None:
    assert SamplingParams(thinking_token_budget=value).thinking_token_budget is None


@pytest.mark.parametrize(
    "value", [{"a": 2**63}, {"a": [1, {"b": -(2**63) - 1}]}, {"a": {"b": (2**64,)}}], ids=repr
)
def test_integer_beyond_64_bits_anywhere_in_extra_args_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="64 bits"):
        SamplingParams(extra_args=value)


def test_prompt_logprobs_skip_the_prefix_cache_unless_told() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams().skip_reading_prefix_cache is False
    assert SamplingParams(skip_reading_prefix_cache=True).skip_reading_prefix_cache is True


# Beam search


def test_beam_search_params_have_their_defaults() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=np.int64(5))
    assert (params.beam_width, params.max_tokens, params.ignore_eos) == (3, 5, False)
    assert (params.temperature, params.length_penalty) == (0.0, 1.0)
    assert (params.include_stop_str_in_output, params.skip_special_tokens) == (False, True)
    assert params.structured_outputs is None
    assert params.watermarking is None


@pytest.mark.parametrize(
    "values",
    [{"beam_width": 0}, {"beam_width": 1.5}, {"max_tokens": 0}, {"temperature": -1.0},
     {"temperature": math.nan}, {"length_penalty": math.inf}, {"ignore_eos": 1}],
    ids=repr,
)  # fmt: skip
def test_beam_search_params_outside_their_rules_are_refused(values: dict[str, Any]) -> None:
    [name] = values
    with pytest.raises(ValidationError, match=name):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **values})


def test_beam_search_with_what_is_not_offered_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="watermarking"):
        BeamSearchParams(beam_width=2, max_tokens=4, watermarking={})


def test_beam_search_takes_structured_outputs_of_their_type() -> None:
    form = StructuredOutputsParams(regex="a")
    params = BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs=form)
    assert params.structured_outputs is form
    with pytest.raises(ValidationError, match="structured_outputs"):
        BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs={"regex": "a"})  # type: ignore[arg-type]


# Properties

SCALARS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.binary(max_size=2)
)
ANY = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(SCALARS, SCALARS, max_size=2)
)
FIELDS = sorted(set(DEFAULTS) - {"structured_outputs", "skip_clone", "extra_args"})


@given(st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=4))
def test_any_values_give_sound_parameters_or_a_validation_error(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except ValidationError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert str(refused.param).split(".")[0] in FIELDS
        return
    assert 0.0 <= params.temperature <= 2.0
    assert 0.0 < params.top_p <= 1.0
    assert 0.0 <= params.min_p <= 1.0
    assert params.n >= 1
    assert params.top_k >= 0
    assert params.max_tokens is None or params.max_tokens >= max(1, params.min_tokens)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert params.clone() == params


@given(
    temperature=st.floats(0.0, 2.0), top_p=st.floats(0.0, 1.0, exclude_min=True),
    top_k=st.integers(-1, 100), min_p=st.floats(0.0, 1.0), seed=st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3),
)  # fmt: skip
def test_sound_values_are_taken_and_survive_the_wire(**values: Any) -> None:
    params = SamplingParams(**values)
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
    assert params.is_greedy == (values["temperature"] < 0.01)
    as_json = json.loads(msgspec.json.encode(params))
    assert SamplingParams(**as_json) == params
