"""The control verbs in their two faces: for callers that wait, and for tasks of an event loop.

One vocabulary: each verb is one record sent through one call. What a face needs to send it, its
engine provides.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import UnsupportedError
from headrace.messages.requests import (
    CallWorkers,
    GetControlState,
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

SUPPORTED_TASKS = ("generate",)


class SyncControlVerbs:
    """Controls of an engine for a caller that waits."""

    @abstractmethod
    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a verb; see its record.

        Raises:
            EngineDeadError, TimeoutError, HeadraceError: the core ended, was too slow, or refused.
        """

    def call_in_process(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
        *, on_model: bool,
    ) -> list[Any]:  # fmt: skip
        """Call a function with the worker, or its model, in this process.

        Raises:
            UnsupportedError: they live in another one.
        """
        raise UnsupportedError(
            "a function can only be called where the core is in this process "
            "(HEADRACE_ENABLE_MULTIPROCESSING=0); give the name of a method instead",
            param="method",
        )

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; False while blocks are in use.

        Args:
            reset_running_requests: take the blocks of running requests too: they are computed
                again.
            reset_connector: there is none; either value.
        """
        return bool(self.call(ResetPrefixCache(reset_running_requests)))

    def reset_mm_cache(self) -> None:
        """Forget what was kept of media: nothing, as models take text only."""

    def reset_encoder_cache(self) -> None:
        """The same for what encoders gave."""

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Stop, and give memory back.

        Args:
            level: 0 only stops, 1 gives back the KV cache, 2 the weights too.
            mode: what becomes of requests: `abort`; `wait` finishes them first; `keep` stops them
                until the engine wakes up.
        """
        self.call(Sleep(level, mode))

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take back what sleeps (weights, kv_cache, scheduling; None is all of them).

        Returns:
            Whether all is awake.
        """
        return bool(self.call(WakeUp(tags)))

    def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return bool(self.call(GetControlState())["is_sleeping"])

    def release_kv_cache_memory(self) -> None:
        """Give back the memory of the KV cache during sleep of level 0."""
        self.call(ReleaseKVCache())

    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Profile the core's steps into `profiler_dir`.

        Raises:
            ProfilerAlreadyActiveError, ConfigError: a profile is being taken; there is no folder.
        """
        self.call(StartProfile(profile_prefix, delay_iterations or 0, max_iterations))

    def stop_profile(self) -> list[str]:
        """End the profile; the files it is in."""
        files: list[str] = self.call(StopProfile())
        return files

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker; what each gave.

        Args:
            method: an entry of the worker's table (worker/uniproc.py), or, where the core is in
                this process, a function that gets the worker first.

        Raises:
            TimeoutError: no answer in `timeout` seconds. ValidationError: no such method.
        """
        return self._call_workers(method, timeout, args, kwargs, on_model=False)

    def apply_model(self, func: str | Callable[..., Any]) -> list[Any]:
        """The same with a function of the model (worker/rpc.py), or one that gets the model."""
        return self._call_workers(func, None, (), None, on_model=True)

    def _call_workers(
        self,
        method: str | Callable[..., Any],
        timeout: float | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        *,
        on_model: bool,
    ) -> list[Any]:
        if not isinstance(method, str):
            return self.call_in_process(method, args, kwargs or {}, on_model=on_model)
        verb = CallWorkers(method, list(args), dict(kwargs or {}), on_model)
        results: list[Any] = self.call(verb, timeout)
        return results

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many workers there are."""
        return 1

    def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for."""
        return SUPPORTED_TASKS


class AsyncControlVerbs:
    """Controls of an engine for the tasks of an event loop. See SyncControlVerbs."""

    @abstractmethod
    async def call(self, verb: Verb) -> Any:
        """Carry out a verb; see its record."""

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """Schedule nothing more until `resume_generation`; new requests are queued meanwhile.

        Args:
            mode: what becomes of requests under way: `abort` ends them; `wait` returns once they
                have finished; `keep` stops them where they are.
            clear_cache: forget all keys and values, also of requests that are kept: they are
                computed again.
        """
        await self.call(Pause(mode, clear_cache))

    async def resume_generation(self) -> None:
        """Undo `pause_generation`."""
        await self.call(Resume())

    async def is_paused(self) -> bool:
        """Whether nothing is scheduled, by pause or by sleep."""
        return bool((await self.call(GetControlState()))["is_paused"])

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; False while blocks are in use."""
        return bool(await self.call(ResetPrefixCache(reset_running_requests)))

    async def reset_mm_cache(self) -> None:
        """Forget what was kept of media: nothing, as models take text only."""

    async def reset_encoder_cache(self) -> None:
        """The same for what encoders gave."""

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Stop, and give memory back."""
        await self.call(Sleep(level, mode))

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Take back what sleeps. Whether all is awake."""
        return bool(await self.call(WakeUp(tags)))

    async def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return bool((await self.call(GetControlState()))["is_sleeping"])

    async def release_kv_cache_memory(self) -> None:
        """Give back the memory of the KV cache during sleep of level 0."""
        await self.call(ReleaseKVCache())

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Profile the core's steps into `profiler_dir`."""
        await self.call(StartProfile(profile_prefix, delay_iterations or 0, max_iterations))

    async def stop_profile(self) -> list[str]:
        """End the profile; the files it is in."""
        files: list[str] = await self.call(StopProfile())
        return files

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as programs of this field know it
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call an entry of every worker's table; what each gave."""
        if not isinstance(method, str):
            raise UnsupportedError(
                "the workers live in another process; give the name of a method", param="method"
            )
        verb = CallWorkers(method, list(args), dict(kwargs or {}))
        results: list[Any] = await asyncio.wait_for(self.call(verb), timeout)
        return results

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can be asked for."""
        return SUPPORTED_TASKS

    async def is_tracing_enabled(self) -> bool:
        """Whether traces go anywhere: no."""
        return False

    async def add_lora(self, lora_request: object) -> bool:
        """Raises UnsupportedError: this version knows no adapters."""
        raise _no_lora()

    async def remove_lora(self, lora_id: int) -> bool:
        """Raises UnsupportedError: this version knows no adapters."""
        raise _no_lora()

    async def pin_lora(self, lora_id: int) -> bool:
        """Raises UnsupportedError: this version knows no adapters."""
        raise _no_lora()

    async def list_loras(self) -> set[int]:
        """The adapters there are: none."""
        return set()


def _no_lora() -> UnsupportedError:
    return UnsupportedError("adapters are not supported by this version yet", param="lora_request")
