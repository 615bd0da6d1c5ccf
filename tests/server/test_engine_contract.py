"""The real engine and the scripted one offer what EngineClient says, in the same words."""

from __future__ import annotations

import inspect

import pytest

from headrace.engine.async_llm import AsyncLLM
from headrace.engine.client import EngineClient, RequestOutputStream
from headrace.engine.output_collector import RequestOutputCollector
from headrace.inputs import EngineInput
from headrace.sampling_params import SamplingParams
from tests.server.fakes import FakeEngine, FakeStream


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [
        (EngineClient, AsyncLLM),
        (EngineClient, FakeEngine),
        (RequestOutputStream, RequestOutputCollector),
        (RequestOutputStream, FakeStream),
    ],
)
def test_implementation_has_every_member_with_the_same_parameters(
    protocol: type, implementation: type
) -> None:
    members = {n: m for n, m in vars(protocol).items() if inspect.isfunction(m) and n[0] != "_"}
    members |= {n: m for n, m in vars(protocol).items() if n in ("__aiter__", "__anext__")}
    assert members
    for name, member in members.items():
        ours = getattr(implementation, name)
        wanted = inspect.signature(member).parameters
        found = inspect.signature(ours).parameters
        by_position = [n for n, p in wanted.items() if p.kind is not p.KEYWORD_ONLY]
        assert list(found)[: len(by_position)] == by_position, name
        assert set(wanted) <= set(found), name
        more = [p for n, p in found.items() if n not in wanted]
        assert all(p.default is not p.empty for p in more), name
        is_awaited = inspect.iscoroutinefunction(member)
        assert inspect.iscoroutinefunction(ours) == is_awaited, name


@pytest.mark.parametrize("implementation", [AsyncLLM, FakeEngine])
def test_implementation_has_every_property(implementation: type) -> None:
    names = [n for n, m in vars(EngineClient).items() if isinstance(m, property)]
    assert "dead_error" in names
    for name in names:
        assert isinstance(getattr(implementation, name), property), name


async def test_fake_stream_closed_early_is_aborted_and_ended_one_is_not() -> None:
    engine = FakeEngine()
    early = await engine.add_request("a", EngineInput([1]), SamplingParams())
    await anext(early)
    await early.aclose()
    whole = await engine.add_request("b", EngineInput([1]), SamplingParams())
    assert [output async for output in whole][-1].finished
    await whole.aclose()
    assert engine.aborted == ["a"]
    assert not engine.live
