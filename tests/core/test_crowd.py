"""Who will run side by side: by what requests say, by what others did, and by the room there is."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.crowd import RECENT_ANSWERS, Crowd
from headrace.core.request import Request
from headrace.messages.requests import EngineCoreRequest
from headrace.sampling_params import RepetitionDetectionParams
from tests.fakes import make_core_request

EOS = 0


def make_request(num_prompt_tokens: int, **fields: Any) -> Request:
    source: EngineCoreRequest = make_core_request("a", [1] * num_prompt_tokens, **fields)
    return Request(source, max_model_len=2000, seed=0, order=(0, 0.0, 0), queued_at=0.0, chain=None)


def size_of(crowd: Crowd, *, max_running: int = 100, num_blocks: int = 10_000) -> int:
    return crowd.size(max_running, num_blocks, 16)


@pytest.mark.parametrize(
    ("fields", "lasts"),
    [
        ({"max_tokens": 100}, True),
        ({"max_tokens": 100, "ignore_eos": True, "eos_token_id": EOS}, True),
        ({"max_tokens": 80}, True),
        ({"max_tokens": 79}, False),
        ({"max_tokens": 500, "eos_token_id": EOS}, False),
        ({"max_tokens": 500, "stop_token_ids": [5]}, False),
        ({"max_tokens": 500, "repetition_detection": RepetitionDetectionParams(5, 3, 3)}, False),
        ({"max_tokens": 500, "eos_token_id": EOS, "min_tokens": 80}, True),
    ],
)
def test_only_a_length_that_is_sure_counts_before_answers_are_known(
    fields: dict[str, Any], lasts: bool
) -> None:
    crowd = Crowd()
    crowd.join(make_request(100, **fields))
    assert size_of(crowd) == lasts


def test_what_three_of_four_answers_had_is_expected_of_the_next() -> None:
    crowd = Crowd()
    for number in range(RECENT_ANSWERS):
        crowd.join(make_request(100, max_tokens=500, eos_token_id=EOS))
        assert size_of(crowd) == 0
        crowd.note_answer(1 if number % 4 == 3 else 200)
    crowd.join(make_request(100, max_tokens=500, eos_token_id=EOS))
    crowd.join(make_request(100, max_tokens=50, eos_token_id=EOS))  # says it will be short
    assert size_of(crowd) == 1
    crowd.note_answer(1)
    crowd.note_answer(1)
    crowd.join(make_request(100, max_tokens=500, eos_token_id=EOS))
    assert size_of(crowd) == 1


def test_no_more_run_than_may_and_than_there_is_room_for() -> None:
    crowd = Crowd()
    requests = [make_request(100, max_tokens=100) for _ in range(50)]
    for request in requests:
        crowd.join(request)
    assert size_of(crowd) == 50
    assert size_of(crowd, max_running=20) == 20
    assert size_of(crowd, num_blocks=50 * 14) == 50
    assert size_of(crowd, num_blocks=50 * 13) == 0
    for request in requests:
        crowd.leave(request)
    assert set(crowd.debug_state().values()) == {0}
