"""A real server under keys, a root path and a full queue, and under requests made to hurt it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import Server
from tests.waiting import PATIENCE, wait_until

URL = "/v1/completions"
QUEUE = 6
KEYS = ["kéy-one", "key-two"]
RIGHT = {"Authorization": b"Bearer key-two"}
JSON = {**RIGHT, "Content-Type": "application/json"}
LONG = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
ORIGIN = "https://a.example"


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(
        "--max-model-len", "1024", "--max-num-queued-reqs", str(QUEUE), "--api-key", *KEYS,
        "--root-path", "/api", "--allowed-origins", f'["{ORIGIN}"]', "--max-body-size", "6000000",
        "--enable-admin-routes",
    )  # fmt: skip


@pytest.fixture
def client(server: Server) -> Any:
    with httpx.Client(base_url=server.url, timeout=2 * PATIENCE, headers=RIGHT) as made:
        yield made


def error_of(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The one error body, with one of these statuses."""
    assert answer.status_code in statuses, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["code"] == answer.status_code
    assert error["message"]
    return error


class Stream:
    """A stream read by a thread of its own."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.times: list[float] = []
        self.text = ""
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        wait_until(lambda: bool(self.times) or not self.thread.is_alive())
        assert self.times

    def _read(self) -> None:
        with self.client.stream("POST", URL, json={**LONG, "stream": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.times.append(time.monotonic())
                    self.text += json.loads(line[6:])["choices"][0]["text"]

    def finish(self) -> str:
        self.thread.join(2 * PATIENCE)
        assert not self.thread.is_alive()
        return self.text


def test_wrong_keys_are_refused_everywhere_and_no_key_is_logged(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for value in (b"", b"Bearer", b"Bearer k", b"Bearer key-tw", b"Bearer key-two2",
                      b"Bearer \xff", "Bearer kéy-one".encode("latin-1"), b"Basic key-two",
                      b"key-two"):  # fmt: skip
            error_of(client.get("/v1/models", headers={"Authorization": value}), 401)
        for key in KEYS:
            headers = {"Authorization": b"Bearer " + key.encode()}
            assert client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/v1/models", "/api/v1/models", "//v1/models", "/api//v1/models",
                     "/api/v1/models/", "/API/v1/models", "/v1%2fmodels", "/api%2fv1/models",
                     "/metrics", "/openapi.json", "/tokenize", "/health/", "//health"):  # fmt: skip
            error_of(client.get(path), 401, 404)
        for path in ("/health", "/api/health", "/ping", "/version"):
            assert client.get(path).status_code == 200
    assert not any(key in server.text() for key in KEYS)


def test_preflight_passes_without_a_key_and_the_request_does_not(server: Server) -> None:
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization"}  # fmt: skip
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        answer = client.options(URL, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.headers["access-control-allow-headers"] == "authorization"
        refused = client.post(URL, json=LONG, headers={"Origin": ORIGIN})
        error_of(refused, 401)
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        assert "access-control-allow-credentials" not in refused.headers


@pytest.mark.parametrize(
    ("fields", "num_each"),
    [({}, 1), ({"stream": True}, 1), ({"n": 3}, 3), ({"prompt": ["a", "b", "c"]}, 3),
     ({"prompt": "word " * 800}, 1), ({"n": QUEUE + 1}, QUEUE + 1)],
    ids=["plain", "streamed", "n", "list", "long", "n above the limit"],
)  # fmt: skip
def test_more_than_the_queue_holds_is_refused_at_once(
    client: httpx.Client, fields: dict[str, Any], num_each: int
) -> None:
    body = {**LONG, "max_tokens": 60, **fields}
    num = 12
    num_served = QUEUE // num_each
    assert client.post("/pause").status_code == 200  # nobody is served until all have come
    with ThreadPoolExecutor(num) as pool:
        asked = [pool.submit(client.post, URL, json=body) for _ in range(num)]
        try:
            wait_until(lambda: sum(one.done() for one in asked) >= num - num_served)
        finally:
            assert client.post("/resume").status_code == 200
    answers = [one.result() for one in asked]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(served) == num_served
    for answer in served:
        assert '"length"' in answer.text
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == num - len(served)
    for answer in refused:
        error_of(answer, 429, 503)
        assert int(answer.headers["retry-after"]) >= 1
    assert client.post(URL, json={**LONG, "max_tokens": 2}).status_code == 200


NUMBERS = [str(i) for i in range(100_000)]
HUGE: list[tuple[str, bytes, tuple[int, ...]]] = [
    ("text", b'{"prompt": "' + b"word " * 1_000_000 + b'"}', (400,)),
    ("one word", b'{"prompt": "' + b"x" * 5_000_000 + b'"}', (400,)),
    ("spaces", b'{"prompt": "' + b" " * 5_000_000 + b'"}', (400,)),
    ("ids", b'{"prompt": [' + b"1, " * 1_500_000 + b"1]}", (400,)),
    ("prompts", b'{"prompt": [' + b'"a", ' * 1_000_000 + b'"a"]}', (400,)),
    ("n", b'{"prompt": "a", "n": 1000000000}', (400,)),
    ("best of two lies", b'{"prompt": ["a", "b"], "n": 4096}', (400,)),
    ("number", b'{"prompt": "a", "logit_bias": {"5": ' + b"9" * 400 + b"}}", (400,)),
    ("longer number", b'{"prompt": [' + b"9" * 100_000 + b"]}", (400,)),
    ("brackets", b'{"prompt": ' + b"[" * 3_000 + b"]" * 3_000 + b"}", (400,)),
    ("more brackets", b'{"prompt": ' + b"[" * 100_000, (400,)),
    ("objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, (400,)),
    ("fields", json.dumps({"prompt": "", **dict.fromkeys(NUMBERS, 0)}).encode(), (400,)),
    ("stops", json.dumps({"prompt": "a", "stop": ["x"] * 100_000}).encode(), (400,)),
    ("bad words", json.dumps({"prompt": "a", "bad_words": NUMBERS}).encode(), (400,)),
    ("body", b" " * 6_000_001, (413,)),
]


def test_requests_made_to_cost_much_are_refused_while_streams_flow(
    server: Server, client: httpx.Client
) -> None:
    undisturbed = Stream(client).finish()
    front, core = psutil.Process(server.process.pid), server.core()

    def used() -> float:
        """Seconds of processors the front has used: what it takes on a machine with time for it."""
        times = front.cpu_times()
        return times.user + times.system

    core_before = core.memory_info().rss
    stream = Stream(client)
    slowest: dict[str, float] = {}
    with ThreadPoolExecutor(1) as pool:
        for name, body, statuses in HUGE:
            begin = used()
            asked = pool.submit(client.post, URL, content=body, headers=JSON)
            while not asked.done():
                before = used()
                assert client.get("/health").status_code == 200
                slowest[name] = max(slowest.get(name, 0), used() - before)
            error_of(asked.result(), *statuses)
            assert used() - begin < 5, name
            if not stream.thread.is_alive():
                assert stream.finish() == undisturbed
                stream = Stream(client)
    assert stream.finish() == undisturbed
    assert max(slowest.values()) < 0.5, slowest
    assert core.memory_info().rss - core_before < 8 << 20, "the core took in what was refused"
    # What the front keeps after 5 MB bodies is its allocator's: a second round adds little.
    level = front.memory_info().rss
    for _, body, statuses in HUGE:
        error_of(client.post(URL, content=body, headers=JSON), *statuses)
    assert front.memory_info().rss - level < 64 << 20


def test_prompt_too_long_is_told_alike_streamed_or_not(client: httpx.Client) -> None:
    for prompt in ("word " * 1100, [5] * 1024, [[1], [5] * 5000]):
        one, two = (client.post(URL, json={"prompt": prompt, "stream": s}) for s in (True, False))
        assert error_of(one, 400)["param"] == "prompt"
        assert one.headers["content-type"] == "application/json"
        assert one.content == two.content
