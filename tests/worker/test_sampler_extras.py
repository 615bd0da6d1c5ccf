"""Tokens whose log-probabilities were asked for, custom processors, and the budget for thinking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError, ValidationError
from headrace.import_path import import_path_of
from headrace.logits_processor import load_logits_processors
from headrace.messages.step import NewRequest, SchedulerOutput
from headrace.sampling_params import SamplingParams
from headrace.worker.input_batch import InputBatch
from headrace.worker.sampler import Sampler
from headrace.worker.sampling_state import SamplingState
from headrace.worker.thinking import ThinkingBudget
from tests.oracles.sampler import log_softmax

SIZE = 50
START, END = 40, 41


@pytest.fixture
def logits() -> Any:
    return np.random.default_rng(5).normal(size=(1, SIZE)).astype(np.float32)


def state(processors: Sequence[Any] = (), prompt: Sequence[int] = (1,), **params: Any) -> Any:
    return SamplingState(
        SamplingParams(**{"temperature": 0.0, **params}), 0, [], prompt, SIZE, processors=processors
    )


def sample(logits: Any, row: SamplingState) -> Any:
    return Sampler(SIZE, 1).sample(logits.copy(), [row])


# Tokens that were asked for


@pytest.mark.parametrize("logprobs", [None, 3])
def test_asked_for_tokens_are_reported_behind_the_chosen_one(logits: Any, logprobs: Any) -> None:
    row = state(logprob_token_ids=[7, 0, 49], logprobs=logprobs, logit_bias={7: -50})
    result = sample(logits, row)
    [record] = result.logprobs
    best = int(np.argmax(logits))
    assert record is not None
    assert record.token_ids == [best, 7, 0, 49]
    assert np.allclose(record.logprobs, log_softmax(logits[0])[[best, 7, 0, 49]], atol=1e-5)
    assert record.rank == 1


def test_asked_for_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValidationError, match="logprob_token_ids"):
        state(logprob_token_ids=[SIZE])


# Custom processors


def favour(output: Sequence[int], row: Any) -> None:
    row[10 + len(output)] = 100.0


def test_processor_changes_the_choice_and_sees_the_output(logits: Any) -> None:
    row = state([favour])
    for expected in (10, 11, 12):
        [token_id] = sample(logits, row).token_ids
        assert token_id == expected
        row.append(token_id)


def test_processor_may_return_another_array(logits: Any) -> None:
    assert sample(logits, state([lambda output, row: -row])).token_ids == [int(np.argmin(logits))]


def test_processors_come_in_order_and_before_masks(logits: Any) -> None:
    def undo(output: Sequence[int], row: Any) -> None:
        row[10] = -100.0

    best = int(np.argmax(logits))
    assert sample(logits, state([favour, undo])).token_ids == [best]
    assert sample(logits, state([favour], allowed_token_ids=[3, 4])).token_ids[0] in (3, 4)


def test_logprobs_stay_those_of_the_model(logits: Any) -> None:
    for params in ({"logprobs": 2}, {"logprob_token_ids": [8]}):
        [record] = sample(logits, state([favour], **params)).logprobs
        expected = log_softmax(logits[0])
        assert record is not None
        assert record.token_ids[0] == 10
        assert np.allclose(record.logprobs, expected[record.token_ids], atol=1e-5)
        assert record.rank == 1 + int((logits[0] > logits[0, 10]).sum())


def test_processor_that_fails_ends_its_own_row_only(logits: Any) -> None:
    def broken(output: Sequence[int], row: Any) -> None:
        raise RuntimeError("no idea")

    def wrong_shape(output: Sequence[int], row: Any) -> Any:
        return np.zeros(3, np.float32)

    rows = [state([broken]), state(), state([wrong_shape])]
    result = Sampler(SIZE, 1).sample(np.repeat(logits, 3, axis=0), rows)
    assert set(result.errors) == {0, 2}
    assert "no idea" in result.errors[0]
    assert result.token_ids[1] == int(np.argmax(logits))


class Favour:
    """Raises the token that a request names."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if (params.extra_args or {}).get("favour") == "bad":
            raise ValueError("favour must be a token id")

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        token_id = (params.extra_args or {}).get("favour")
        if token_id == "fail":
            raise RuntimeError("no such favour")
        if token_id is None:
            return None
        return lambda output, row: row.__setitem__(token_id, 100.0)


def new_request(request_id: str, **params: Any) -> NewRequest:
    return NewRequest(request_id, [1], 1, SamplingParams(**params), [], 0, [0], 0)


def test_processors_of_an_engine_take_the_requests_that_ask() -> None:
    batch = InputBatch(
        max_num_seqs=4, max_model_len=16, max_num_tokens=8, block_size=8, vocab_size=SIZE,
        logits_processors=[Favour(None)],
    )  # fmt: skip
    new = [
        new_request("a", extra_args={"favour": 6}),
        new_request("b"),
        new_request("c", extra_args={"favour": "fail"}),
    ]
    errors = batch.apply(SchedulerOutput(new, [], {"a": 1, "b": 1}, 2, []))
    assert [len(batch.rows[name].sampling.processors) for name in "ab"] == [1, 0]
    assert set(errors) == {"c"}
    assert "no such favour" in errors["c"]


def test_processors_are_found_by_path_in_either_spelling() -> None:
    for path in (f"{__name__}:Favour", f"{__name__}.Favour"):
        assert [kind.__name__ for kind in load_logits_processors([path])] == ["Favour"]
    assert import_path_of("logits_processors", Favour) == f"{__name__}:Favour"


@pytest.mark.parametrize(
    "path", ["nowhere:At", "headrace:Missing", "json:loads", "", "x", "headrace.errors:shown", ":a"]
)
def test_path_that_leads_to_no_processor_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="logits_processors"):
        load_logits_processors([path])


def test_class_that_has_no_path_is_refused() -> None:
    class Local:
        pass

    Main = type("Main", (), {"__module__": "__main__"})
    for kind in (Local, Main, 5):
        with pytest.raises(ValueError, match="logits_processors"):
            import_path_of("logits_processors", kind)


# Thinking


def think(budget: int, script: Sequence[int], prompt: Sequence[int] = (1,)) -> list[int]:
    """The tokens of a model that wants to say the script, forced ones in between."""
    row = state(
        prompt=prompt, thinking_token_budget=budget, thinking_token_ids=(START, END),
        allowed_token_ids=[*range(END), *range(END + 1, SIZE)],
    )  # fmt: skip
    wanted, said = list(script), []
    while wanted:
        logits = np.zeros((1, SIZE), np.float32)
        logits[0, wanted[0]] = 10.0
        [token_id] = sample(logits, row).token_ids
        if token_id == wanted[0]:
            wanted.pop(0)
        said.append(token_id)
        row.append(token_id)
    return said


def test_thought_over_its_budget_is_closed() -> None:
    assert think(2, [5, START, 6, 7, 8, 9]) == [5, START, 6, 7, END, 8, 9]


def test_budget_is_one_for_all_thoughts() -> None:
    assert think(2, [START, 6, 7, 8, START, 9]) == [START, 6, 7, END, 8, START, END, 9]


def test_thought_opened_by_the_prompt_counts_from_the_answer_on() -> None:
    assert think(1, [6, 7], prompt=[START, 3, 3]) == [6, END, 7]
    assert think(0, [6, 7], prompt=[START]) == [END, 6, 7]
    assert think(0, [6, 7], prompt=[START, 3, END]) == [6, 7]


def test_thought_within_its_budget_is_left_alone() -> None:
    budget = ThinkingBudget(3, START, END, [])
    for token_id in (START, 1, 2, END, 3, 4, 5):
        budget.append(token_id)
        assert not budget.must_end


def test_resumed_request_goes_on_with_its_budget() -> None:
    params = SamplingParams(thinking_token_budget=2, thinking_token_ids=(START, END))
    row = SamplingState(params, 0, [], [1], SIZE, output_token_ids=[START, 5, 6])
    assert sample(np.zeros((1, SIZE), np.float32), row).token_ids == [END]
