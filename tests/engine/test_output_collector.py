"""The reader's end of a request: merged outputs, errors after what is pending, one release."""

import asyncio

import pytest

from headrace.engine.output_collector import RequestOutputCollector
from headrace.errors import EngineDeadError, EngineGenerateError, ValidationError
from headrace.logprobs import Logprob
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.sampling_params import RequestOutputKind

CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind


class Held:
    """A collector and how often it let go."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self.num_released = 0
        self.stream = RequestOutputCollector("a", kind, self._release)

    def _release(self) -> None:
        self.num_released += 1

    def put(
        self, text: str, index: int = 0, *, finish: str | None = None, finished: bool = False,
        error: str | None = None, param: str | None = None,
    ) -> None:  # fmt: skip
        ids = list(text.encode())
        logprobs = [{i: Logprob(-1.0, 1)} for i in ids]
        answer = CompletionOutput(index, text, ids, -1.0, logprobs, finish, None, error, param)
        self.stream.put(RequestOutput("a", None, [1], [answer], finished))


async def test_deltas_of_a_slow_reader_are_joined() -> None:
    held = Held(DELTA)
    held.put("a")
    held.put("bc")
    held.put("d", finish="length", finished=True)
    output = await anext(held.stream)
    [answer] = output.outputs
    assert (answer.text, answer.token_ids) == ("abcd", [97, 98, 99, 100])
    assert [next(iter(one)) for one in answer.logprobs or []] == [97, 98, 99, 100]
    assert answer.finish_reason == "length"
    assert output.finished
    with pytest.raises(StopAsyncIteration):
        await anext(held.stream)
    await held.stream.aclose()
    assert held.num_released == 0


async def test_deltas_of_several_answers_are_joined_by_index() -> None:
    held = Held(DELTA)
    held.put("a", 1)
    held.put("x", 0, finish="stop")
    held.put("b", 1)
    output = await anext(held.stream)
    assert {a.index: a.text for a in output.outputs} == {1: "ab", 0: "x"}
    assert {a.index: a.finish_reason for a in output.outputs} == {1: None, 0: "stop"}
    held.put("c", 1)
    assert [(a.index, a.text) for a in (await anext(held.stream)).outputs] == [(1, "c")]


async def test_cumulative_outputs_of_a_slow_reader_are_replaced_by_index() -> None:
    held = Held(CUMULATIVE)
    held.put("a", 0)
    held.put("x", 1)
    held.put("ab", 0)
    output = await anext(held.stream)
    assert {a.index: a.text for a in output.outputs} == {0: "ab", 1: "x"}


async def test_reader_that_waits_is_woken() -> None:
    held = Held(DELTA)
    reading = asyncio.create_task(anext(held.stream))
    await asyncio.sleep(0)
    held.put("a")
    assert (await reading).outputs[0].text == "a"


@pytest.mark.parametrize("error", [EngineDeadError("it broke"), EngineGenerateError("no")])
async def test_error_comes_after_what_is_pending_and_lets_go_once(error: Exception) -> None:
    held = Held(DELTA)
    held.put("a")
    held.stream.fail(error)
    held.stream.fail(RuntimeError("a later one"))
    assert (await anext(held.stream)).outputs[0].text == "a"
    with pytest.raises(type(error), match=str(error)):
        await anext(held.stream)
    assert held.num_released == 1
    with pytest.raises(StopAsyncIteration):
        await anext(held.stream)
    await held.stream.aclose()
    assert held.num_released == 1


async def test_answer_that_failed_raises_and_lets_go_of_its_siblings() -> None:
    held = Held(DELTA)
    held.put("a", 0)
    held.put("", 1, finish="error", error="a bad grammar")
    assert (await anext(held.stream)).outputs[0].text == "a"
    with pytest.raises(EngineGenerateError, match="a bad grammar"):
        await anext(held.stream)
    assert held.num_released == 1


async def test_request_that_asks_for_what_cannot_be_is_told_as_invalid() -> None:
    held = Held(FINAL_ONLY)
    held.put("", finish="error", error="no token is left", param="allowed_token_ids")
    with pytest.raises(ValidationError, match="no token is left") as caught:
        await anext(held.stream)
    assert caught.value.param == "allowed_token_ids"


async def test_aclose_lets_go_once_and_ends_the_iteration() -> None:
    held = Held(DELTA)
    held.put("a")
    await held.stream.aclose()
    await held.stream.aclose()
    assert held.num_released == 1
    assert [output async for output in held.stream] == []


async def test_aclose_while_a_task_reads_ends_that_read() -> None:
    held = Held(DELTA)
    reading = asyncio.create_task(anext(held.stream, None))
    await asyncio.sleep(0)
    await held.stream.aclose()
    assert await asyncio.wait_for(reading, 5.0) is None


async def test_read_with_a_timeout_may_be_tried_again() -> None:
    held = Held(DELTA)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(held.stream), 0.01)
    assert held.num_released == 0
    held.put("a")
    assert (await anext(held.stream)).outputs[0].text == "a"


class Taker:
    """Takes outputs at once, unless told not to."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.is_willing = True
        self.error: Exception | None = None

    def take(self, output: RequestOutput) -> bool:
        assert not output.finished
        if self.error is not None:
            raise self.error
        if self.is_willing:
            self.texts.append(output.outputs[0].text)
        return self.is_willing


async def test_outputs_are_pushed_only_while_the_reader_waits_and_never_the_last() -> None:
    held, taker = Held(DELTA), Taker()
    held.stream.push_to(taker.take)
    held.put("a")  # nobody waits yet
    held.put("b")
    assert (await anext(held.stream)).outputs[0].text == "ab"
    reading = asyncio.ensure_future(anext(held.stream))
    await asyncio.sleep(0)
    held.put("c")
    held.put("d")
    taker.is_willing = False
    held.put("e")
    taker.is_willing = True
    held.put("f")  # behind one that the reader is to have
    assert taker.texts == ["c", "d"]
    assert (await reading).outputs[0].text == "ef"
    reading = asyncio.ensure_future(anext(held.stream))
    await asyncio.sleep(0)
    held.put("g")
    held.put("h", finish="stop", finished=True)
    assert (await reading).outputs[0].text == "h"
    assert taker.texts == ["c", "d", "g"]
    assert held.num_released == 0


async def test_what_a_taker_raises_is_the_readers_error_and_lets_go() -> None:
    held, taker = Held(DELTA), Taker()
    held.stream.push_to(taker.take)
    reading = asyncio.ensure_future(anext(held.stream))
    await asyncio.sleep(0)
    taker.error = EngineGenerateError("no frame")
    held.put("a")
    with pytest.raises(EngineGenerateError, match="no frame"):
        await reading
    assert held.num_released == 1


@pytest.mark.parametrize("finished", [False, True])
async def test_failed_answer_is_not_pushed(finished: bool) -> None:
    held, taker = Held(DELTA), Taker()
    held.stream.push_to(taker.take)
    reading = asyncio.ensure_future(anext(held.stream))
    await asyncio.sleep(0)
    held.put("", finish="error", error="broken", finished=finished)
    with pytest.raises(EngineGenerateError, match="broken"):
        await reading
    assert not taker.texts


async def test_nothing_is_pushed_to_a_reader_that_was_cancelled_or_has_let_go() -> None:
    held, taker = Held(DELTA), Taker()
    held.stream.push_to(taker.take)
    reading = asyncio.ensure_future(anext(held.stream))
    await asyncio.sleep(0)
    reading.cancel()
    held.put("a")
    await held.stream.aclose()
    held.put("b")
    assert not taker.texts
