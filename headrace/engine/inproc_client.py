"""A core in this very process: no sockets, no threads; a step runs when outputs are asked for."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from headrace.config.engine import EngineConfig
from headrace.core.engine_core import EngineCore, ignore_stage, pinned
from headrace.engine.launch import EXECUTOR_FACTORY, OnStage
from headrace.errors import EngineDeadError, UnsupportedError
from headrace.logger import make_logger
from headrace.messages.outputs import EngineCoreOutputs
from headrace.messages.requests import EngineCoreRequest, Pause, Sleep, Verb, Vocabulary
from headrace.worker.executor import Executor

logger = make_logger(__name__)


class InprocClient:
    """Owns an EngineCore. See SyncEngineCoreClient.

    Raises:
        ConfigError, ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_stage: OnStage | None = None,
        executor_factory: str = EXECUTOR_FACTORY,
    ) -> None:
        module, name = executor_factory.split(":")
        make_executor = getattr(import_module(module), name)
        executor = make_executor(config, on_stage or ignore_stage)
        self.ready = executor.ready
        again = partial(make_executor, pinned(config, executor.ready), ignore_stage)
        self.core = EngineCore(config, executor, make_executor=again)
        self._dead_error: EngineDeadError | None = None

    @property
    def dead_error(self) -> BaseException | None:
        """Why the core cannot go on; None while it can."""
        return self._dead_error

    @property
    def worker(self) -> Executor | None:
        """The executor; None while its weights are asleep."""
        return self.core.control.executor

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request in the core."""
        self._raise_if_dead()
        self.core.add_request(request)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Give the core the tokens' bytes."""
        self._raise_if_dead()
        self.core.set_vocabulary(vocabulary)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Let the core forget these."""
        if self._dead_error is None:
            self.core.abort_requests(request_ids)

    def get_outputs(self) -> EngineCoreOutputs:
        """Run one step."""
        self._raise_if_dead()
        try:
            return self.core.step()
        except Exception as error:
            logger.exception("the engine core failed")
            self._dead_error = EngineDeadError(f"the engine core failed: {error}")
            raise self._dead_error from error

    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a control verb; it takes no time to speak of."""
        self._raise_if_dead()
        if isinstance(verb, (Pause, Sleep)) and verb.mode == "wait":
            raise UnsupportedError(
                "a core in this process cannot wait for requests that only run while it is "
                "stepped; finish them first, or use the mode abort or keep",
                param="mode",
            )
        return self.core.call(verb)

    def shutdown(self, timeout: float | None = None) -> None:
        """Free the model. Idempotent."""
        if self._dead_error is None:
            self._dead_error = EngineDeadError("the engine was shut down")
        self.core.shutdown()

    def _raise_if_dead(self) -> None:
        if self._dead_error is not None:
            raise self._dead_error
