"""What a real answer says: the same streamed and whole, to the byte, whatever cuts it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PARIS = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
PARIS_TEXT = "The capital of France is Paris."
EMOJI = {"messages": [{"role": "user", "content": "Repeat: 日本語 naïve 👩‍👩‍👧 🎉🇯🇵 ñandú"}]}
STORY = (
    "The lighthouse stood at the end of a narrow spit of rock, half a mile from the village. " * 4
)


@pytest.fixture(scope="module")
def client(start_server: Callable[..., Server]) -> Iterator[httpx.Client]:
    """A client of one server, whose cache tells what it had."""
    server = start_server("--max-model-len", "1024", "--enable-prompt-tokens-details")
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


def whole(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    """The answer in one piece; greedy unless told otherwise."""
    answer = client.post(path, json={"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def frames(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of the answer as a stream, after the rules that every stream keeps."""
    answer = client.post(path, json={"temperature": 0, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    records = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    ended: set[int] = set()
    for choice in (choice for record in records for choice in record["choices"]):
        assert choice["index"] not in ended
        assert choice["finish_reason"] in (None, "stop", "length")
        if choice["finish_reason"] is not None:
            ended.add(choice["index"])
    assert ended == set(range(fields.get("n", 1)))
    return records


def deltas(records: list[dict[str, Any]], index: int = 0) -> list[str]:
    """What each chunk adds to the text of a choice."""
    choices = [c for record in records for c in record["choices"] if c["index"] == index]
    return [c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices]


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def both(client: httpx.Client, path: str, **fields: Any) -> tuple[str, str, int | str | None]:
    """Text, finish_reason and stop_reason, the same in both ways of asking."""
    [choice] = whole(client, path, **fields)["choices"]
    records = frames(client, path, **fields)
    last = records[-1]["choices"][0]
    assert "".join(deltas(records)) == text_of(choice)
    assert last["finish_reason"] == choice["finish_reason"]
    assert last["stop_reason"] == choice["stop_reason"]
    return text_of(choice), choice["finish_reason"], choice["stop_reason"]


def bytes_named(name: str) -> bytes:
    """The bytes of a token by its name in log-probabilities."""
    if not name.startswith("bytes:"):
        return name.encode()
    return bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))


# Text


def test_answer_cut_after_any_token_is_the_same_streamed_and_whole(client: httpx.Client) -> None:
    num_cut = 0
    for size in range(9, 22):
        text, reason, _ = both(client, CHAT, **EMOJI, max_tokens=size)
        assert reason == "length"
        assert "\ufffd" not in text[:-1]
        num_cut += text.endswith("\ufffd")
    assert num_cut > 3, "no answer was cut inside a character"
    streamed = deltas(frames(client, CHAT, **EMOJI, max_tokens=21))
    assert not any("\ufffd" in delta for delta in streamed[:-1])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bytes_of_the_chosen_tokens_are_the_text(client: httpx.Client, path: str) -> None:
    # Only pieces of emoji may be chosen: most tokens are a part of a character.
    prompt = EMOJI if path == CHAT else {"prompt": "a"}
    ids = client.post("/tokenize", json={"prompt": "👩‍👩‍👧日é"}).json()["tokens"]
    fields = {**prompt, "allowed_token_ids": ids, "temperature": 1, "seed": 3, "max_tokens": 40,
              "ignore_eos": True}  # fmt: skip
    asked = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    [choice] = whole(client, path, **fields, **asked)["choices"]
    both(client, path, **fields)
    if path == CHAT:
        content = choice["logprobs"]["content"]
        raw = b"".join(bytes(one["bytes"]) for one in content)
        names = [one["token"] for one in content]
        others = [other for one in content for other in one["top_logprobs"]]
        assert all(bytes(o["bytes"]) == bytes_named(o["token"]) for o in others)
    else:
        names = choice["logprobs"]["tokens"]
        raw = b"".join(bytes_named(name) for name in names)
    assert raw.decode(errors="replace") == text_of(choice)
    assert any(name.startswith("bytes:") for name in names)
    assert all(names)


def test_token_names_are_text_and_not_the_tokenizers_glyphs(client: httpx.Client) -> None:
    [choice] = whole(client, COMPLETIONS, prompt="Line one\n\n  two", echo=True, logprobs=3,
                     max_tokens=12)["choices"]  # fmt: skip
    tokens = choice["logprobs"]["tokens"]
    others = [name for top in choice["logprobs"]["top_logprobs"] if top for name in top]
    assert not any(glyph in name for name in tokens + others for glyph in "ĠĊĉ▁")
    assert any(name.startswith(" ") for name in others)
    assert "".join(tokens) == choice["text"]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["is Par"], "The capital of France "),
        (["e is P", "zzz"], "The capital of Franc"),
        (["aris."], "The capital of France is P"),
        (["capital", "cap"], "The "),
        (["The capital of France is Paris"], ""),
        (["France was"], PARIS_TEXT),  # a false start
        (["Paris!", "Paris.?"], PARIS_TEXT),
    ],
)
def test_stop_string_ends_the_text_before_it(
    client: httpx.Client, stop: list[str], text: str
) -> None:
    got, reason, matched = both(client, CHAT, **PARIS, stop=stop, max_tokens=20)
    assert (got, reason) == (text, "stop")
    assert (matched in stop) == (text != PARIS_TEXT)
    kept, _, _ = both(
        client, CHAT, **PARIS, stop=stop, max_tokens=20, include_stop_str_in_output=True
    )
    assert kept == (text if text == PARIS_TEXT else text + str(matched))


@pytest.mark.parametrize("included", [False, True])
def test_stop_token_is_named_and_has_no_text_unless_asked(
    client: httpx.Client, included: bool
) -> None:
    fields = {"prompt": "The capital of France is", "max_tokens": 8, "return_token_ids": True}
    [free] = whole(client, COMPLETIONS, **fields)["choices"]
    stop = free["token_ids"][1]
    text, reason, matched = both(
        client, COMPLETIONS, **fields, stop_token_ids=[stop], include_stop_str_in_output=included
    )
    assert (text, reason, matched) == (" Paris." if included else " Paris", "stop", stop)


def test_each_way_to_end_gives_its_reason(client: httpx.Client) -> None:
    assert both(client, CHAT, **PARIS, max_tokens=20) == (PARIS_TEXT, "stop", None)
    assert both(client, CHAT, **PARIS, max_tokens=20, stop="Paris")[1:] == ("stop", "Paris")
    assert both(client, CHAT, **PARIS, max_tokens=3)[1:] == ("length", None)


def test_answer_without_detokenizing_is_ids(client: httpx.Client) -> None:
    fields = {"prompt": "One, two,", "max_tokens": 4, "return_token_ids": True}
    [plain] = whole(client, COMPLETIONS, **fields)["choices"]
    [bare] = whole(client, COMPLETIONS, **fields, detokenize=False)["choices"]
    assert (bare["text"], bare["token_ids"]) == ("", plain["token_ids"])
    stopped, reason, _ = both(client, COMPLETIONS, **fields, detokenize=False,
                              stop_token_ids=plain["token_ids"][2:3])  # fmt: skip
    assert (stopped, reason) == ("", "stop")
    for stream in (False, True):
        body = {**fields, "detokenize": False, "stop": "x", "stream": stream}
        answer = client.post(COMPLETIONS, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 5e-324])
def test_tiny_temperature_is_greedy(client: httpx.Client, temperature: float) -> None:
    greedy = both(client, COMPLETIONS, prompt="Once upon a time", max_tokens=12)
    assert greedy[0]
    got = both(client, COMPLETIONS, prompt="Once upon a time", max_tokens=12,
               temperature=temperature)  # fmt: skip
    assert got == greedy


# Usage, and what the prompt becomes


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_counts_the_prompt_once_and_all_choices(client: httpx.Client, path: str) -> None:
    prompt = PARIS if path == CHAT else {"prompt": STORY}
    fields = {**prompt, "temperature": 1, "max_tokens": 5, "ignore_eos": True}
    one = whole(client, path, **fields)["usage"]
    three = whole(client, path, **fields, n=3)["usage"]
    options = {"include_usage": True}
    streamed = frames(client, path, **fields, n=3, stream_options=options)[-1]["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"] == streamed["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"] == 15
    assert three["total_tokens"] == three["prompt_tokens"] + 15 == streamed["total_tokens"]


def test_tokenize_gives_the_ids_the_engine_computes(client: httpx.Client) -> None:
    fields = {"max_tokens": 1, "return_token_ids": True}
    for prompt in ("Hello  world\n", "naïve 日本 👩‍👧", "<|im_start|>x"):
        for special in (True, False):
            asked = {"prompt": prompt, "add_special_tokens": special}
            ids = client.post("/tokenize", json=asked).json()["tokens"]
            [choice] = whole(client, COMPLETIONS, **asked, **fields)["choices"]
            assert choice["prompt_token_ids"] == ids
            assert client.post("/detokenize", json={"tokens": ids}).status_code == 200
    ids = client.post("/tokenize", json=PARIS).json()["tokens"]
    assert whole(client, CHAT, **PARIS, **fields)["prompt_token_ids"] == ids


def test_parts_and_string_are_the_same_prompt(client: httpx.Client) -> None:
    def ids(wrap: Callable[[str], Any]) -> list[int]:
        roles = ["system", "user", "assistant", "user", "tool"]
        messages = [{"role": role, "content": wrap(f"I am {role}.")} for role in roles]
        fields = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        found: list[int] = whole(client, CHAT, **fields)["prompt_token_ids"]
        return found

    assert ids(lambda text: text) == ids(lambda text: [{"type": "text", "text": text}])


def test_url_in_a_message_is_refused_and_never_asked_for(client: httpx.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        for part in ({"type": "image_url", "image_url": {"url": url}},
                     {"type": "audio_url", "audio_url": {"url": url}},
                     {"type": "video_url", "video_url": {"url": url}}):  # fmt: skip
            body = {"messages": [{"role": "user", "content": [part]}]}
            answer = client.post(CHAT, json=body)
            assert answer.status_code == 400
            assert part["type"] in answer.json()["error"]["message"]
        with pytest.raises(TimeoutError):
            listener.accept()


# The cache, and others beside


def test_echoed_prompt_has_the_same_logprobs_again_and_again(client: httpx.Client) -> None:
    fields = {"prompt": STORY, "echo": True, "logprobs": 1, "max_tokens": 0}
    bodies = [whole(client, COMPLETIONS, **fields, cache_salt="echo") for _ in range(3)]
    whole(client, COMPLETIONS, prompt=STORY, max_tokens=1, cache_salt="echo")
    bodies.append(whole(client, COMPLETIONS, **fields, cache_salt="echo"))
    [record] = frames(client, COMPLETIONS, **fields, cache_salt="echo")
    choices = [body["choices"][0] for body in bodies] + record["choices"]
    first = choices[0]["logprobs"]
    assert all(choice["logprobs"] == first for choice in choices)
    assert {(choice["text"], choice["finish_reason"]) for choice in choices} == {(STORY, "length")}
    num = bodies[0]["usage"]["prompt_tokens"]
    assert bodies[0]["usage"]["completion_tokens"] == 0
    assert [len(values) for values in first.values()] == [num] * 4
    assert (first["token_logprobs"][0], first["top_logprobs"][0]) == (None, None)
    assert all(value <= 0 for value in first["token_logprobs"][1:])


def test_prefix_is_shared_only_under_the_same_salt(client: httpx.Client) -> None:
    def cached(salt: str | None) -> int:
        usage = whole(client, COMPLETIONS, prompt=STORY + "!", max_tokens=1, cache_salt=salt)
        num: int = usage["usage"]["prompt_tokens_details"]["cached_tokens"]
        return num

    assert [cached("tenant-a"), cached("tenant-b"), cached("tenant-A")] == [0, 0, 0]
    assert cached("tenant-a") >= 16
    for salt in ("", 5, None):
        body = {"prompt": "a", "cache_salt": salt, "max_tokens": 1}
        assert client.post(COMPLETIONS, json=body).status_code == (200 if salt is None else 400)


def test_seeded_request_is_the_same_alone_and_in_company(client: httpx.Client) -> None:
    mine = {"prompt": STORY, "temperature": 0.8, "seed": 42, "max_tokens": 24, "logprobs": 1,
            "ignore_eos": True}  # fmt: skip
    others = [{"prompt": f"{i} apples", "temperature": 1, "max_tokens": 4 + 3 * i,
               "seed": i if i % 2 else None} for i in range(12)]  # fmt: skip
    alone = whole(client, COMPLETIONS, **mine)["choices"]
    with ThreadPoolExecutor(16) as pool:
        crowd = [pool.submit(whole, client, COMPLETIONS, **body) for body in others[:6]]
        again = [pool.submit(whole, client, COMPLETIONS, **mine) for _ in range(2)]
        crowd += [pool.submit(whole, client, COMPLETIONS, **body) for body in others[6:]]
        assert [one.result()["choices"] for one in again] == [alone] * 2
        assert all(one.result()["choices"] for one in crowd)
