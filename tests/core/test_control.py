"""Pause and resume, sleep and wake, profiles and calls, on a core with a fake executor."""

from __future__ import annotations

import csv
import pstats
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from headrace.core.control import Later
from headrace.core.engine_core import EngineCore
from headrace.errors import (
    ConfigError,
    ProfilerAlreadyActiveError,
    UnsupportedError,
    ValidationError,
)
from headrace.messages.outputs import EngineCoreOutput, FinishReason
from headrace.messages.requests import (
    CallWorkers,
    GetControlState,
    Pause,
    ReleaseKVCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    StartProfile,
    StopProfile,
    Vocabulary,
    WakeUp,
)
from tests.fakes import RecordingExecutor, make_core_request

CONFIG = EngineConfig(
    model=ModelConfig(
        model="m", path="m", format="dummy", hf_config={}, model_type="m", tokenizer=None,
        max_model_len=64, vocab_size=1000, served_names=["m"],
    ),
    cache=CacheConfig(block_size=4),
    scheduler=SchedulerConfig(max_num_seqs=2),
)  # fmt: skip
KINDS = ["abort", "wait", "keep"]


class Executor(RecordingExecutor):
    """One that notes when its memory is given back, and answers calls."""

    num_made = 0

    def __init__(self) -> None:
        super().__init__(num_blocks=32)
        Executor.num_made += 1
        self.num_released = 0
        self.vocabulary: Vocabulary | None = None
        self.grammars: list[str] = []

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def prepare_grammar(self, grammar: str) -> None:
        self.grammars.append(grammar)

    def release_kv_cache(self) -> None:
        self.num_released += 1
        self._slots.clear()

    def call_worker(self, method: str, args: Any, kwargs: Any) -> Any:
        return [method, list(args), kwargs]

    call_model = call_worker


@pytest.fixture
def core() -> EngineCore:
    Executor.num_made = 0
    return EngineCore(CONFIG, Executor(), make_executor=Executor)


def add(core: EngineCore, *names: str, max_tokens: int = 4) -> None:
    for name in names:
        core.add_request(make_core_request(name, [1, 2, 3, 4, 5, 6], max_tokens=max_tokens))


def run(core: EngineCore, steps: int = 100) -> dict[str, list[EngineCoreOutput]]:
    outputs: dict[str, list[EngineCoreOutput]] = {}
    while core.has_work() and steps:
        steps -= 1
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def state(core: EngineCore) -> tuple[bool, bool]:
    found = core.call(GetControlState())
    return found["is_paused"], found["is_sleeping"]


def test_paused_core_queues_new_requests_and_resumes(core: EngineCore) -> None:
    assert core.call(Pause("abort")) is True
    assert state(core) == (True, False)
    add(core, "a")
    assert run(core) == {}
    assert not core.has_work()
    core.call(Resume())
    assert state(core) == (False, False)
    assert len(tokens(run(core)["a"])) == 4


def test_pause_by_abort_ends_all_with_their_ledgers(core: EngineCore) -> None:
    add(core, "a", "b", "c")
    core.step()
    core.call(Pause("abort"))
    outputs = run(core)
    assert {i: o[-1].finish_reason for i, o in outputs.items()} == dict.fromkeys(
        "abc", FinishReason.ABORT
    )
    assert core.scheduler.kv_cache.pool.num_cached_blocks == 0


def test_pause_by_wait_finishes_what_came_before(core: EngineCore) -> None:
    add(core, "a", "b", "c")
    core.step()
    later = core.call(Pause("wait"))
    assert isinstance(later, Later)
    add(core, "d")
    assert core.scheduler.stats().num_waiting == 2
    outputs = {}
    while not later.is_ready():
        for output in core.step().outputs:
            outputs[output.request_id] = output.finish_reason
    assert outputs == dict.fromkeys("abc", FinishReason.LENGTH)
    assert later.finish() is True
    assert run(core) == {}
    core.call(Resume())
    assert len(tokens(run(core)["d"])) == 4


def test_resume_while_it_waits_ends_the_waiting(core: EngineCore) -> None:
    add(core, "a")
    later = core.call(Pause("wait"))
    add(core, "b")
    assert not later.is_ready()
    core.call(Resume())
    assert later.is_ready()
    assert later.finish() is False
    assert state(core) == (False, False)
    assert set(run(core)) == {"a", "b"}


def test_abort_of_a_request_behind_the_gate(core: EngineCore) -> None:
    add(core, "a")
    core.call(Pause("wait"))
    add(core, "b")
    core.abort_requests(["b"])
    outputs = run(core)
    assert outputs["b"][0].finish_reason is FinishReason.ABORT
    assert outputs["a"][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("clear_cache", [True, False])
def test_pause_by_keep_goes_on_with_the_same_tokens(core: EngineCore, clear_cache: bool) -> None:
    alone = EngineCore(CONFIG, Executor())
    add(alone, "a", "b", "c")
    expected = {i: tokens(o) for i, o in run(alone).items()}
    add(core, "a", "b", "c")
    before = run(core, steps=2)
    core.call(Pause("keep", clear_cache))
    assert core.scheduler.stats().num_running == (0 if clear_cache else 2)
    assert run(core) == {}  # at most news for the worker
    core.call(Resume())
    after = run(core)
    assert {i: tokens(before.get(i, [])) + tokens(o) for i, o in after.items()} == expected


def test_reset_of_the_prefix_cache_takes_running_requests_when_told(core: EngineCore) -> None:
    add(core, "a")
    core.step()
    assert core.call(ResetPrefixCache()) is False
    assert core.call(ResetPrefixCache(reset_running_requests=True)) is True
    assert len(tokens(run(core)["a"])) == 3


# Sleep


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", KINDS)
def test_sleep_and_wake_of_every_level_in_every_mode(
    core: EngineCore, level: int, mode: Any
) -> None:
    executor = core.control.executor
    assert isinstance(executor, Executor)
    add(core, "a", "b", "c")
    before = run(core, steps=2)
    slept = core.call(Sleep(level, mode))
    ended = run(core)
    if isinstance(slept, Later):
        assert slept.is_ready()
        slept = slept.finish()
    assert slept is True
    assert state(core) == (True, True)
    assert executor.num_released == (level > 0)
    assert executor.is_shut_down == (level == 2)
    assert (core.control.executor is None) == (level == 2)
    add(core, "d")
    assert run(core) == {}
    assert core.call(WakeUp()) is True
    assert state(core) == (False, False)
    assert Executor.num_made == (2 if level == 2 else 1)
    after = run(core)
    assert len(tokens(after["d"])) == 4
    reasons = {i: o[-1].finish_reason for i, o in (ended | after).items()}
    expected = FinishReason.ABORT if mode == "abort" else FinishReason.LENGTH
    assert {i: reasons[i] for i in "abc"} == dict.fromkeys("abc", expected)
    if mode != "abort":
        for name in "abc":
            parts = [*before.get(name, []), *ended.get(name, []), *after.get(name, [])]
            assert len(tokens(parts)) == 4


def test_core_that_is_loaded_again_knows_the_vocabulary(core: EngineCore) -> None:
    vocabulary = Vocabulary([b"a", b""], [1], [1])
    core.set_vocabulary(vocabulary)
    core.call(Sleep(2))
    core.prepare_grammar("start: /a/")  # asleep: nothing to compile it with
    core.call(WakeUp())
    executor = core.control.executor
    assert isinstance(executor, Executor)
    assert executor.vocabulary == vocabulary
    assert executor.grammars == []
    core.prepare_grammar("start: /a/")
    assert executor.grammars == ["start: /a/"]


def test_wake_up_by_tags_is_done_when_all_is_awake(core: EngineCore) -> None:
    core.call(Sleep(2))
    assert core.call(WakeUp(["weights"])) is False
    assert core.call(WakeUp(["kv_cache"])) is False
    add(core, "a")
    assert run(core) == {}
    assert core.call(WakeUp(["scheduling"])) is True
    assert len(tokens(run(core)["a"])) == 4


def test_sleep_of_level_0_is_undone_by_scheduling(core: EngineCore) -> None:
    core.call(Sleep(0))
    assert core.call(WakeUp(["scheduling"])) is True


def test_kv_cache_is_given_back_only_in_sleep_of_level_0(core: EngineCore) -> None:
    with pytest.raises(ValidationError, match="level 0"):
        core.call(ReleaseKVCache())
    core.call(Sleep(0, "keep"))
    core.call(ReleaseKVCache())
    assert core.control.executor.num_released == 1  # type: ignore[union-attr]
    assert core.call(WakeUp(["scheduling"])) is False
    assert core.call(WakeUp(["kv_cache"])) is True


def test_pause_outlives_sleep_and_sleep_outlives_pause(core: EngineCore) -> None:
    core.call(Pause("keep"))
    core.call(Sleep(0))
    core.call(Resume())
    assert state(core) == (True, True)
    core.call(Pause("keep"))
    core.call(WakeUp())
    assert state(core) == (True, False)
    add(core, "a")
    assert run(core) == {}
    core.call(Resume())
    assert len(tokens(run(core)["a"])) == 4


@pytest.mark.parametrize(
    "verb", [Sleep(3), Sleep(-1), Sleep(1, "now"), Pause("now"), WakeUp(["weight"])], ids=repr
)  # type: ignore[arg-type]
def test_verb_with_a_bad_value_is_refused_and_changes_nothing(core: EngineCore, verb: Any) -> None:
    with pytest.raises(ValidationError):
        core.call(verb)
    assert state(core) == (False, False)
    add(core, "a")
    assert len(tokens(run(core)["a"])) == 4


def test_sleep_of_level_2_needs_a_way_back() -> None:
    core = EngineCore(CONFIG, Executor())
    with pytest.raises(UnsupportedError, match="level 2"):
        core.call(Sleep(2))
    assert state(core) == (False, False)


# Profiles and calls


def test_profile_is_written_with_a_line_per_step(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, profiler_dir=str(tmp_path / "profiles"))
    core = EngineCore(config, Executor())
    core.call(StartProfile("mine", 1, 2))
    with pytest.raises(ProfilerAlreadyActiveError):
        core.call(StartProfile())
    add(core, "a")
    run(core)
    files = [Path(name) for name in core.call(StopProfile())]
    assert [file.suffix for file in files] == [".prof", ".csv"]
    assert all(file.name.startswith("mine-") for file in files)
    with open(files[1]) as file:
        header, *steps = csv.reader(file)
    assert header == ["started_at", "seconds", "num_tokens", "num_running", "num_waiting"]
    assert [step[2] for step in steps] == ["1", "1"]  # the prefill was let pass
    names = {function[2] for function in pstats.Stats(str(files[0])).stats}  # type: ignore[attr-defined]
    assert "schedule" in names
    assert core.call(StopProfile()) == []


def test_profile_without_a_folder_names_the_option(core: EngineCore) -> None:
    with pytest.raises(ConfigError, match="--profiler-dir"):
        core.call(StartProfile())


@pytest.mark.parametrize(
    "verb",
    [StartProfile("../up"), StartProfile(""), StartProfile("a", -1), StartProfile("a", 0, 0)],
    ids=repr,
)
def test_profile_with_a_bad_value_is_refused(tmp_path: Path, verb: StartProfile) -> None:
    core = EngineCore(msgspec.structs.replace(CONFIG, profiler_dir=str(tmp_path)), Executor())
    with pytest.raises(ValidationError):
        core.call(verb)
    assert not core.call(GetControlState())["is_profiling"]


def test_call_of_the_workers_gives_a_list(core: EngineCore) -> None:
    assert core.call(CallWorkers("sizes", [1], {"a": 2})) == [["sizes", [1], {"a": 2}]]
    assert core.call(CallWorkers("layout", on_model=True)) == [["layout", [], {}]]
    core.call(Sleep(2))
    with pytest.raises(ValidationError, match="asleep"):
        core.call(CallWorkers("sizes"))
