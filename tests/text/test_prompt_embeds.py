"""From arrays of every kind to embeddings, and every array that is refused, by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from headrace.config.engine import ModelConfig
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput, PromptEmbeds
from headrace.text.renderer import Renderer

WIDTH = 6


def make_renderer(*, takes_embeds: bool = True) -> Renderer:
    model = ModelConfig(
        model="m", path="/", format="gguf", hf_config={"hidden_size": WIDTH}, model_type="llama",
        tokenizer=None, max_model_len=8, vocab_size=9, served_names=["m"],
        enable_prompt_embeds=takes_embeds,
    )  # fmt: skip
    return Renderer(None, model)


ROWS = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float16)
TENSOR = torch.from_numpy(ROWS.copy())


@pytest.mark.parametrize(
    "given",
    [
        ROWS, ROWS.astype(np.float32), ROWS.astype(np.float64), ROWS.astype(">f4"), ROWS[None],
        np.asfortranarray(ROWS), np.repeat(ROWS, 2, axis=0)[::2],
        TENSOR, TENSOR.float().requires_grad_(), TENSOR.double(), TENSOR[None],
        torch.nn.Parameter(TENSOR.float()),
    ],
    ids=lambda given: f"{type(given).__module__}-{given.dtype}-{list(given.shape)}",
)  # fmt: skip
def test_every_array_of_floats_is_taken_at_its_exact_value(given: Any) -> None:
    rendered = make_renderer().render_prompt({"prompt_embeds": given})
    expected = PromptEmbeds(3, WIDTH, ROWS.astype(np.float32).tobytes())
    assert rendered == EngineInput([0, 0, 0], prompt_embeds=expected)


def test_bfloat16_is_taken_at_its_exact_value() -> None:
    rounded = TENSOR.to(torch.bfloat16)
    rendered = make_renderer().render_prompt({"prompt_embeds": rounded})
    assert rendered.prompt_embeds is not None
    assert rendered.prompt_embeds.data == rounded.float().numpy().tobytes()


def test_text_and_salt_come_along() -> None:
    prompt: Any = {"prompt_embeds": ROWS, "prompt": "abc", "cache_salt": "s"}
    rendered = make_renderer().render_prompt(prompt)
    assert (rendered.prompt, rendered.cache_salt) == ("abc", "s")


def holed(value: float) -> Any:
    rows = ROWS.astype(np.float64)
    rows[1, 4] = value
    return rows


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ROWS[:, :5], r"must be \[tokens, 6\].*got \[3, 5\]"),
        (ROWS[0], r"got \[6\]"),
        (np.stack([ROWS, ROWS]), r"got \[2, 3, 6\]"),
        (ROWS[:0], "from 1 to 7 rows.*got 0"),
        (np.zeros((8, WIDTH)), "from 1 to 7 rows.*got 8"),
        (ROWS.astype(np.int32), "must hold floats, not int32"),
        (ROWS.astype(complex), "must hold floats, not complex128"),
        (ROWS.astype(object), "must hold floats, not object"),
        (TENSOR.int(), "must hold floats, not torch.int32"),
        (TENSOR.to("meta"), "cannot be read as a dense array"),
        (ROWS.tolist(), "must be an array of NumPy or PyTorch, not list"),
        ("AAAA", "not str"),
        ({}, "not dict"),
        (holed(math.nan), "got nan in row 1, column 4"),
        (holed(-math.inf), "got -inf in row 1, column 4"),
        (holed(1e39), "got 1e[+]39 in row 1, column 4"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_what_cannot_be_embeddings_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=f"prompt_embeds .*{said}") as caught:
        make_renderer().render_prompt({"prompt_embeds": given})
    assert caught.value.param == "prompt_embeds"


def test_tokens_and_embeddings_together_are_refused() -> None:
    prompt: Any = {"prompt_embeds": ROWS, "prompt_token_ids": [1]}
    with pytest.raises(ValidationError, match="not both"):
        make_renderer().render_prompt(prompt)


def test_an_engine_that_was_not_told_to_names_the_option() -> None:
    with pytest.raises(UnsupportedError, match="--enable-prompt-embeds") as caught:
        make_renderer(takes_embeds=False).render_prompt({"prompt_embeds": ROWS})
    assert caught.value.param == "prompt_embeds"


@pytest.mark.parametrize("key", ["encoder_prompt", "decoder_prompt"])
def test_prompts_for_encoder_and_decoder_name_the_way_out(key: str) -> None:
    prompt: Any = {key: "abc"}
    with pytest.raises(UnsupportedError, match=f"{key}: this model has a decoder only; give"):
        make_renderer().render_prompt(prompt)
