"""The fake tokenizer, saved once, and an end to tests that hang."""

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from headrace.text.tokenizer import Tokenizer, load_tokenizer
from tests.engine.fakes import save_tokenizer


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
        raise TimeoutError("the test took more than 90 s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
