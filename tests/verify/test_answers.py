"""Where two answers part, and what is said of it."""

from __future__ import annotations

import math

from headrace.logprobs import Logprob
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.verify.answers import Answer, answer_of, first_difference


def entry(value: float, rank: int | None = 1) -> tuple[tuple[int, str, int | None], ...]:
    return ((7, value.hex(), rank),)


RIGHT = Answer((7, 8), (entry(-1.0), entry(-2.0)), ())


def told(found: Answer, right: Answer = RIGHT) -> str:
    return str(first_difference(["greedy", "seeded"], [right, right], [right, found]))


def test_equal_answers_have_no_difference() -> None:
    assert first_difference(["greedy"], [RIGHT], [Answer((7, 8), RIGHT.logprobs, ())]) is None


def test_the_first_token_that_differs_is_named() -> None:
    assert told(Answer((7, 9), (entry(-1.0), entry(-3.0)), ())) == (
        "differs at request 1 (seeded) token 1: expected 8, got 9"
    )


def test_a_log_probability_before_it_comes_first() -> None:
    nearly = math.nextafter(-1.0, 0.0)
    assert told(Answer((7, 9), (entry(nearly), entry(-3.0)), ())) == (
        "differs at request 1 (seeded) token 0: "
        f"expected log-probability -1.0 of 7 (rank 1), got log-probability {nearly!r} of 7 (rank 1)"
    )


def test_the_sign_of_zero_and_the_rank_count() -> None:
    zero = Answer((7,), (entry(0.0),), ())
    assert "got log-probability -0.0 of 7" in told(Answer((7,), (entry(-0.0),), ()), zero)
    assert "got log-probability 0.0 of 7 (rank 2)" in told(Answer((7,), (entry(0.0, 2),), ()), zero)


def test_an_answer_that_ends_early_says_why() -> None:
    short = Answer((7,), (entry(-1.0),), (), "finish_reason error (no numbers)")
    assert told(short) == (
        "differs at request 1 (seeded) token 1: expected the end by length after 2 tokens, "
        "got finish_reason error (no numbers) after 1 tokens"
    )


def test_missing_log_probabilities_differ() -> None:
    assert told(Answer((7, 8), (entry(-1.0),), ())).endswith(
        "token 1: expected 1 log-probabilities, got 0"
    )
    scored = Answer((7,), (), ((), entry(-1.0)))
    assert told(Answer((7,), (), ()), scored).endswith(
        "prompt token 0: expected 2 log-probabilities, got 0"
    )
    assert "prompt token 1: expected log-probability -1.0" in told(
        Answer((7,), (), ((), entry(-2.0))), scored
    )


def test_bits_of_an_output_are_kept() -> None:
    one = CompletionOutput(
        0, "", [3], logprobs=[{3: Logprob(-0.5, 2), 4: Logprob(-0.25, 1)}], finish_reason="length"
    )
    output = RequestOutput("r", None, [1, 2], [one], True, [None, {2: Logprob(-1.5, 9)}])
    assert answer_of(output) == Answer(
        (3,),
        (((3, (-0.5).hex(), 2), (4, (-0.25).hex(), 1)),),
        ((), ((2, (-1.5).hex(), 9),)),
    )
    one.finish_reason, one.error = "error", "bad"
    assert answer_of(output).failure == "finish_reason error (bad)"
