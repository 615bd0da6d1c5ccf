"""The process that checks grammars: what it answers, and what becomes of costly ones."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from headrace.config.engine import StructuredOutputsConfig
from headrace.engine import grammar_checker
from headrace.engine.grammar_checker import GrammarChecker
from headrace.errors import ValidationError
from headrace.sampling_params import StructuredOutputsParams
from headrace.text.tokenizer import Tokenizer
from tests.engine.fakes import EOS, VOCAB_SIZE
from tests.waiting import PATIENCE, wait_until

MakeChecker = Callable[..., GrammarChecker]
TOO_LONG = r"longer than 0\.5 seconds"


def limits_of(**limits: float) -> StructuredOutputsConfig:
    """A good check is given its time, also where the machine is busy."""
    return StructuredOutputsConfig(**{"compile_timeout": PATIENCE, **limits})  # type: ignore[arg-type]


@contextlib.contextmanager
def hurried(checker: GrammarChecker) -> Iterator[None]:
    """Checks in the block have half a second."""
    before, checker._config = checker._config, limits_of(compile_timeout=0.5)
    yield
    checker._config = before


@pytest.fixture
def make_checker(tokenizer: Tokenizer) -> Iterator[MakeChecker]:
    made: list[GrammarChecker] = []

    def make(**limits: float) -> GrammarChecker:
        config = limits_of(**limits)
        made.append(GrammarChecker(config, tokenizer, [EOS], VOCAB_SIZE))
        return made[-1]

    yield make
    for checker in made:
        checker.shutdown()
    assert psutil.Process().children() == []


def asked(**params: object) -> StructuredOutputsParams:
    return StructuredOutputsParams(**params)  # type: ignore[arg-type]


def test_good_and_bad_grammars_in_turn_are_answered_by_one_process(
    make_checker: MakeChecker,
) -> None:
    checker = make_checker()
    first = checker.check(asked(json={"type": "object"}))
    [process] = psutil.Process().children()
    for params, field in [
        ({"json": {"not": {}}}, "json"), ({"regex": "(a"}, "regex"), ({"json": "{"}, "json"),
        ({"grammar": "start: other"}, "grammar"), ({"choice": ["\ud83d\ude00"[:0] + "a"]}, None),
        ({"json": {"const": 2**80}}, "json"), ({"json": {"const": float("nan")}}, "json"),
        ({"json": {"const": b"\xff" * 3}}, "json"), ({"json": {1: {}}}, "json"),
    ]:  # fmt: skip
        if field is None:
            checker.check(asked(**params))
            continue
        with pytest.raises(ValidationError) as caught:
            checker.check(asked(**params))
        assert caught.value.param == f"structured_outputs.{field}"
    assert checker.check(asked(json='{"type":"object"}')) == first
    assert psutil.Process().children() == [process]


def test_costly_check_ends_its_process_and_the_next_one_is_served(
    make_checker: MakeChecker,
) -> None:
    checker = make_checker()
    checker.check(asked(regex="a"))
    [process] = psutil.Process().children()
    stop(process)  # as slow as can be
    with hurried(checker), pytest.raises(ValidationError, match=TOO_LONG) as caught:
        checker.check(asked(regex="b"))
    assert caught.value.param == "structured_outputs.regex"
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert checker.check(asked(regex="b"))
    assert checker.check(asked(regex="a"))


def test_start_of_a_process_is_not_taken_for_a_check(
    make_checker: MakeChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    ask = grammar_checker._Process.ask

    def watched(process: grammar_checker._Process, query: bytes, timeout: float) -> bytes | None:
        started.append(process._is_started)  # what the limit is for begins here
        return ask(process, query, timeout)

    monkeypatch.setattr(grammar_checker._Process, "ask", watched)
    checker = make_checker()
    checker.check(asked(regex="a"))
    patterns = [{"type": "string", "pattern": f"a{i}.*b"} for i in range(30)]
    for i in range(3):
        with hurried(checker), pytest.raises(ValidationError, match=TOO_LONG):
            checker.check(asked(json={"allOf": [*patterns, {"pattern": f"c{i}"}]}))
        assert checker.check(asked(regex=f"b{i}"))  # by a new process
    assert started == [True] * 7


def test_time_the_machine_took_for_others_is_not_taken_for_the_check(
    make_checker: MakeChecker,
) -> None:
    checker = make_checker(compile_timeout=0.5)
    checker.check(asked(regex="a"))
    [process] = psutil.Process().children()
    stop(process)
    threading.Timer(1.5, process.resume).start()
    assert checker.check(asked(regex="b"))
    stop(process)  # for good
    with pytest.raises(ValidationError, match=TOO_LONG):
        checker.check(asked(regex="c"))


def test_grammar_that_nests_too_deep_for_a_thread_of_the_core_is_refused(
    make_checker: MakeChecker,
) -> None:
    checker = make_checker()
    rules = "".join(f'r{i}: "a" r{i + 1}\n' for i in range(2000))
    with pytest.raises(ValidationError, match="deeper nesting than is allowed") as caught:
        checker.check(asked(grammar=f'start: r0\n{rules}r2000: "b"\n'))
    assert caught.value.param == "structured_outputs.grammar"
    assert checker.check(asked(regex="a"))


def test_process_that_is_killed_is_started_again(make_checker: MakeChecker) -> None:
    checker = make_checker()
    checker.check(asked(regex="a"))
    [process] = psutil.Process().children()
    process.kill()
    process.wait(PATIENCE)
    assert checker.check(asked(regex="a"))  # known
    assert checker.check(asked(regex="b"))


def test_limits_are_kept(make_checker: MakeChecker, tokenizer: Tokenizer) -> None:
    checker = make_checker(max_bytes=200, max_depth=3)
    with pytest.raises(ValidationError, match="at most 200"):
        checker.check(asked(regex="a" * 300))
    assert psutil.Process().children() == []
    nested: dict[str, object] = {"items": {"items": {"items": {"items": {}}}}}
    with pytest.raises(ValidationError, match="deeper than 3"):
        checker.check(asked(json=nested))
    for _ in range(100_000):
        nested = {"items": nested}
    with pytest.raises(ValidationError, match=r"too deep"):
        checker.check(asked(json=nested))
    while nested:  # let go of it without a deep recursion
        nested = nested.pop("items")  # type: ignore[assignment]


def test_engine_without_a_tokenizer_or_an_end_token_refuses(tokenizer: Tokenizer) -> None:
    config = StructuredOutputsConfig()
    with pytest.raises(ValidationError, match="tokenizer"):
        GrammarChecker(config, None, [EOS], VOCAB_SIZE).check(asked(regex="a"))


def stop(process: psutil.Process) -> None:
    """Suspend it, and see that it is: until then one of its threads may still answer."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


async def test_event_loop_goes_on_while_a_grammar_is_checked(make_checker: MakeChecker) -> None:
    checker = make_checker(compile_timeout=2 * PATIENCE)
    await checker.check_soon(asked(regex="a"))
    [process] = psutil.Process().children()
    stop(process)
    slow = asyncio.create_task(checker.check_soon(asked(regex="b")))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not slow.done()
    process.resume()
    assert await slow


def test_front_does_not_load_the_grammar_library() -> None:
    script = (
        "import sys; import headrace.engine.async_llm, headrace.server.app, headrace.core.proc, "
        "headrace.worker.uniproc; print([m for m in sys.modules if 'llguidance' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
