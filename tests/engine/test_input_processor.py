"""Every rule that needs the model: what is refused, with which name, and what is filled in."""

from typing import Any

import msgspec
import pytest

from headrace.config.engine import SchedulerConfig
from headrace.engine.input_processor import InputProcessor, check_types
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput, PromptEmbeds
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.startup import EngineReady
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.text.tokenizer import Tokenizer
from tests.engine.fakes import EOS, VOCAB_SIZE, make_config


def _processor(
    tokenizer: Tokenizer | None = None, *, max_model_len: int = 100, num_blocks: int = 64,
    **options: Any,
) -> InputProcessor:  # fmt: skip
    ready = EngineReady(max_model_len, num_blocks, 16, 0, 0, "fake")
    return InputProcessor(make_config(**options), ready, tokenizer)


def _process(
    processor: InputProcessor, ids: list[Any] | None = None, priority: int = 0, **params: Any
) -> EngineCoreRequest:
    prompt = EngineInput([1, 2, 3] if ids is None else ids)
    return processor.process("a", prompt, SamplingParams(**params), priority=priority)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ({"logit_bias": {5: 1.0, VOCAB_SIZE: 1.0}}, f"logit_bias.{VOCAB_SIZE}"),
        ({"allowed_token_ids": [0, 10**6]}, "allowed_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"priority": 1}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 2**64}, "priority"),
    ],
)
def test_process_value_the_model_forbids_is_refused_by_name(
    params: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        _process(_processor(), **params)
    assert caught.value.param == name


def test_process_embeddings_are_not_cut_scored_or_taken_unasked() -> None:
    embeds = PromptEmbeds(2, 1, bytes(8))
    whole = EngineInput([0, 0], prompt_embeds=embeds)
    cut = EngineInput([0], prompt_embeds=embeds)
    with pytest.raises(UnsupportedError, match="--enable-prompt-embeds"):
        _processor().process("a", whole, SamplingParams())
    processor = _processor()
    processor._model = msgspec.structs.replace(processor._model, enable_prompt_embeds=True)
    assert processor.process("a", whole, SamplingParams()).prompt_embeds == embeds
    for prompt, params, name in (
        (cut, SamplingParams(), "prompt_embeds"),
        (whole, SamplingParams(prompt_logprobs=0), "prompt_logprobs"),
    ):
        with pytest.raises(ValidationError) as caught:
            processor.process("a", prompt, params)
        assert caught.value.param == name


@pytest.mark.parametrize(
    "ids",
    [[], [-1], [1, VOCAB_SIZE], [2**40], [True], [1.0], ["1"], [None], [1, [2]]],
)
def test_process_prompt_ids_that_are_none_are_refused(ids: list[Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        _process(_processor(), ids)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("salt", ["", 5, b"x"])
def test_process_bad_salt_is_refused(salt: Any) -> None:
    prompt = EngineInput([1], cache_salt=salt)
    with pytest.raises(ValidationError) as caught:
        _processor().process("a", prompt, SamplingParams())
    assert caught.value.param == "cache_salt"


@pytest.mark.parametrize(
    ("num_prompt_tokens", "is_allowed"), [(98, True), (99, True), (100, False), (101, False)]
)
def test_process_prompt_as_long_as_the_context_is_refused(
    num_prompt_tokens: int, is_allowed: bool
) -> None:
    processor = _processor(max_model_len=100)
    ids = [7] * num_prompt_tokens
    if is_allowed:
        assert _process(processor, ids).sampling_params.max_tokens == 100 - num_prompt_tokens or 1
    else:
        with pytest.raises(ValidationError, match="context of 100"):
            _process(processor, ids)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "is_allowed"),
    [
        (40, 24, True),
        (40, 25, False),
        (63, 1, True),
        (64, 1, False),
        (63, None, True),
        (64, None, False),
        (10, 2**63 - 1, False),
    ],
)
def test_process_request_larger_than_the_cache_is_refused(
    num_prompt_tokens: int, max_tokens: int | None, is_allowed: bool
) -> None:
    processor = _processor(max_model_len=100, num_blocks=4)  # 64 tokens
    ids = [7] * num_prompt_tokens
    if is_allowed:
        request = _process(processor, ids, max_tokens=max_tokens)
        assert request.sampling_params.max_tokens == (max_tokens or 64 - num_prompt_tokens)
    else:
        with pytest.raises(ValidationError, match="KV cache, which holds 64"):
            _process(processor, ids, max_tokens=max_tokens)


def test_process_without_max_tokens_fills_the_context() -> None:
    request = _process(_processor(max_model_len=100), [1] * 30, max_tokens=None)
    assert request.sampling_params.max_tokens == 70


def test_process_max_tokens_beyond_the_context_ends_there() -> None:
    request = _process(_processor(max_model_len=100), [1] * 30, max_tokens=500, min_tokens=90)
    assert request.sampling_params.max_tokens == 70
    assert request.sampling_params.min_tokens == 70


@pytest.mark.parametrize(
    ("max_logprobs", "wanted", "is_allowed"),
    [(-1, -1, True), (-1, 10**6, True), (VOCAB_SIZE, -1, True), (0, 0, True), (0, 1, False)],
)
def test_process_logprobs_within_the_limit_are_allowed(
    max_logprobs: int, wanted: int, is_allowed: bool
) -> None:
    processor = _processor(max_logprobs=max_logprobs)
    if is_allowed:
        assert _process(processor, logprobs=wanted).sampling_params.logprobs == wanted
    else:
        with pytest.raises(ValidationError):
            _process(processor, logprobs=wanted)


def test_process_priority_with_the_policy_is_passed_on() -> None:
    processor = _processor(scheduler=SchedulerConfig(policy="priority"))
    assert _process(processor, priority=-5).priority == -5


def test_process_priority_without_the_policy_names_the_flag() -> None:
    with pytest.raises(ValidationError, match="--scheduling-policy priority"):
        _process(_processor(), priority=5)


@pytest.mark.parametrize(
    ("params", "eos", "stops"),
    [
        ({}, EOS, [7, 8]),
        ({"stop_token_ids": [9, 7]}, EOS, [9, 7, 8]),
        ({"ignore_eos": True}, None, []),
        ({"ignore_eos": True, "stop_token_ids": [9]}, None, [9]),
    ],
)
def test_process_model_with_several_eos_ids_merges_them(
    params: dict[str, Any], eos: int | None, stops: list[int]
) -> None:
    request = _process(_processor(eos_token_ids=[EOS, 7, 8]), **params)
    assert request.eos_token_id == eos
    assert request.stop_token_ids == stops


def test_process_bad_words_are_tokenised_with_and_without_a_space(tokenizer: Tokenizer) -> None:
    request = _process(_processor(tokenizer), bad_words=["ab", " c"])
    assert request.sampling_params.bad_words_token_ids == [[97, 98], [32, 97, 98], [32, 99]]
    assert request.sampling_params.bad_words == []


def test_process_too_many_bad_words_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValidationError) as caught:
        _process(_processor(tokenizer), bad_words=[f"word{i}" for i in range(65)])
    assert caught.value.param == "bad_words"
    _process(_processor(tokenizer), bad_words=[f"word{i}" for i in range(64)])


def test_process_bad_word_after_many_equal_ones_is_kept(tokenizer: Tokenizer) -> None:
    request = _process(_processor(tokenizer), bad_words=["x"] * 1000 + ["y"])
    banned = request.sampling_params.bad_words_token_ids
    assert banned == [[120], [32, 120], [121], [32, 121]]


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_process_strings_without_a_tokenizer_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="needs a tokenizer") as caught:
        _process(_processor(None), **{name: ["x"]})
    assert caught.value.param == name


def test_process_core_gets_a_copy_without_the_fronts_business(tokenizer: Tokenizer) -> None:
    params = SamplingParams(
        stop=["x"], bad_words=["y"], output_kind=RequestOutputKind.DELTA, stream_interval=4,
        max_tokens=None, seed=3, temperature=0.5,
    )  # fmt: skip
    before = params.clone()
    request = _processor(tokenizer).process("a", EngineInput([1]), params)
    assert params == before
    core = request.sampling_params
    assert (core.stop, core.bad_words, core.stream_interval) == ([], [], None)
    assert (core.seed, core.temperature) == (3, 0.5)


@pytest.mark.parametrize(
    ("kind", "stop", "is_watched"),
    [
        (RequestOutputKind.FINAL_ONLY, [], False),
        (RequestOutputKind.FINAL_ONLY, ["x"], True),
        (RequestOutputKind.DELTA, [], True),
        (RequestOutputKind.CUMULATIVE, [], True),
    ],
)
def test_process_tokens_are_watched_when_passed_on_or_searched(
    tokenizer: Tokenizer, kind: RequestOutputKind, stop: list[str], is_watched: bool
) -> None:
    request = _process(_processor(tokenizer), output_kind=kind, stop=stop)
    assert request.is_watched is is_watched


def test_process_same_id_again_gets_another_id_inside() -> None:
    processor = _processor()
    ids = {_process(processor).request_id for _ in range(1000)}
    assert len(ids) == 1000
    for request_id in ids:
        external, _, suffix = request_id.rpartition("-")
        assert external == "a"
        assert len(suffix) == 8
        int(suffix, 16)


@pytest.mark.parametrize(("request_id", "params"), [(1, SamplingParams()), ("a", {"n": 1})])
def test_check_types_of_anything_else_raises_type_error(request_id: Any, params: Any) -> None:
    with pytest.raises(TypeError):
        check_types(request_id, params)
