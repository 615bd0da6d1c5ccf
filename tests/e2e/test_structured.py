"""Structured output with a real model, offline and asynchronous."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headrace import (
    LLM,
    AsyncLLM,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from headrace.config.args import AsyncEngineArgs
from headrace.errors import ValidationError
from tests.waiting import PATIENCE

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
PERSON = {
    "$defs": {"mood": {"enum": ["fröhlich", "😀", "müde", 3, None, True]}},
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"$ref": "#/$defs/mood"},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
CALL = json.dumps({
    "structures": [{"begin": "<call>", "schema": PERSON, "end": "</call>"}],
    "triggers": ["<call>"],
})  # fmt: skip
NUMBERED = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": r"\d{3}"},
            "end": "</n>"}  # fmt: skip
PROMPT = "Describe a person as JSON with name, age and mood: "
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"json": PERSON}, r"\{.*\}"),
    "regex": ({"regex": r"\d{3}-[a-f]{2,4}"}, r"\d{3}-[a-f]{2,4}"),
    "choice": ({"choice": ["rot", "grün", "blau"]}, "rot|grün|blau"),
    "lark": ({"grammar": 'start: "a"+ "b" /[0-9]{2}/'}, r"a+b\d\d"),
    "ebnf": ({"grammar": 'root ::= ("x" | "y") "z"'}, "[xy]z"),
    "tag": ({"structural_tag": CALL}, "(?s).*"),
    "format": ({"structural_tag": json.dumps({"format": NUMBERED})}, r"<n>\d{3}</n>"),
    "object": ({"json_object": True}, r"(?s)\{.*\}"),
    "long": ({"regex": "[a-z ]{200,400}"}, "[a-z ]{200,400}"),
}


def params_for(kind: str, **values: Any) -> SamplingParams:
    defaults = {"temperature": 1.5, "seed": 11, "max_tokens": 90}
    asked = StructuredOutputsParams(**KINDS[kind][0])
    return SamplingParams(structured_outputs=asked, **(defaults | values))


MIXED = [params_for(kind) for kind in KINDS] + [
    SamplingParams(temperature=1.0, seed=5, max_tokens=40),
    params_for("json", temperature=0.0, logprobs=2, ignore_eos=True, min_tokens=85),
    params_for("regex", temperature=2.0, repetition_penalty=1.2, top_k=50, top_p=0.9),
    *(params_for("long", seed=seed) for seed in range(4)),
]


@pytest.fixture(scope="module")
def make_llm(model_dir: Callable[[str], Path]) -> Callable[..., LLM]:
    def make(**options: Any) -> LLM:
        settings = {"max_model_len": 512, "max_num_seqs": 32, "kv_cache_memory_bytes": 128 << 20,
                    "structured_outputs_timeout": PATIENCE}  # fmt: skip
        return LLM(str(model_dir(MODEL)), **(settings | options))

    return make


@pytest.fixture(scope="module")
def llm(make_llm: Callable[..., LLM]) -> Iterator[LLM]:
    with make_llm() as made:
        yield made


@pytest.fixture(scope="module")
def alone(make_llm: Callable[..., LLM]) -> list[Any]:
    """Each of MIXED by itself, nothing cached."""
    with make_llm(enable_prefix_caching=False) as one:
        return [facts(one.generate(PROMPT, params, use_tqdm=False)[0]) for params in MIXED]


def facts(output: RequestOutput) -> list[Any]:
    return [
        (answer.token_ids, answer.text, answer.finish_reason, str(answer.logprobs))
        for answer in output.outputs
    ]


def run(llm: LLM, params: list[SamplingParams], prompt: str = PROMPT) -> list[RequestOutput]:
    return llm.generate([prompt] * len(params), params, use_tqdm=False)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_alone_gives_what_it_allows_and_ends(llm: LLM, kind: str) -> None:
    for seed in range(3):
        [output] = run(llm, [params_for(kind, seed=seed, temperature=2.0)])
        [answer] = output.outputs
        if answer.finish_reason == "stop":
            assert answer.stop_reason is None
            assert re.fullmatch(KINDS[kind][1], answer.text, re.DOTALL), answer.text
            if kind in ("json", "object"):
                value = json.loads(answer.text)
                jsonschema.validate(value, PERSON if kind == "json" else {"type": "object"})
        else:
            assert kind in ("object", "tag", "long")
            assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    "options",
    [
        {}, {"max_num_batched_tokens": 8, "max_num_seqs": 8}, {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 14, "max_model_len": 200}, {"num_threads": 1},
    ],
    ids=["cached", "chunked", "uncached", "preempted", "one thread"],
)  # fmt: skip
def test_mixed_in_a_batch_gives_the_same_bits(
    make_llm: Callable[..., LLM], alone: list[Any], options: dict[str, Any]
) -> None:
    with make_llm(**options) as one:
        first = run(one, MIXED)
        assert [facts(output) for output in first] == alone
        if "num_gpu_blocks_override" in options:
            assert one.llm_engine.scheduler_stats.num_preemptions > 0
        else:
            assert [facts(output) for output in run(one, MIXED)] == alone


def test_several_answers_have_a_state_each(llm: LLM) -> None:
    [output] = run(llm, [params_for("json", n=3, temperature=2.0)])
    texts = [answer.text for answer in output.outputs]
    assert len(set(texts)) == 3
    for index, text in enumerate(texts):
        jsonschema.validate(json.loads(text), PERSON)
        [single] = run(llm, [params_for("json", seed=11 + index, temperature=2.0)])
        assert single.outputs[0].text == text


def test_nothing_follows_the_end_also_with_ignore_eos_and_min_tokens(llm: LLM) -> None:
    params = params_for("regex", ignore_eos=True, min_tokens=80, skip_special_tokens=False)
    [output] = run(llm, [params])
    [answer] = output.outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert re.fullmatch(KINDS["regex"][1], answer.text)
    eos = llm.model_config.eos_token_ids[0]
    open_end = StructuredOutputsParams(regex="a{3}b*")
    params = SamplingParams(structured_outputs=open_end, ignore_eos=True, max_tokens=40,
                            skip_special_tokens=False, logit_bias={eos: 100.0})  # fmt: skip
    [answer] = run(llm, [params])[0].outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("aaa", "stop", None)


def test_min_tokens_keeps_an_open_end_going(llm: LLM) -> None:
    asked = StructuredOutputsParams(regex="[a-z ]+")
    params = SamplingParams(structured_outputs=asked, min_tokens=20, max_tokens=60, seed=3)
    assert len(run(llm, [params])[0].outputs[0].token_ids) >= 20


def test_stop_strings_and_stop_tokens_end_inside_a_grammar(llm: LLM) -> None:
    [output] = run(llm, [params_for("json", stop=['"age"'])])
    [answer] = output.outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", '"age"')
    assert answer.text.startswith("{")
    assert '"age"' not in answer.text
    [colon] = llm.get_tokenizer().encode(":", add_special_tokens=False)
    params = params_for("regex", stop_token_ids=[colon])
    params.structured_outputs = StructuredOutputsParams(regex="[a-z]:+[0-9]")
    [answer] = run(llm, [params])[0].outputs
    assert answer.text[0].isalpha()


def test_logprobs_are_the_models_own(llm: LLM) -> None:
    [output] = run(llm, [params_for("choice", logprobs=4, temperature=0.0)])
    [answer] = output.outputs
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=4)
    [plain] = run(llm, [free])[0].outputs
    assert answer.logprobs is not None
    assert plain.logprobs is not None
    best = {i: entry.logprob for i, entry in plain.logprobs[0].items()}
    seen = {i: entry.logprob for i, entry in answer.logprobs[0].items()}
    assert best.items() <= seen.items()
    assert len(answer.logprobs) == len(answer.token_ids)


def test_grammar_and_what_rules_all_of_it_out_is_an_error_of_that_request_alone(llm: LLM) -> None:
    digit = llm.get_tokenizer().encode("1", add_special_tokens=False)
    impossible = params_for("choice", allowed_token_ids=digit)
    outputs = run(llm, [params_for("choice"), impossible, params_for("regex")])
    assert [o.outputs[0].finish_reason for o in outputs] == ["stop", "error", "stop"]
    assert "structured_outputs" in (outputs[1].outputs[0].error or "")


def test_core_in_this_process_follows_grammars_too(
    make_llm: Callable[..., LLM], alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENABLE_MULTIPROCESSING", "0")
    with make_llm() as one:
        assert [facts(output) for output in run(one, MIXED)] == alone


def test_preloaded_core_follows_the_first_grammar(make_llm: Callable[..., LLM]) -> None:
    with make_llm(structured_outputs_preload=True) as one:
        [answer] = run(one, [params_for("choice")])[0].outputs
        assert answer.text in ("rot", "grün", "blau")


def test_batch_with_a_bad_grammar_is_refused_whole_and_the_next_runs(llm: LLM) -> None:
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))
    with pytest.raises(ValidationError, match="'not'"):
        run(llm, [params_for("choice"), bad])
    assert run(llm, [params_for("choice")])[0].outputs[0].finish_reason == "stop"


async def test_async_streams_join_to_the_whole_and_bad_ones_harm_none(
    model_dir: Callable[[str], Path], alone: list[Any]
) -> None:
    args = AsyncEngineArgs(model=str(model_dir(MODEL)), max_model_len=512,
                           kv_cache_memory_bytes=128 << 20, disable_log_stats=True,
                           structured_outputs_timeout=PATIENCE)  # fmt: skip
    bad = [{"json": {"not": {}}}, {"regex": "(a"}, {"grammar": "start: x"}]
    with AsyncLLM.from_engine_args(args) as engine:

        async def stream(i: int) -> str:
            params = MIXED[i].clone()
            params.output_kind = RequestOutputKind.DELTA
            text = ""
            async for output in engine.generate(PROMPT, params, f"r{i}"):
                text += output.outputs[0].text
            return text

        async def refused(asked: dict[str, Any]) -> None:
            params = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))
            with pytest.raises(ValidationError):
                await engine.add_request("bad", PROMPT, params)

        tasks = [stream(i) for i in range(len(MIXED))] + [refused(one) for one in bad]
        texts = (await asyncio.gather(*tasks))[: len(MIXED)]
        assert texts == [one[0][1] for one in alone]
        state = await engine.debug_state()
        assert (state["core.requests"], state["core.blocks_in_use"]) == (0, 0)

        # Gone before its grammar is compiled: nothing of it stays.
        for i in range(30):
            asked = StructuredOutputsParams(regex=f"[a-z]{{1,{i + 300}}}")
            request = await engine.add_request("gone", PROMPT, SamplingParams(
                structured_outputs=asked, max_tokens=300))  # fmt: skip
            await request.aclose()
        async with asyncio.timeout(PATIENCE):
            while (await engine.debug_state())["core.requests"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert engine.num_unfinished_requests == 0


def test_core_ends_without_a_word_about_leaks(
    make_llm: Callable[..., LLM], capfd: pytest.CaptureFixture[str]
) -> None:
    with make_llm() as one:
        run(one, [params_for("choice")])
    assert "leaked" not in capfd.readouterr().err


async def test_request_that_rules_out_every_token_is_refused_as_invalid(
    model_dir: Callable[[str], Path],
) -> None:
    args = AsyncEngineArgs(
        str(model_dir(MODEL)), max_model_len=128, structured_outputs_timeout=PATIENCE
    )
    engine = AsyncLLM.from_engine_args(args)
    try:
        asked = StructuredOutputsParams(choice=["yes"])
        params = SamplingParams(structured_outputs=asked, allowed_token_ids=[5])
        with pytest.raises(ValidationError, match="rule out all of them") as caught:
            async for _ in engine.generate(PROMPT, params, "a"):
                pass
        assert caught.value.param == "structured_outputs"
        async for output in engine.generate(PROMPT, params_for("choice"), "b"):
            last = output
        assert last.outputs[0].text in ("rot", "grün", "blau")
    finally:
        engine.shutdown()
