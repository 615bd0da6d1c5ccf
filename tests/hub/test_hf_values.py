"""Numbers of a config.json: what counts as one, and what is said of the rest."""

from __future__ import annotations

import math

import pytest

from headrace.errors import ModelError
from headrace.hub.hf_values import count, positive_number


def test_values_of_the_right_kind_are_given_as_they_are() -> None:
    assert count({"n": 3}, "n") == 3
    assert count({"n": 0}, "n", at_least=0) == 0
    assert positive_number({"x": 2}, "x") == 2.0


@pytest.mark.parametrize("values", [{}, {"n": None}])
def test_missing_and_null_have_the_default_or_are_named(values: dict[str, None]) -> None:
    assert count(values, "n", 7) == 7
    assert positive_number(values, "n", 0.5) == 0.5
    with pytest.raises(ModelError, match="lacks the key 'n'"):
        count(values, "n")


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3", [3], {}, 2**31, 10**30])
def test_what_is_no_count_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ModelError, match=r"config.json: heads must be an integer from 1"):
        count({"heads": wrong}, "heads", 1)


@pytest.mark.parametrize("wrong", [0, -0.5, True, "1e-5", [], math.nan, math.inf])
def test_what_is_no_positive_number_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ModelError, match=r"config.json: eps must be a positive number"):
        positive_number({"eps": wrong}, "eps", 1.0)
