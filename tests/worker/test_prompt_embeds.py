"""Which rows of a step come from a prompt's embeddings, chunk by chunk and after a preemption."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ValidationError
from headrace.inputs import PromptEmbeds
from headrace.messages.step import CachedRequest, NewRequest, SchedulerOutput
from headrace.ops.ops import GivenEmbeddings
from headrace.sampling_params import SamplingParams
from headrace.worker.input_batch import InputBatch
from headrace.worker.prompt_embeds import take_embeds
from headrace.worker.sampler import Sampler

WIDTH = 3


def embeds(num_tokens: int, first: float = 0.0) -> PromptEmbeds:
    """Row i is full of first + i."""
    rows = np.repeat(first + np.arange(num_tokens, dtype=np.float32), WIDTH)
    return PromptEmbeds(num_tokens, WIDTH, rows.tobytes())


def new(
    request_id: str,
    given: PromptEmbeds | None,
    num_prompt_tokens: int,
    *,
    answer: tuple[int, ...] = (),
    computed: int = 0,
    params: SamplingParams | None = None,
) -> NewRequest:
    tokens = [0 if given else 7] * num_prompt_tokens
    return NewRequest(request_id, [*tokens, *answer], num_prompt_tokens,
                      params or SamplingParams(), [], 1, [0, 1, 2, 3], computed,
                      prompt_embeds=given)  # fmt: skip


class Rig:
    """An input batch, told one order after the other."""

    def __init__(self) -> None:
        self.batch = InputBatch(max_num_seqs=4, max_model_len=32, max_num_tokens=64, block_size=8,
                                vocab_size=50, hidden_size=WIDTH)  # fmt: skip
        self.errors: dict[str, str] = {}

    def step(
        self,
        counts: dict[str, int],
        added: list[NewRequest] | None = None,
        known: dict[str, int] | None = None,
        finished: list[str] | None = None,
    ) -> GivenEmbeddings | None:
        """The embeddings of a step. `known`: request -> tokens computed before."""
        cached = [CachedRequest(i, [], at) for i, at in (known or {}).items()]
        order = SchedulerOutput(added or [], cached, counts, sum(counts.values()), finished or [])
        self.errors = self.batch.apply(order)
        return self.batch.prepare(counts).inputs.given


def told(given: GivenEmbeddings | None) -> dict[int, float]:
    """Row of the step -> the number it is full of."""
    if given is None:
        return {}
    assert given.values.shape == (len(given.rows), WIDTH)
    assert (given.values == given.values[:, :1]).all()
    return dict(zip(given.rows.tolist(), given.values[:, 0].tolist(), strict=True))


def test_a_prompt_in_pieces_gets_each_row_once_and_answers_none() -> None:
    rig = Rig()
    assert told(rig.step({"a": 2}, [new("a", embeds(5), 5)])) == {0: 0.0, 1: 1.0}
    assert told(rig.step({"a": 3}, known={"a": 2})) == {0: 2.0, 1: 3.0, 2: 4.0}
    rig.batch.append_token(rig.batch.rows["a"], 9)
    assert rig.step({"a": 1}, known={"a": 5}) is None


def test_requests_with_tokens_keep_their_rows() -> None:
    rig = Rig()
    added = [new("t", None, 3), new("a", embeds(2, 10), 2), new("b", embeds(2, 20), 2)]
    given = rig.step({"t": 3, "a": 2, "b": 1}, added)
    assert told(given) == {3: 10.0, 4: 11.0, 5: 20.0}


def test_after_a_preemption_only_the_prompt_is_given() -> None:
    rig = Rig()
    assert told(rig.step({"a": 5}, [new("a", embeds(3), 3, answer=(8, 9))])) == {
        0: 0.0, 1: 1.0, 2: 2.0,
    }  # fmt: skip
    # And again, with a cached block, which ends behind the prompt.
    assert rig.step({"a": 2}, [new("a", embeds(8), 8, answer=(8, 9), computed=8)], None, ["a"]) is (
        None
    )


def test_steps_look_for_none_when_nobody_has_any_more() -> None:
    rig = Rig()
    rig.step({"a": 2}, [new("a", embeds(2), 2)])
    assert rig.step({"t": 2}, [new("t", None, 2)], finished=["a"]) is None
    assert rig.batch._num_with_embeds == 0


def test_the_zeros_of_such_a_prompt_are_no_tokens_for_the_penalty() -> None:
    rig = Rig()
    params = SamplingParams(repetition_penalty=2.0, temperature=0.0)
    rig.step({"a": 2}, [new("a", embeds(2), 2, params=params)])
    logits = np.zeros((1, 50), np.float32)
    logits[0, 0], logits[0, 1] = 3.0, 2.0
    state = rig.batch.rows["a"].sampling
    assert Sampler(50, 1).sample(logits, [state]).token_ids == [0]


@pytest.mark.parametrize("given", [embeds(3), PromptEmbeds(2, WIDTH + 1, bytes(8 * (WIDTH + 1)))])
def test_embeddings_of_another_size_fail_the_request_alone(given: PromptEmbeds) -> None:
    with pytest.raises(ValidationError, match=r"the model takes \[2, 3\]"):
        take_embeds(new("a", given, 2), WIDTH)
    batch = Rig().batch
    order = SchedulerOutput([new("a", given, 2)], [], {"a": 2}, 2, [])
    assert "prompt_embeds" in batch.apply(order)["a"]
    assert not batch.rows
