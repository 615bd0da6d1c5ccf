"""Prompts that come as embeddings: what a step takes in place of rows of the model's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headrace.errors import ValidationError
from headrace.messages.step import NewRequest
from headrace.ops.ops import F32, GivenEmbeddings, StepInputs


class HasEmbeds(Protocol):
    """A request, as far as it matters here."""

    embeds: F32 | None


def take_embeds(new: NewRequest, hidden_size: int) -> F32 | None:
    """The embeddings of a new request as an array [num_prompt_tokens, hidden_size], if it has any.

    Raises:
        ValidationError: they are of another size.
    """
    given = new.prompt_embeds
    if given is None:
        return None
    shape = (new.num_prompt_tokens, hidden_size)
    if (given.num_tokens, given.width) != shape:
        raise ValidationError(
            f"prompt_embeds are [{given.num_tokens}, {given.width}], the model takes "
            f"[{shape[0]}, {shape[1]}] for this prompt",
            param="prompt_embeds",
        )
    return np.frombuffer(given.data, np.float32).reshape(shape)


def with_given(inputs: StepInputs, requests: Sequence[HasEmbeds]) -> StepInputs:
    """The inputs of a step with the embeddings of its prompt tokens; the same where it has none.

    Args:
        requests: of the step, in the order of `query_start_loc`.
    """
    rows: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    values: list[F32] = []
    for i, request in enumerate(requests):
        if request.embeds is None:
            continue
        first, end = int(inputs.query_start_loc[i]), int(inputs.query_start_loc[i + 1])
        position = int(inputs.positions[first])
        part = request.embeds[position : position + end - first]  # behind the prompt: empty
        if len(part):
            rows.append(np.arange(first, first + len(part), dtype=np.int32))
            values.append(part)
    if not rows:
        return inputs
    return replace(inputs, given=GivenEmbeddings(np.concatenate(rows), np.concatenate(values)))
