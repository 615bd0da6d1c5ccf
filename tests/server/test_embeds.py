"""The field prompt_embeds: which files are read, and that no other bytes ever are."""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from headrace.errors import ValidationError
from headrace.server.generation.embeds import EncodedEmbeds, decode_embeds
from headrace.text.renderer import Renderer
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine, make_config

URL = "/v1/completions"
WIDTH = 4
ROWS = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float16)


def npy(array: Any, *, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def safetensors(dtype: str, data: bytes, **changes: Any) -> bytes:
    entry = {"dtype": dtype, "shape": [3, WIDTH], "data_offsets": [0, len(data)], **changes}
    header = json.dumps({"__metadata__": {"a": "b"}, "x": entry}).encode()
    header += b" " * (128 - len(header))  # the length then begins like a pickle
    return len(header).to_bytes(8, "little") + header + data


def torch_file(*, is_zip: bool) -> bytes:
    file = io.BytesIO()
    torch.save(torch.from_numpy(ROWS), file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


def decode(data: bytes) -> Any:
    return decode_embeds(EncodedEmbeds(base64.b64encode(data).decode(), "prompt_embeds"))


BF16 = (ROWS.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
GOOD = {
    "npy f2": npy(ROWS),
    "npy f4": npy(ROWS.astype(np.float32)),
    "npy f8": npy(ROWS.astype(np.float64)),
    "npy fortran": npy(np.asfortranarray(ROWS)),
    "npy 2.0": npy(ROWS).replace(b"NUMPY\x01\x00v\x00", b"NUMPY\x02\x00v\x00\x00\x00"),
    "safetensors F16": safetensors("F16", ROWS.tobytes()),
    "safetensors F32": safetensors("F32", ROWS.astype(np.float32).tobytes()),
}


@pytest.mark.parametrize("name", GOOD)
def test_both_formats_are_read_at_their_exact_values(name: str) -> None:
    assert np.array_equal(decode(GOOD[name]).astype(np.float64), ROWS.astype(np.float64))


def test_bfloat16_is_widened() -> None:
    expected = (BF16.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(decode(safetensors("BF16", BF16.tobytes())), expected)


def huge_npy(shape: tuple[int, ...]) -> bytes:
    """A .npy file of a shape that numpy makes no array of, without data."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


BAD = {
    "torch zip": (torch_file(is_zip=True), "a pickle, which is never read here: send what numpy"),
    "torch old": (torch_file(is_zip=False), "a pickle, which is never read here"),
    "pickle": (pickle.dumps(ROWS), "a pickle, which is never read here"),
    "npy of objects": (npy(ROWS.astype(object), allow_pickle=True), r"must hold floats.*not '\|O'"),
    "npy of ints": (npy(ROWS.astype(np.int32)), "must hold floats"),
    "npy cut": (npy(ROWS)[:-1], "does not fit 23 bytes"),
    "npy too long": (npy(ROWS) + b"x", "does not fit 25 bytes"),
    "npy huge": (npy(ROWS).replace(b"(3, 4)", b"(3333,)"), "is damaged"),
    "npy negative": (npy(ROWS).replace(b"(3, 4)", b"(-3,-4"), "not a readable .npy"),
    "npy of code": (npy(ROWS).replace(b"{'descr'", b"[print()"), "not a readable .npy"),
    "npy magic only": (b"\x93NUMPY", "not a readable .npy"),
    "safetensors of ints": (safetensors("I32", ROWS.tobytes()), "must hold one of F32"),
    "safetensors cut": (safetensors("F16", ROWS.tobytes())[:-1], "offsets do not fit"),
    "safetensors shape": (safetensors("F16", ROWS.tobytes(), shape=[3, 5]), "is damaged"),
    "safetensors bad shape": (safetensors("F16", ROWS.tobytes(), shape="x"), "no usable shape"),
    "npy empty": (npy(np.zeros((0, 4), np.float32)), "holds no numbers"),
    "npy empty and huge": (huge_npy((0, 2**39, 2**39)), "holds no numbers"),
    "safetensors empty": (safetensors("F32", b"", shape=[0, 2**39, 2**39]), "holds no numbers"),
    "bfloat16 empty": (safetensors("BF16", b"", shape=[2, 0]), "holds no numbers"),
    "safetensors two": (
        (60).to_bytes(8, "little") + json.dumps({"a": {}, "b": {}}).ljust(60).encode(),
        "exactly one tensor",
    ),
    "text": (b"hello, this is a prompt", "neither a .npy file"),
    "nothing": (b"", "neither a .npy file"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_bytes_are_refused_by_name(name: str) -> None:
    data, said = BAD[name]
    with pytest.raises(ValidationError, match=f"prompt_embeds .*{said}") as caught:
        decode(data)
    assert caught.value.param == "prompt_embeds"


def test_what_is_no_base64_is_refused() -> None:
    for text in ("a", "####", "é", "AAA"):
        with pytest.raises(ValidationError, match="is not base64"):
            decode_embeds(EncodedEmbeds(text, "prompt_embeds"))


@pytest.mark.parametrize("source", ["npy f2", "safetensors F16"])
def test_damaged_files_give_an_array_or_a_refusal_and_nothing_else(source: str) -> None:
    rng = random.Random(1)
    for _ in range(2000):
        data = bytearray(GOOD[source])
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with suppress(ValidationError):
            assert decode(bytes(data)).nbytes <= 2 * len(data)


# The route


@pytest.fixture
def engine() -> FakeEngine:
    """One that takes embeddings, rendered by the real renderer."""
    engine = FakeEngine(enable_prompt_embeds=True, hf_overrides={"hidden_size": WIDTH})
    texts = engine.renderer

    class Both:
        def render_prompt(self, prompt: Any, **options: Any) -> Any:
            if isinstance(prompt, dict):
                return Renderer(None, engine.config.model).render_prompt(prompt, **options)
            return texts.render_prompt(prompt, **options)

    engine.renderer = Both()
    return engine


def encoded(array: Any = ROWS) -> str:
    return base64.b64encode(npy(array)).decode()


async def ask(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(URL, json={"max_tokens": 2, **body})


async def test_embeddings_reach_the_engine_before_other_prompts(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await ask(client, prompt_embeds=[encoded(), encoded(ROWS[:1])], prompt="Hi", n=2)
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(6))
    assert answer.json()["usage"]["prompt_tokens"] == 3 + 1 + 3
    given = [seen[1].prompt_embeds for seen in engine.seen]
    assert [None if one is None else one.num_tokens for one in given] == [3, 1, None]
    assert given[0] is not None
    assert given[0].data == ROWS.astype(np.float32).tobytes()


@pytest.mark.parametrize("prompt", [{}, {"prompt": None}, {"prompt": ""}, {"prompt": []}])
async def test_clients_that_must_send_a_prompt_may_send_an_empty_one(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: dict[str, Any]
) -> None:
    answer = await ask(client, prompt_embeds=encoded(), cache_salt="s", **prompt)
    assert answer.status_code == 200
    assert len(engine.seen) == 1
    assert engine.seen[0][1].cache_salt == "s"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt_embeds": 5}, 400, "prompt_embeds"),
        ({"prompt_embeds": []}, 400, "prompt_embeds"),
        ({"prompt_embeds": ""}, 400, "prompt_embeds"),
        ({"prompt_embeds": [encoded(), "####"]}, 400, "prompt_embeds.1"),
        ({"prompt_embeds": encoded(ROWS[:, :2])}, 400, "prompt_embeds"),
        ({"prompt_embeds": encoded(ROWS * np.nan)}, 400, "prompt_embeds"),
        ({"prompt_embeds": [encoded()] * 1025}, 400, "prompt_embeds"),
        ({"prompt_embeds": encoded(), "echo": True}, 400, "echo"),
        ({"prompt_embeds": encoded(), "prompt": 5}, 400, "prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_cannot_be_answered_is_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], status: int, param: str
) -> None:
    check_error(await ask(client, **body), status, param)
    assert not engine.seen


async def test_a_server_that_was_not_told_to_names_the_option(client_of: Any) -> None:
    assert not make_config().model.enable_prompt_embeds
    answer = await ask(client_of(FakeEngine()), prompt_embeds=encoded())
    check_error(answer, 400, "prompt_embeds")
    assert "--enable-prompt-embeds" in answer.json()["error"]["message"]
