"""The offline class with the packaged model: what it refuses, and scripts that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from headrace import LLM, SamplingParams
from headrace.errors import UnsupportedError, ValidationError
from tests.waiting import PATIENCE, wait_until

ONE = SamplingParams(max_tokens=1)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, kv_cache_memory_bytes=32 << 20) as made:
        yield made


@pytest.fixture
def alive(llm: LLM) -> Iterator[None]:
    """After the test an ordinary request works, and no other is left."""
    yield
    assert not llm.llm_engine.has_unfinished_requests()
    greedy = SamplingParams(max_tokens=2, temperature=0)
    [output] = llm.generate("The capital of France is", greedy, use_tqdm=False)
    assert output.outputs[0].text == " Paris."


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    "prompts",
    ["", [[]], [""], ["fine", ""], [-1], [49152], [1, 2**31], [2**64], [True], [1.5], [None],
     [1, "a"], [[1], [49152]], 5, None, b"x", "\ud800", "word " * 600, [7] * 512, "x" * 10**6,
     {}, {"prompt": 5}, {"prompt": ""}, {"prompt_token_ids": []}, {"prompt_token_ids": [-1]},
     {"prompt_token_ids": "ab"}, {"prompt": "a", "cache_salt": ""},
     {"prompt": "a", "cache_salt": 5}],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_prompt_that_is_not_allowed_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ValidationError):
        llm.generate(prompts, ONE, use_tqdm=False)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    "messages",
    [[[]], [{}], [{"role": "user"}], [{"role": "user", "content": None}],
     [{"role": "wizard", "content": "x"}], [{"role": "user", "content": "\udc00"}],
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_conversation_that_is_not_allowed_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(ValidationError):
        llm.chat(messages, ONE, use_tqdm=False)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    "params",
    [{"stop_token_ids": [49152]}, {"logit_bias": {49152: 1.0}}, {"allowed_token_ids": [49152]},
     {"logprobs": 21}, {"prompt_logprobs": 21}],
    ids=repr,
)  # fmt: skip
def test_value_the_model_does_not_allow_is_refused(llm: LLM, params: dict[str, Any]) -> None:
    [name] = params
    with pytest.raises(ValidationError) as caught:
        llm.generate(["fine", "b"], SamplingParams(max_tokens=1, **params), use_tqdm=False)
    assert str(caught.value.param).startswith(name)


@pytest.mark.usefixtures("alive")
def test_kind_of_prompt_that_does_not_exist_yet_is_refused_by_name(llm: LLM) -> None:
    for key in ("multi_modal_data", "prompt_embeds", "encoder_prompt"):
        with pytest.raises(UnsupportedError, match=key):
            llm.generate({"prompt": "a", key: {}}, ONE, use_tqdm=False)  # type: ignore[typeddict-item]


def test_threads_that_share_an_engine_each_get_their_own_answers(llm: LLM) -> None:
    prompts = ["The capital of France is", "1, 2, 3, 4,", "Once upon a time", "def main():"]
    params = SamplingParams(temperature=0, max_tokens=4)
    alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = pool.map(lambda p: llm.generate(p, params, use_tqdm=False)[0], prompts * 3)
        found = [(output.prompt, output.outputs[0].text) for output in together]
    assert found == [(output.prompt, output.outputs[0].text) for output in alone] * 3


SCRIPT = """
import os
from headrace import LLM, SamplingParams
llm = LLM(max_model_len=256, kv_cache_memory_bytes=16 << 20)
params = SamplingParams(temperature=0, max_tokens=2)
print(llm.generate("The capital of France is", params, use_tqdm=False)[0].outputs[0].text)
import psutil
print(*(child.pid for child in psutil.Process(os.getpid()).children(recursive=True)), flush=True)
"""


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(script)
    process.stdin.close()
    return process


def _children(process: subprocess.Popen[str]) -> list[int]:
    """What the script says of its children, after the right answer."""
    assert process.stdout is not None
    assert process.stdout.readline() == " Paris.\n"
    return [int(pid) for pid in process.stdout.readline().split()]


def _assert_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_plain_script_from_stdin_works_and_ends_clean() -> None:
    with _start(SCRIPT, "-") as process:
        pids = _children(process)
        assert len(pids) == 1
        assert process.wait(PATIENCE) == 0
    _assert_gone(pids)


def test_script_that_is_killed_leaves_no_child() -> None:
    with _start("", "-c", SCRIPT + "import time; time.sleep(600)") as process:
        pids = _children(process)
        assert all(psutil.pid_exists(pid) for pid in pids)
        process.kill()
        process.wait(PATIENCE)
    _assert_gone(pids)
