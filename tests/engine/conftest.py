"""The fake tokenizer, saved once, engines that end, and an end to tests that hang."""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from headrace.config.engine import FrontConfig
from headrace.engine.async_llm import AsyncLLM
from headrace.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.async_rig import MakeEngine
from tests.engine.fakes import FACTORY, make_config, save_tokenizer

LIMIT = 300


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer of bytes."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: str) -> Tokenizer:
    """The tokenizer of bytes."""
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(autouse=True)
def limit_time() -> Iterator[None]:
    """No test here waits for ever."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def make_engine(tokenizer_folder: str) -> Iterator[MakeEngine]:
    """Makes engines that are shut down at the end."""
    made: list[AsyncLLM] = []

    def make(*, front: FrontConfig | None = None, **options: Any) -> AsyncLLM:
        start = {
            name: options.pop(name)
            for name in ("stat_loggers", "start_engine_loop", "on_stage")
            if name in options
        }
        config = make_config(tokenizer=tokenizer_folder, front=front, **options)
        engine = AsyncLLM(config, executor_factory=FACTORY, **start)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.shutdown()
