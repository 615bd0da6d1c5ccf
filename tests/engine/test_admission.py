"""The queue limits, and the time after which it is worth trying again."""

import pytest

from headrace.config.engine import FrontConfig
from headrace.engine.admission import MAX_RETRY_SECONDS, Admission
from headrace.errors import AdmissionError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_check_without_limits_lets_all_in() -> None:
    Admission(FrontConfig()).check(10**6, 10**6, 10**9)


@pytest.mark.parametrize(
    ("limit", "num_new", "num_unfinished", "is_allowed"),
    [(4, 1, 3, True), (4, 1, 4, False), (4, 2, 3, False), (4, 4, 0, True), (4, 5, 0, False),
     (0, 1, 0, False)],
)  # fmt: skip
def test_check_counts_requests_and_all_of_n(
    limit: int, num_new: int, num_unfinished: int, is_allowed: bool
) -> None:
    admission = Admission(FrontConfig(max_num_queued_reqs=limit))
    if is_allowed:
        admission.check(num_new, num_unfinished, 0)
        return
    with pytest.raises(AdmissionError) as caught:
        admission.check(num_new, num_unfinished, 0)
    assert caught.value.reason == "max_num_queued_reqs"
    assert caught.value.retry_after >= 1.0


@pytest.mark.parametrize(("tokens", "is_allowed"), [(99, True), (100, False), (500, False)])
def test_check_looks_at_the_tokens_waiting_now(tokens: int, is_allowed: bool) -> None:
    admission = Admission(FrontConfig(max_num_queued_tokens=100))
    if is_allowed:
        admission.check(1, 5, tokens)
        return
    with pytest.raises(AdmissionError) as caught:
        admission.check(1, 5, tokens)
    assert caught.value.reason == "max_num_queued_tokens"


def test_retry_after_grows_with_the_backlog_and_falls_with_the_rate() -> None:
    def retry_after(seconds_each: float, num_unfinished: int) -> float:
        clock = Clock()
        admission = Admission(FrontConfig(max_num_queued_reqs=10), clock=clock)
        for _ in range(11):
            admission.note_finished(100)
            clock.now += seconds_each
        with pytest.raises(AdmissionError) as caught:
            admission.check(1, num_unfinished, 0)
        return caught.value.retry_after

    assert retry_after(2.0, 10) == 2.0
    assert retry_after(2.0, 14) == 10.0
    assert retry_after(0.1, 14) == 1.0
    assert retry_after(1000.0, 14) == MAX_RETRY_SECONDS


def test_retry_after_by_tokens_uses_the_prompts_served() -> None:
    clock = Clock()
    admission = Admission(FrontConfig(max_num_queued_tokens=100), clock=clock)
    for _ in range(10):
        admission.note_finished(50)
        clock.now += 1.0
    with pytest.raises(AdmissionError) as caught:
        admission.check(1, 1, 599)  # 500 too many, at 50 a second
    assert caught.value.retry_after == 10.0
