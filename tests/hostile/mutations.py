"""Malformed requests, as bytes for a socket: the same ones for the same seed."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/tokenize",
    "/detokenize", "/invocations", "/v1/completions/render", "/v1/chat/completions/render",
)  # fmt: skip
HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, list[dict[str, Any]]] = {
    "completions": [
        {"prompt": "Hi", "max_tokens": 2, "temperature": 0},
        {"prompt": ["a", [1, 2]], "max_tokens": 1, "n": 2, "logprobs": 1, "echo": True},
        {"prompt": "Hi", "max_tokens": 2, "stream": True, "stop": ["x"], "logit_bias": {"5": 1}},
    ],
    "chat": [
        {"messages": HI, "max_tokens": 2},
        {"messages": HI, "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "stream": True,
         "stream_options": {"include_usage": True}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
         "max_tokens": 1, "response_format": {"type": "json_object"}},
    ],
    "batch": [{"messages": [HI, HI], "max_tokens": 1}],
    "tokenize": [{"prompt": "Hi"}, {"messages": HI}],
    "detokenize": [{"tokens": [1, 2, 3]}],
}  # fmt: skip
FIELDS = (
    "n", "stop", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens",
    "logprobs", "top_logprobs", "prompt_logprobs", "logit_bias", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "stop_token_ids", "ignore_eos", "bad_words",
    "allowed_token_ids", "truncate_prompt_tokens", "truncation_side", "priority", "request_id",
    "cache_salt", "response_format", "structured_outputs", "stream", "stream_options", "echo",
    "suffix", "best_of", "model", "messages", "prompt", "tools", "tool_choice",
    "chat_template", "chat_template_kwargs", "documents", "continue_final_message",
    "add_generation_prompt", "reasoning_effort", "use_beam_search", "length_penalty",
    "logprob_token_ids", "vllm_xargs", "repetition_detection", "thinking_token_budget",
    "deadline_ms", "max_queue_ms", "stream_interval", "prompt_embeds", "tokens", "detokenize",
    "return_token_ids", "skip_special_tokens", "max_completion_tokens", "user", "metadata",
    "parallel_tool_calls", "functions", "service_tier", "nonsense",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 5e-324,
    "", "a", "\0", "\ud83d\ude00", "x" * 5000, "-1", "{{ 7 * 7 }}", "(a+)+$", [], [[]], [None],
    [1, "a"], [-1], [2**40], ["a"] * 50, {}, {"": None}, {"a": {"b": [1]}}, {"-1": 1},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}, {"regex": "(a|b)*c{9999}"},
    {"json": {"type": "object", "properties": {"a": {"type": "nothing"}}}}, {"choice": []},
    {"grammar": "start: ("}, {"include_usage": 5}, [{"role": "user"}], [{"role": 5, "content": 5}],
    [{"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}],
)  # fmt: skip


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if not any(one.lower().startswith("content-type") for one in headers):
        lines.append("Content-Type: application/json")
    if not any(one.lower().startswith(("content-length", "transfer-")) for one in headers):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def a_body(rng: random.Random, path: str) -> dict[str, Any]:
    """A sound body for a path."""
    kind = path.replace("/render", "").rsplit("/", 1)[1]
    if kind == "completions":
        kind = "chat" if "chat" in path else "completions"
    return dict(rng.choice(BODIES.get(kind, BODIES["completions"] + BODIES["chat"])))


def hostile_field(rng: random.Random) -> bytes:
    """JSON with one to three fields of the wrong type or size."""
    path = rng.choice(PATHS)
    body = a_body(rng, path)
    for _ in range(rng.randint(1, 3)):
        body[rng.choice(FIELDS)] = rng.choice(VALUES)
    body.setdefault("max_tokens", 2)
    strict = ("X-Strict: 1",) if rng.random() < 0.1 else ()
    return request(path, json.dumps(body).encode(), *strict)


def broken_json(rng: random.Random) -> bytes:
    """JSON that was cut, flipped, doubled or stuffed."""
    path = rng.choice(PATHS)
    body = bytearray(json.dumps(a_body(rng, path)).encode())
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(body) + 1)
        match rng.randrange(4):
            case 0:
                del body[place:]
            case 1 if body:
                body[min(place, len(body) - 1)] ^= 1 << rng.randrange(8)
            case 2:
                body[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
            case _:
                body[place:place] = rng.choice(
                    (b"NaN", b"Infinity", b"\\ud800", b"[" * 200, b'{"a":' * 200, b"1" * 5000,
                     b"\xff\xfe", b"\0", b'"a":1,"a":2,')
                )  # fmt: skip
    return request(path, bytes(body))


def odd_http(rng: random.Random) -> bytes:
    """A request that is sound JSON in a frame that is not."""
    path = rng.choice(PATHS)
    body = json.dumps(a_body(rng, path)).encode()
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: request(path, body, method=rng.choice(("GET", "PUT", "BREW", "TRACE", "DELETE"))),
        lambda: request(path + rng.choice(("/", "//", "/..%2f", "%00", "?a=%ff", "/x")), body),
        lambda: request("/" + "a" * rng.randint(1, 90_000), b""),
        lambda: request(path, body, f"Content-Length: {len(body) - 3}"),
        lambda: request(path, body, "Content-Length: -5"),
        lambda: request(path, body, "Content-Length: 99999999999999999999"),
        lambda: request(path, body, "Transfer-Encoding: chunked"),
        lambda: request(path, b"5\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        lambda: request(path, body, f"Content-Encoding: {rng.choice(('gzip', 'br', 'x'))}"),
        lambda: request(path, gzip.compress(body)[: rng.randint(1, 60)], "Content-Encoding: gzip"),
        lambda: request(path, body, f"Content-Type: {rng.choice(('text/plain', '', 'a/b;' * 9))}"),
        lambda: request(path, body, *(f"X-{i}: {i}" for i in range(rng.randint(200, 400)))),
        lambda: request(path, body, "X-Long: " + "a" * rng.randint(1000, 100_000)),
        lambda: request(path, body, "X-Request-Id: " + "\x7f" * 3, "X-Headrace-Priority: x"),
        lambda: request(path, body, "Authorization: Bearer " + "k" * 2000),
        lambda: request(path, body, "Expect: 100-continue"),
        lambda: request(path, body, "Upgrade: websocket", "Connection: upgrade",
                        "Sec-WebSocket-Key: a", "Sec-WebSocket-Version: 13", method="GET"),
    )  # fmt: skip
    return rng.choice(kinds)()


def noise(rng: random.Random) -> bytes:
    """What is no HTTP, or was cut."""
    match rng.randrange(3):
        case 0:
            return rng.randbytes(rng.randint(1, 400))
        case 1:
            whole = hostile_field(rng)
            return whole[: rng.randrange(len(whole))]
        case _:
            whole = bytearray(hostile_field(rng))
            for _ in range(rng.randint(1, 5)):
                whole[rng.randrange(min(len(whole), 120))] = rng.randrange(256)
            return bytes(whole)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    hostile_field, hostile_field, hostile_field, broken_json, broken_json, odd_http, noise,
)  # fmt: skip


def malformed(seed: int) -> bytes:
    """The request of this number."""
    rng = random.Random(seed)
    return rng.choice(KINDS)(rng)
