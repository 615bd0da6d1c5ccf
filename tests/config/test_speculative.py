"""speculative_config and its short forms: what they come to, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.args import EngineArgs
from headrace.config.engine import SpeculativeConfig
from headrace.config.resolve import resolve
from headrace.errors import ConfigError
from tests.config.test_resolve import facts

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def speculative(**options: Any) -> SpeculativeConfig | None:
    return resolve(EngineArgs(**options), facts()).speculative


def test_nothing_is_guessed_unless_asked_for() -> None:
    assert speculative() is None


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 2, 5),
        ({"prompt_lookup_max": 7}, 2, 7),
        ({"prompt_lookup_max": 1}, 1, 1),
        ({"prompt_lookup_min": 3}, 3, 5),
        ({"prompt_lookup_min": 9}, 9, 9),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 3}, 2, 3),
    ],
)
def test_look_up_sizes_fit_each_other(given: dict[str, Any], low: int, high: int) -> None:
    config = speculative(speculative_config=NGRAM | given)
    assert config is not None
    assert (config.num_speculative_tokens, config.disable_by_batch_size) == (4, 4)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (low, high)


def test_short_forms_say_the_same() -> None:
    expected = speculative(speculative_config=NGRAM)
    assert speculative(spec_method="ngram", spec_tokens=4) == expected
    assert speculative(spec_model="ngram", spec_tokens=4) == expected
    assert speculative(speculative_config={"model": "[ngram]"}, spec_tokens=4) == expected
    assert speculative(speculative_config=NGRAM, spec_method="ngram") == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "eagle3"}, "method='eagle3' is not offered"),
        ({"method": None}, "needs method"),
        ({"model": "org/small"}, "model='org/small': draft models are not offered"),
        ({"num_speculative_tokens": None}, "needs num_speculative_tokens"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be .* from 1 to 64, got 0"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens must be an integer"),
        ({"num_speculative_tokens": 65}, "num_speculative_tokens must be"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be an integer from 1 to 32, got 0"),
        ({"prompt_lookup_max": "3"}, "prompt_lookup_max must be an integer"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, r"prompt_lookup_min \(4\) must not be"),
        ({"disable_by_batch_size": 0}, "disable_by_batch_size must be"),
        ({"prompt_lookup_maxx": 3}, r"no key 'prompt_lookup_maxx' \(did you mean"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        speculative(speculative_config=NGRAM | given)


@pytest.mark.parametrize("given", ["ngram", 3, [NGRAM]])
def test_something_else_than_a_dict_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="speculative_config must be a dict"):
        speculative(speculative_config=given)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"spec_tokens=5 and .* contradict each other"):
        speculative(speculative_config=NGRAM, spec_tokens=5)


def test_an_empty_dict_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="needs method"):
        speculative(speculative_config={})
