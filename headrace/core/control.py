"""Control verbs of the core: pause and resume, sleep and wake, profiles, calls of the workers.

Changes who is scheduled and what memory is held; never computes a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.core.profiler import StepProfiler
from headrace.core.scheduler import Scheduler
from headrace.errors import UnsupportedError, ValidationError
from headrace.messages.outputs import EngineCoreOutput
from headrace.messages.requests import (
    CallWorkers,
    GetControlState,
    GetDebugState,
    GetProgress,
    Pause,
    PauseMode,
    ReleaseKVCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    StartProfile,
    StopProfile,
    Verb,
    WakeUp,
)
from headrace.worker.executor import Executor

MODES = ("abort", "wait", "keep")
LEVELS = (0, 1, 2)
TAGS = ("weights", "kv_cache", "scheduling")


@dataclass(slots=True)
class Later:
    """The result of a verb is not there yet: ask `finish` once `is_ready`."""

    is_ready: Callable[[], bool]
    finish: Callable[[], Any]


class Control:
    """The controls of one core.

    Args:
        scheduler: whom to stop.
        executor: whose memory to give back.
        make_executor: loads the model again, for sleep of level 2; None: it cannot.
        profiler: takes profiles of the steps.

    Attributes:
        executor: None while the weights are given back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        make_executor: Callable[[], Executor] | None,
        profiler: StepProfiler,
    ) -> None:
        self.executor: Executor | None = executor
        self.profiler = profiler
        self.answers: list[EngineCoreOutput] = []
        """Last outputs of requests that were ended here, for the core to take."""
        self._scheduler = scheduler
        self._make_executor = make_executor
        self._is_paused = False
        self._asleep: set[str] = set()

    def call(self, verb: Verb) -> Any:
        """Carry out a verb; see its record for the result, which may come Later."""
        match verb:
            case ResetPrefixCache():
                return self._reset_prefix_cache(verb.reset_running_requests)
            case GetDebugState():
                return self._scheduler.debug_state()
            case GetProgress():
                return self._scheduler.roster.progress(verb.request_ids)
            case Pause():
                self._check_mode(verb.mode)
                return self._pause(verb.mode, verb.clear_cache)
            case Resume():
                self._is_paused = False
                self._open_if_awake()
            case Sleep():
                return self._sleep(verb.level, verb.mode)
            case WakeUp():
                return self._wake_up(verb.tags)
            case ReleaseKVCache():
                self._release_kv_cache()
            case GetControlState():
                return {
                    "is_paused": self._is_paused or "scheduling" in self._asleep,
                    "is_sleeping": bool(self._asleep),
                    "is_profiling": self.profiler.is_active,
                }
            case StartProfile():
                self.profiler.start(verb.prefix, verb.delay_iterations, verb.max_iterations)
            case StopProfile():
                return self.profiler.stop()
            case CallWorkers():
                return self._call_workers(verb)
        return None

    # Pause and resume

    def _check_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValidationError(f"mode must be one of {', '.join(MODES)}", param="mode")

    def _pause(self, mode: PauseMode, clear_cache: bool) -> bool | Later:
        roster = self._scheduler.roster
        self._is_paused = True
        if mode == "wait" and not roster.gate.is_shut and not roster.is_drained:
            roster.gate.close()
            return Later(
                lambda: roster.is_drained or not roster.gate.is_closing,
                lambda: self._shut_after_draining(clear_cache),
            )
        roster.gate.shut()
        if mode == "abort":
            self.answers += roster.abort(list(roster.requests))
        if clear_cache:
            self._reset_prefix_cache(True)
        return True

    def _shut_after_draining(self, clear_cache: bool) -> bool:
        gate = self._scheduler.roster.gate
        if gate.is_open:
            return False  # resumed in the meantime
        gate.shut()
        if clear_cache:
            self._reset_prefix_cache(True)
        return True

    def _open_if_awake(self) -> None:
        if not self._is_paused and not self._asleep:
            self._scheduler.roster.gate.open()

    def _reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        if reset_running_requests:
            self._scheduler.roster.preempt_all()
        return self._scheduler.reset_prefix_cache()

    # Sleep and wake

    def _sleep(self, level: int, mode: PauseMode) -> bool | Later:
        if level not in LEVELS or isinstance(level, bool):
            raise ValidationError("level must be 0, 1 or 2", param="level", value=level)
        self._check_mode(mode)
        if level == 2 and self._make_executor is None:
            raise UnsupportedError("this core cannot load its weights again (sleep level 2)")
        was_paused = self._is_paused
        paused = self._pause(mode, clear_cache=level > 0)
        self._is_paused = was_paused
        self._asleep.add("scheduling")
        if not isinstance(paused, Later):
            self._give_back(level)
            return paused

        def finish() -> bool:
            is_shut = bool(paused.finish())
            if is_shut:
                self._give_back(level)
            return is_shut

        return Later(paused.is_ready, finish)

    def _give_back(self, level: int) -> None:
        if level >= 1 and self.executor is not None:
            self.executor.release_kv_cache()
            self._asleep.add("kv_cache")
        if level == 2 and self.executor is not None:
            self.executor.shutdown()
            self.executor = None
            self._scheduler.roster.forget_worker()
            self._asleep.add("weights")

    def _release_kv_cache(self) -> None:
        if "scheduling" not in self._asleep or self.executor is None:
            raise ValidationError("the KV cache can only be given back during sleep of level 0")
        self._reset_prefix_cache(True)
        self._give_back(1)

    def _wake_up(self, tags: list[str] | None) -> bool:
        wanted = set(TAGS if tags is None else tags)
        unknown = wanted - set(TAGS)
        if unknown:
            raise ValidationError(
                f"tags must be of {', '.join(TAGS)}, got {sorted(unknown)[0]!r}", param="tags"
            )
        if self.executor is None and wanted & {"weights", "kv_cache"}:
            assert self._make_executor is not None
            self.executor = self._make_executor()
            wanted.add("weights")
        self._asleep -= wanted
        self._open_if_awake()
        return not self._asleep

    # Workers

    def _call_workers(self, verb: CallWorkers) -> list[Any]:
        if self.executor is None:
            raise ValidationError("the weights are asleep; wake them up first")
        call = self.executor.call_model if verb.on_model else self.executor.call_worker
        return [call(verb.method, verb.args, verb.kwargs)]
