"""The asynchronous engine, its core a real process with a fake executor: answers, refusals."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.config.engine import FrontConfig
from headrace.errors import (
    AdmissionError,
    ValidationError,
)
from headrace.sampling_params import RequestOutputKind
from tests.engine.async_rig import (
    MakeEngine,
    assert_nothing_stays,
    collect,
    make_params,
    text_of,
)

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


# Answers


@pytest.mark.parametrize("kind", RequestOutputKind)
async def test_generate_text_in_each_kind_gives_the_same_answer(
    make_engine: MakeEngine, kind: RequestOutputKind
) -> None:
    engine = make_engine()
    outputs = await collect(engine, "xa", output_kind=kind)
    text = text_of(outputs) if kind is DELTA else outputs[-1].outputs[0].text
    assert text == "bcdefghijk"
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert all(not output.finished for output in outputs[:-1])
    assert {output.request_id for output in outputs} == {"a"}
    assert outputs[0].prompt == "xa"
    assert len(outputs) == 1 or kind is not FINAL_ONLY
    await assert_nothing_stays(engine)


async def test_generate_with_a_stop_string_ends_there_in_both_processes(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    outputs = await collect(engine, "a", output_kind=DELTA, stop=["fgh"], max_tokens=100)
    assert text_of(outputs) == "bcde"
    assert outputs[-1].outputs[0].stop_reason == "fgh"
    await assert_nothing_stays(engine)


async def test_generate_with_a_stop_token_names_it(make_engine: MakeEngine) -> None:
    [output] = await collect(
        make_engine(), "a", output_kind=FINAL_ONLY, stop_token_ids=[ord("e")], max_tokens=100
    )
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("bcd", "stop", ord("e"))


@pytest.mark.parametrize("kind", RequestOutputKind)
async def test_generate_n_answers_come_as_one_stream(
    make_engine: MakeEngine, kind: RequestOutputKind
) -> None:
    engine = make_engine()
    texts = {0: "", 1: "", 2: ""}
    outputs = await collect(engine, "a", n=3, output_kind=kind, seed=5, temperature=1.0)
    for output in outputs:
        for answer in output.outputs:
            texts[answer.index] = texts[answer.index] * (kind is DELTA) + answer.text
    assert texts == dict.fromkeys(range(3), "bcdefghijk")
    assert [output.finished for output in outputs].count(True) == 1
    assert outputs[-1].finished
    if kind is FINAL_ONLY:
        assert [answer.index for answer in outputs[0].outputs] == [0, 1, 2]
    await assert_nothing_stays(engine)


async def test_many_requests_with_one_id_each_get_their_own_text(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()
    prompts = [chr(ord("a") + i) for i in range(10)]
    found = await asyncio.gather(
        *(collect(engine, prompt, "same", output_kind=DELTA, max_tokens=5) for prompt in prompts)
    )
    for prompt, outputs in zip(prompts, found, strict=True):
        assert text_of(outputs) == "".join(chr(ord(prompt) + 1 + i) for i in range(5))


async def test_step_larger_than_a_slice_lets_other_tasks_run_in_between(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(front=FrontConfig(output_chunk_size=4))
    found = await asyncio.gather(
        *(collect(engine, "a", str(i), output_kind=DELTA) for i in range(30))
    )
    assert {text_of(outputs) for outputs in found} == {"bcdefghijk"}


async def test_slow_reader_gets_all_of_it_merged(make_engine: MakeEngine) -> None:
    engine = make_engine()
    stream = await engine.add_request("a", "a", make_params(output_kind=DELTA))
    await assert_nothing_stays(engine)
    outputs = [output async for output in stream]
    assert len(outputs) == 1
    assert text_of(outputs) == "bcdefghijk"
    assert outputs[0].finished


# Refusals


@pytest.mark.parametrize(
    ("prompt", "options"),
    [("", {}), ([], {}), ([-1], {}), ([10**6], {}), ("a" * 500, {}), ("a" * 10**6, {}),
     ("a", {"logprobs": 50}), ("a", {"logit_bias": {10**6: 1.0}})],
)  # fmt: skip
async def test_add_request_with_a_bad_value_is_refused_and_leaves_nothing(
    make_engine: MakeEngine, prompt: Any, options: dict[str, Any]
) -> None:
    engine = make_engine()
    with pytest.raises(ValidationError):
        await engine.add_request("a", prompt, make_params(**options))
    assert engine.num_unfinished_requests == 0
    assert text_of(await collect(engine, "a", output_kind=DELTA)) == "bcdefghijk"


async def test_long_text_is_tokenised_beside_the_event_loop(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_model_len=10_000, num_blocks=1000)
    threads: list[int] = []
    render = engine.renderer.render_prompt

    def watch(prompt: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return render(prompt, **options)

    monkeypatch.setattr(engine.renderer, "render_prompt", watch)
    await collect(engine, "a")
    await collect(engine, {"prompt": "a" * 5000})
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


async def test_admission_counts_every_answer_and_recovers(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    front = FrontConfig(max_num_queued_reqs=4)
    engine = make_engine(front=front, wait_at_token=ord("b"), gate=str(tmp_path))
    streams = [await engine.add_request(str(n), "a", make_params(n=n)) for n in (1, 2)]
    engine.check_admission(1)
    with pytest.raises(AdmissionError) as caught:
        engine.check_admission(2)
    assert caught.value.retry_after >= 1.0
    with pytest.raises(AdmissionError):
        await engine.add_request("x", "a", make_params(n=2))
    last = await engine.add_request("y", "a", make_params())
    with pytest.raises(AdmissionError):
        await engine.add_request("z", "a", make_params())
    (tmp_path / "go").touch()
    for stream in (*streams, last):
        assert [output.finished async for output in stream][-1]
    engine.check_admission(4)


async def test_admission_counts_requests_being_tokenised(make_engine: MakeEngine) -> None:
    engine = make_engine(
        front=FrontConfig(max_num_queued_reqs=3), max_model_len=10_000, num_blocks=3000
    )
    results = await asyncio.gather(
        *(engine.add_request(str(i), "a" * 5000, make_params()) for i in range(10)),
        return_exceptions=True,
    )
    refused = [one for one in results if isinstance(one, AdmissionError)]
    assert len(refused) == 7
    for stream in results:
        if not isinstance(stream, BaseException):
            await stream.aclose()
    await assert_nothing_stays(engine)
