"""The packaged model behind a real server, asked by real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.e2e.conftest import Server
from tests.waiting import PATIENCE, until, wait_until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("--max-model-len", "2048", "--max-num-seqs", "32")


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    )


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_chat_is_answered_whole_and_streamed_alike(client: openai.OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": QUESTION, "temperature": 0,
                               "max_tokens": 24}  # fmt: skip
    whole = client.chat.completions.create(**options)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**options, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-1] if c.choices)


def test_a_completion_is_answered_whole_and_streamed_alike(
    client: openai.OpenAI, model: str
) -> None:
    options: dict[str, Any] = {"model": model, "prompt": "The capital of France is",
                               "temperature": 0, "max_tokens": 12}  # fmt: skip
    whole = client.completions.create(**options)
    streamed = client.completions.create(**options, stream=True)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == whole.choices[0].text
    assert "Paris" in whole.choices[0].text


def test_logprobs_of_a_chat_spell_its_text(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Repeat: naïve café 😀 日本"}],
        temperature=0, max_tokens=40, logprobs=True, top_logprobs=3,
    )  # fmt: skip
    [choice] = answer.choices
    assert choice.logprobs is not None
    spelled = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content or [])
    end = b"<|im_end|>" if choice.finish_reason == "stop" else b""
    assert spelled.decode(errors="replace").removesuffix(end.decode()) == choice.message.content


def test_several_answers_to_several_prompts_are_indexed(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["One", "Two"], n=2, seed=5, max_tokens=4, temperature=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) > 1


def test_beam_search_finds_what_a_plain_one_finds(server: Server) -> None:
    """The rules once more, with one request per beam and step."""
    width, steps, url = 3, 4, f"{server.url}/v1/completions"
    start = httpx.post(f"{server.url}/tokenize", json={"prompt": "Once"}, timeout=PATIENCE).json()[
        "tokens"
    ]
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        grown: list[tuple[float, list[int]]] = []
        for total, ids in beams:
            body = {"prompt": start + ids, "max_tokens": 1, "logprobs": 2 * width,
                    "temperature": 0, "return_tokens_as_token_ids": True}  # fmt: skip
            answer = httpx.post(url, json=body, timeout=PATIENCE).json()
            [top] = answer["choices"][0]["logprobs"]["top_logprobs"]
            grown += [(total + p, [*ids, int(name[9:])]) for name, p in top.items()]
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    body = {"prompt": "Once", "use_beam_search": True, "n": width, "max_tokens": steps,
            "temperature": 0, "return_token_ids": True, "logprobs": 0}  # fmt: skip
    answer = httpx.post(url, json=body, timeout=PATIENCE).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids for _, ids in beams]
    for choice, (total, _) in zip(answer["choices"], beams, strict=True):
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(total)
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_curl_gets_an_answer_and_an_event_stream(server: Server) -> None:
    body = json.dumps({"messages": QUESTION, "max_tokens": 8, "temperature": 0, "stream": True})
    done = subprocess.run(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json",
         "-d", body],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    frames = [line for line in done.stdout.split("\n\n") if line]
    assert all(frame.startswith("data: ") for frame in frames)
    assert frames[-1] == "data: [DONE]"
    assert frames.count("data: [DONE]") == 1


def test_an_error_names_the_field_and_harms_nobody(server: Server) -> None:
    for body, param in (
        ({"messages": QUESTION, "temperature": 9}, "temperature"),
        ({"messages": QUESTION, "logit_bias": {"999999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": QUESTION, "max_tokens": 0}, "max_tokens"),
    ):
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == 400
        assert param in error["param"]
    assert httpx.get(f"{server.url}/health", timeout=PATIENCE).status_code == 200


def test_a_closed_stream_frees_its_blocks(server: Server) -> None:
    aborted = _aborts(server)
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE
    ) as answer:
        lines = answer.iter_lines()  # a dropped iterator would close the connection here
        next(lines)
        assert server.metric("headrace:num_requests_running") == 1
    wait_until(lambda: server.metric("headrace:num_requests_running") == 0)
    wait_until(lambda: server.metric("headrace:kv_cache_usage_perc") == 0)
    wait_until(lambda: _aborts(server) == aborted + 1)


def test_a_client_that_leaves_a_whole_answer_aborts_it(server: Server) -> None:
    aborted = _aborts(server)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            body = LONG | {"stream": False}
            asked = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: server.metric("headrace:num_requests_running") == 1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(leave())
    wait_until(lambda: server.metric("headrace:num_requests_running") == 0)
    wait_until(lambda: _aborts(server) == aborted + 1)


def test_equal_request_ids_in_flight_get_their_own_answers(server: Server) -> None:
    texts: dict[int, str] = {}

    def ask(i: int) -> None:
        body = {"prompt": f"Count: {i}, {i + 1},", "max_tokens": 6, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE,
                            headers={"X-Request-Id": "same"})  # fmt: skip
        texts[i] = answer.json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in (1, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "3" in texts[1]
    assert "52" in texts[50]


def test_a_stream_closed_leaves_another_of_the_same_id_alone(server: Server) -> None:
    body = LONG | {"request_id": "same", "max_tokens": 40, "temperature": 0}
    headers = {"X-Request-Id": "same"}
    url = f"{server.url}/v1/completions"
    alone = httpx.post(url, json=body, timeout=PATIENCE).text
    with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE) as kept:
        lines = kept.iter_lines()
        first = next(lines)
        with httpx.stream("POST", url, json=LONG, headers=headers, timeout=PATIENCE) as closed:
            closed_lines = closed.iter_lines()
            next(closed_lines)
        rest = list(lines)
    assert '"id":"cmpl-same"' in first
    assert "".join(_texts([first, *rest])) == "".join(_texts(alone.splitlines()))
    wait_until(lambda: server.metric("headrace:num_requests_running") == 0)


def test_clients_that_leave_at_random_points_leave_nothing(server: Server) -> None:
    rng = random.Random(3)
    front, core = psutil.Process(server.process.pid), server.core()

    async def leave(client: httpx.AsyncClient) -> None:
        if rng.random() < 0.2:  # as soon as it has begun, however slow the machine is
            async with client.stream("POST", "/v1/completions", json=LONG) as answer:
                await anext(aiter(answer.aiter_lines()))
            return
        body = LONG | {
            "prompt": rng.choice(["a", "word " * 400, ["a", "b"]]), "n": rng.choice([1, 1, 3]),
            "stream": rng.random() < 0.5, "max_tokens": rng.choice([1, 5, 500]),
        }  # fmt: skip
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.choice([0.001, 0.01, 0.03, 0.1, 0.3])):
                await client.post("/v1/completions", json=body)

    async def crowd() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            for _ in range(10):
                await asyncio.gather(*(leave(client) for _ in range(20)))

    def memory_after_a_crowd() -> tuple[int, int]:
        asyncio.run(crowd())
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            wait_until(lambda name=name: server.metric(f"headrace:{name}") == 0)
        return front.memory_info().rss, core.memory_info().rss

    before = memory_after_a_crowd()
    aborted = _aborts(server)
    after = memory_after_a_crowd()
    assert _aborts(server) > aborted + 20
    assert max(new - old for new, old in zip(after, before, strict=True)) < 8 << 20
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}, timeout=PATIENCE)
    assert answer.status_code == 200


def test_a_killed_core_ends_every_stream_and_the_server(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--max-model-len", "2048", "--engine-death-linger", "15")
    started, ends = threading.Barrier(9), []

    def stream() -> None:
        lines = []
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=LONG, timeout=2 * PATIENCE
        ) as answer:
            try:
                for line in answer.iter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        started.wait(PATIENCE)
            except httpx.TransportError:
                lines.append("cut")
        ends.append((time.monotonic(), [line for line in lines if line]))

    plain: list[tuple[float, int]] = []

    def ask() -> None:
        body = LONG | {"stream": False}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=2 * PATIENCE)
        plain.append((time.monotonic(), answer.status_code))

    threads = [threading.Thread(target=stream) for _ in range(8)]
    threads += [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE)
    wait_until(lambda: server.metric("headrace:num_requests_running") == 10)
    children = server.children()
    server.core().kill()
    killed = time.monotonic()
    statuses, late = [], []
    while not late and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            statuses.append(httpx.get(f"{server.url}/health", timeout=PATIENCE).status_code)
            if statuses[-1] == 503:
                answer = httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=PATIENCE)
                late.append(answer)
        time.sleep(0.02)
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert len(ends) == 8
    for when, lines in ends:
        assert when - killed < PATIENCE
        assert any('"error"' in line for line in lines), lines[-3:]
        assert not any('"finish_reason":"stop"' in line for line in lines)
    assert [status for _, status in plain] == [500, 500]
    assert max(when - killed for when, _ in plain) < PATIENCE
    assert 503 in statuses
    assert late
    assert {answer.status_code for answer in late} <= {500, 503}
    assert server.process.wait(PATIENCE) != 0
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive


def test_a_killed_server_leaves_no_child(start_server: Callable[..., Server]) -> None:
    server = start_server("--max-model-len", "512")
    children = server.children()
    assert children
    server.process.kill()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_plain_signal_ends_the_server_with_status_0(
    start_server: Callable[..., Server], number: signal.Signals
) -> None:
    server = start_server("--max-model-len", "512")
    children = server.children()
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 0
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert server.text().splitlines()[-1].endswith("running requests get 30 s"), "a clean end"


def test_two_servers_started_at_once_both_answer(start_server: Callable[..., Server]) -> None:
    pair = [start_server("--max-model-len", "512", wait=False) for _ in range(2)]
    for server in pair:
        server.wait_ready()
    for server in pair:
        body = {"prompt": "Hello", "max_tokens": 2}
        assert (
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE).status_code
            == 200
        )


@pytest.mark.parametrize(
    "arguments",
    [["--max-model-len", "0"], ["/no/such/model"], ["--no-such-flag"], ["--port", "x"],
     ["--scheduling-policy", "lottery"], ["--max-num-seqs", "-1"], ["--block-size", "7"],
     ["--tool-call-parser", "no-such-parser"], ["--reasoning-parser", "no-such-parser"],
     ["--override-generation-config", '{"temperature": 9}'],
     ["--ssl-keyfile", __file__, "--ssl-certfile", __file__],
     ["--ssl-keyfile", "/no/such/key", "--ssl-certfile", "/no/such/cert"]],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_setting_ends_in_one_line_and_status_2(arguments: list[str]) -> None:
    done = _serve(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_ends_in_one_line_and_status_2(server: Server) -> None:
    done = _serve("--host", "127.0.0.1", "--port", str(server.port))
    assert done.returncode == 2
    assert str(server.port) in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a server that cannot start; nothing of it may be left."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "serve", *arguments],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "HEADRACE_TEST_MARK": mark},
    )  # fmt: skip

    def is_marked(process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get("HEADRACE_TEST_MARK") == mark)
        except psutil.Error:
            return False

    wait_until(lambda: not any(map(is_marked, psutil.process_iter())))
    return done


def _texts(lines: list[str]) -> list[str]:
    """What the chunks of a stream say."""
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [choice["text"] for chunk in chunks for choice in chunk["choices"]]


def _aborts(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    lines = [x for x in text.splitlines() if x.startswith("headrace:request_success_total{")]
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if 'finished_reason="abort"' in x)
