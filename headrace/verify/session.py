"""One engine of the battery: asks questions of it, and knows what happened to each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.config.args import EngineArgs
from headrace.engine.llm_engine import LLMEngine
from headrace.engine.setup import make_engine_config
from headrace.verify.answers import Answer, answer_of
from headrace.verify.witness import Seen, Witness
from headrace.verify.workload import Question

WITNESS = "headrace.verify.witness:Witness"


class Session:
    """An engine whose core is in this process, so that a step runs when it is asked for.

    Args:
        engine: made with the executor WITNESS.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        worker: list[Witness] = engine.call_in_process(lambda worker: worker, (), {},
                                                       on_model=False)  # fmt: skip
        self.witness = worker[0]
        self._num_asked = 0

    def add(self, question: Question) -> str:
        """Queue a question; its id inside the engine."""
        self._num_asked += 1
        prompt: Any = {"prompt_token_ids": question.prompt}
        return self.engine.add_request(str(self._num_asked), prompt, question.params.clone())

    def answer(
        self,
        ids: Sequence[str],
        after_step: Callable[[], object] = lambda: None,
    ) -> list[Answer]:
        """Step until nothing is left to do; the answers to these requests, in their order.

        Args:
            after_step: called after each step.
        """
        answers: dict[str, Answer] = {}
        names = {internal.rpartition("-")[0]: internal for internal in ids}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished and output.request_id in names:
                    answers[names[output.request_id]] = answer_of(output)
            after_step()
        return [answers[internal] for internal in ids]

    def seen(self, ids: Sequence[str]) -> list[Seen]:
        """What happened to these requests."""
        return [self.witness.seen[internal] for internal in ids]


@contextmanager
def open_session(args: EngineArgs, options: Mapping[str, Any]) -> Iterator[Session]:
    """A session under the caller's options and these on top; closed at the end.

    Raises:
        ConfigError, ModelError: it cannot be started, in one line.
    """
    config = make_engine_config(replace(args, **options))
    with LLMEngine(config, stat_loggers=[], multiprocess=False, executor_factory=WITNESS) as engine:
        yield Session(engine)
