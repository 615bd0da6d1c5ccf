"""Every rule about sampling parameters that needs no model."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from headrace import SamplingParams
from headrace.errors import ValidationError, shown
from headrace.sampling_params import RequestOutputKind, StructuredOutputsParams

NAN, INF = math.nan, math.inf

BAD = [
    ("n", [0, -1, 10**9, 10**5000, 16385, 1.5, True, "2", None]),
    ("presence_penalty", [-2.1, 2.1, NAN, INF, "1", True]),
    ("frequency_penalty", [-2.1, 2.1, NAN, -INF]),
    ("repetition_penalty", [0.0, -1.0, NAN, INF, 10**400]),
    ("temperature", [-0.1, 2.1, NAN, INF, 10**400, -(10**5000), "hot", True]),
    ("top_p", [0.0, -0.5, 1.01, NAN]),
    ("top_k", [-2, 1.5, True, 2**63]),
    ("min_p", [-0.01, 1.01, NAN]),
    ("seed", [2**63, -(2**63) - 1, 1.0, True, "7"]),
    ("max_tokens", [0, -1, 1.5, True, 2**63]),
    ("min_tokens", [-1, 1.5, 17]),
    ("stop", [[""], "", [1], 5, ["a", None], ["\ud800"]]),
    ("stop_token_ids", [[-1], [2**31], [10**5000], [1.0], [True], "5", {1: 2}]),
    ("logprobs", [-2, 1.5, "3"]),
    ("prompt_logprobs", [-2, "3"]),
    ("logprob_token_ids", [list(range(129)), [-1]]),
    ("logit_bias", [{-1: 1.0}, {2**31: 1.0}, {10**5000: 1.0}, {"x": 1.0}, {"": 1.0}, {"1_0": 1.0},
                    {" 1": 1.0}, {"+1": 1.0}, {"-1": 1.0}, {"1.0": 1.0}, {"٣": 1.0},
                    {"9" * 5000: 1.0}, {1: 101}, {1: NAN}, {1: INF}, {1: 10**400}, {1: "2"},
                    {1: True}, {1: None},
                    {True: 1.0}, [1], "1"]),
    ("allowed_token_ids", [[], [-1], ["a"]]),
    ("bad_words", [[""], [1], "word"]),
    ("ignore_eos", [1, "yes"]),
    ("detokenize", [0]),
    ("stream_interval", [0, -1, True]),
    ("thinking_token_budget", [-2, 1.0, True]),
    ("extra_args", [{"a": 2**63}, [1]]),
    ("output_kind", [7, "delta"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD for value in values],
    ids=lambda value: shown(value)[:40],
)
def test_a_value_outside_its_rule_is_refused_naming_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        SamplingParams(**{field: value})
    assert error.value.param is not None
    assert error.value.param.split(".")[0] == field
    assert field in str(error.value)
    assert len(str(error.value)) < 300


def test_defaults_are_the_fields_own() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.min_p) == (16, 0, 0.0)
    assert params.stop == params.bad_words == params.stop_token_ids == []
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-4, 1e-8, 5e-324, 0.0099])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5, top_k=3, min_p=0.1)
    assert params.is_greedy
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_greedy_with_several_answers_is_allowed() -> None:
    assert SamplingParams(temperature=0, n=3).n == 3


def test_spellings_are_normalised() -> None:
    params = SamplingParams(
        seed=-1, stop="x", top_k=-1, logprobs=True, prompt_logprobs=True, stop_token_ids=[3, 1, 3]
    )
    assert (params.seed, params.stop, params.top_k) == (None, ["x"], 0)
    assert (params.logprobs, params.prompt_logprobs) == (1, 1)
    assert params.stop_token_ids == [3, 1]
    assert params.skip_reading_prefix_cache is True


def test_logit_bias_keys_may_be_strings_of_ids() -> None:
    assert SamplingParams(logit_bias={"5": 1, 7: -100}).logit_bias == {5: 1.0, 7: -100.0}


def test_stop_strings_need_detokenizing() -> None:
    with pytest.raises(ValidationError, match="stop_token_ids"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop_token_ids=[1], detokenize=False).stop_token_ids == [1]


def test_unlimited_max_tokens_is_none() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=100).max_tokens is None


@pytest.mark.parametrize(
    "field",
    ["guided_decoding", "best_of", "use_beam_search", "early_stopping", "logits_processors",
     "truncate_prompt_tokens"],
)  # fmt: skip
def test_old_names_are_type_errors(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: 1})


@pytest.mark.parametrize("given", [{}, {"regex": "a", "json": "{}"}])
def test_structured_outputs_need_exactly_one_kind(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one"):
        StructuredOutputsParams(**given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"json": ""}, "json"), ({"json": 5}, "json"), ({"json": "{}\0"}, "json"),
        ({"regex": ""}, "regex"), ({"regex": "a\0"}, "regex"), ({"regex": ["a"]}, "regex"),
        ({"choice": []}, "choice"), ({"choice": "yes"}, "choice"), ({"choice": [1]}, "choice"),
        ({"choice": ["\ud800"]}, "choice"),
        ({"grammar": " \n"}, "grammar"), ({"grammar": "\ud800"}, "grammar"),
        ({"json_object": False}, "json_object"), ({"json_object": 1}, "json_object"),
        ({"structural_tag": ""}, "structural_tag"),
        ({"json_object": True, "disable_any_whitespace": 1}, "disable_any_whitespace"),
        ({"json_object": True, "whitespace_pattern": ""}, "whitespace_pattern"),
    ],
)  # fmt: skip
def test_structured_outputs_of_the_wrong_kind_are_refused(
    given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        StructuredOutputsParams(**given)
    assert caught.value.param == f"structured_outputs.{field}"


def test_structured_outputs_must_be_the_record() -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    assert caught.value.param == "structured_outputs"


def test_clone_shares_no_mutable_part() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, bad_words=["x"])
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")
    copy.logit_bias[2] = 1.0
    copy.bad_words.clear()
    assert (params.stop, params.logit_bias, params.bad_words) == (["a"], {1: 2.0}, ["x"])


def test_from_optional_leaves_defaults_for_none() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=0.5, max_tokens=None)
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 0.5, None)


def test_params_survive_the_wire() -> None:
    params = SamplingParams(
        temperature=0.7, seed=5, stop=["é"], logit_bias={3: 1.5}, stop_token_ids=[4], logprobs=2,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params


def test_max_n_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MAX_N_SEQUENCES", "4")
    assert SamplingParams(n=4).n == 4
    with pytest.raises(ValidationError, match=r"\[1, 4\]"):
        SamplingParams(n=5)
