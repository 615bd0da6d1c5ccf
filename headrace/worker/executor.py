"""Who runs the model: one Protocol, and the table of who implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast

from headrace.config.engine import EngineConfig
from headrace.import_path import load_import_path
from headrace.messages.requests import Vocabulary
from headrace.messages.startup import EngineReady
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput

OnStage: TypeAlias = Callable[[str, float], None]
"""Told the name of each start-up stage and how much of the start is done, 0 to 1."""


class Executor(Protocol):
    """A loaded model with its KV cache, executing one step at a time, in the caller's thread."""

    ready: EngineReady
    """Sizes settled while loading."""

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step. A fault of a single request comes back in `errors`, not as an exception."""
        ...

    def release_kv_cache(self) -> None:
        """Give back the memory of the KV cache: what it held is lost, blocks can be used again."""
        ...

    def call_worker(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an entry of the worker's table of methods.

        Raises:
            ValidationError: no such entry, or arguments it does not take.
        """
        ...

    def call_model(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The same with the table of functions of the model."""
        ...

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take the tokens' bytes, which grammars need."""
        ...

    def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar ahead of the request that has it. May be called from any thread.

        Raises:
            ValidationError: it cannot be compiled.
        """
        ...

    def shutdown(self) -> None:
        """Free what it holds. Idempotent."""
        ...


_EXECUTORS = {"uni": ("headrace.worker.uniproc", "UniProcExecutor")}


def make_executor(config: EngineConfig, on_stage: OnStage) -> Executor:
    """Load the model of a config.

    Raises:
        ConfigError, ModelError: with one line for the user.
    """
    if config.executor is not None:
        made = load_import_path("worker_cls", config.executor)(config, on_stage)
        return cast(Executor, made)
    module, name = _EXECUTORS["uni"]
    return cast(Executor, getattr(import_module(module), name)(config, on_stage))
