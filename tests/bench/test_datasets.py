"""The requests of benchmarks: exact lengths, no special tokens, the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.datasets import (
    BenchRequest,
    Vocabulary,
    as_texts,
    make_requests,
    needs_tokenizer,
)
from headrace.bench.settings import DatasetSettings
from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer, load_tokenizer

EOS = frozenset({2, 7})


@pytest.fixture(scope="module")
def tokenizer(model_dir: Callable[[str], Path]) -> Tokenizer:
    return load_tokenizer(model_dir("smollm2-135m-instruct"))


def ids_of(requests: list[BenchRequest]) -> list[list[int]]:
    prompts = [request.prompt for request in requests]
    assert all(isinstance(prompt, list) for prompt in prompts)
    return prompts  # type: ignore[return-value]


def make(vocabulary: Vocabulary | None = None, seed: int = 0, **options: Any) -> list[BenchRequest]:
    return make_requests(DatasetSettings(**options), vocabulary or Vocabulary(None, 100, EOS), seed)


# -- random ----------------------------------------------------------------------------------


def test_random_prompts_have_exactly_the_length_asked_for() -> None:
    requests = make(num_prompts=5, input_len=17, output_len=9)
    assert [len(ids) for ids in ids_of(requests)] == [17] * 5
    assert [request.num_prompt_tokens for request in requests] == [17] * 5
    assert [request.output_len for request in requests] == [9] * 5


def test_the_same_seed_gives_the_same_and_another_gives_others() -> None:
    options = {"num_prompts": 4, "input_len": 8, "random_range_ratio": 0.5}
    assert make(**options, seed=3) == make(**options, seed=3)
    assert make(**options, seed=3) != make(**options, seed=4)


def test_random_ids_are_in_the_vocabulary_and_never_excluded() -> None:
    seen = {i for ids in ids_of(make(num_prompts=100, input_len=100)) for i in ids}
    assert seen == set(range(100)) - EOS


def test_random_prefix_is_shared_and_comes_on_top() -> None:
    prompts = ids_of(make(num_prompts=4, input_len=6, random_prefix_len=5))
    assert len({tuple(ids[:5]) for ids in prompts}) == 1
    assert len({tuple(ids[5:]) for ids in prompts}) == 4
    assert [len(ids) for ids in prompts] == [11] * 4


def test_lengths_vary_over_the_whole_range_and_not_beyond() -> None:
    requests = make(num_prompts=600, input_len=10, output_len=20, random_range_ratio=0.3)
    assert {len(ids) for ids in ids_of(requests)} == set(range(7, 14))
    assert {request.output_len for request in requests} == set(range(14, 27))


def test_length_of_one_stays_at_least_one() -> None:
    requests = make(num_prompts=50, input_len=1, output_len=1, random_range_ratio=0.9)
    assert {len(ids) for ids in ids_of(requests)} == {1, 2}


@pytest.mark.model
def test_random_ids_of_a_real_model_are_no_special_tokens(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer, excluded=frozenset(tokenizer.eos_token_ids))
    prompts = ids_of(make(vocabulary, num_prompts=20, input_len=500))
    used = {i for ids in prompts for i in ids}
    assert not any(tokenizer.is_special(i) for i in used)
    assert all(tokenizer.token_bytes(i) for i in used)
    assert max(used) < tokenizer.vocab_size


@pytest.mark.model
def test_prompts_as_text_are_read_as_as_many_tokens(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    requests = make(vocabulary, num_prompts=20, input_len=100)
    texts = as_texts(requests, vocabulary, seed=0)
    assert texts == as_texts(requests, vocabulary, seed=0)
    for request in texts:
        assert isinstance(request.prompt, str)
        found = tokenizer.encode(request.prompt, add_special_tokens=False)
        assert len(found) == request.num_prompt_tokens
    assert sum(request.num_prompt_tokens == 100 for request in texts) >= 19


# -- prefix repetition -----------------------------------------------------------------------


def test_prefix_repetition_has_even_groups_of_equal_beginnings() -> None:
    requests = make(
        dataset_name="prefix_repetition", num_prompts=10, prefix_repetition_prefix_len=8,
        prefix_repetition_suffix_len=4, prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=6,
    )  # fmt: skip
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for ids in ids_of(requests):
        assert len(ids) == 12
        groups.setdefault(tuple(ids[:8]), []).append(tuple(ids[8:]))
    assert sorted(len(group) for group in groups.values()) == [3, 3, 4]
    assert len({end for group in groups.values() for end in group}) == 10
    assert {request.output_len for request in requests} == {6}


# -- files -----------------------------------------------------------------------------------


def custom(path: Path, lines: list[str], **options: Any) -> list[BenchRequest]:
    path.write_text("\n".join(lines))
    settings = DatasetSettings(dataset_name="custom", dataset_path=str(path), **options)
    return make_requests(settings, None, 0)


def test_custom_file_gives_prompts_and_lengths_without_a_tokenizer(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "output_tokens": 3}', "", '{"prompt": [5, 6]}']
    assert custom(tmp_path / "d.jsonl", lines, num_prompts=2, shuffle=False) == [
        BenchRequest("a", None, 3),
        BenchRequest([5, 6], 2, 128),
    ]
    assert not needs_tokenizer(DatasetSettings(dataset_name="custom", dataset_path="x"))


def test_output_len_wins_over_the_file(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "output_tokens": 3}']
    [request] = custom(tmp_path / "d", lines, num_prompts=1, output_len=7)
    assert request.output_len == 7


def test_short_file_begins_again(tmp_path: Path) -> None:
    lines = ['{"prompt": "a"}', '{"prompt": "b"}']
    requests = custom(tmp_path / "d", lines, num_prompts=5, shuffle=False)
    assert [request.prompt for request in requests] == ["a", "b", "a", "b", "a"]


def test_files_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": str(i)}) for i in range(50)]
    requests = custom(tmp_path / "d", lines, num_prompts=50)
    prompts = [str(request.prompt) for request in requests]
    assert sorted(prompts, key=int) == [str(i) for i in range(50)] != prompts
    assert custom(tmp_path / "d", lines, num_prompts=10) == requests[:10]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", ":2: not a JSON object"),
        ("[]", ':2: "prompt" must be'),
        ('{"prompt": ""}', '"prompt" must be'),
        ('{"prompt": [1, "a"]}', '"prompt" must be'),
        ('{"prompt": [true]}', '"prompt" must be'),
        ('{"prompt": "a", "output_tokens": 0}', '"output_tokens" must be'),
        ('{"prompt": "a", "output_tokens": "5"}', '"output_tokens" must be'),
    ],
)
def test_bad_line_of_a_custom_file_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        custom(tmp_path / "d", ['{"prompt": "a"}', line], num_prompts=2)
    assert said in str(caught.value)


def test_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        make_requests(DatasetSettings(dataset_name="custom", dataset_path="/no/file"), None, 0)
    with pytest.raises(ConfigError, match="no usable prompts"):
        custom(tmp_path / "d", ["", " "])


def sharegpt(path: Path, entries: Any, tokenizer: Tokenizer, **options: Any) -> list[BenchRequest]:
    path.write_text(json.dumps(entries))
    settings = DatasetSettings(dataset_name="sharegpt", dataset_path=str(path), **options)
    return make_requests(settings, Vocabulary(tokenizer), 0)


def turns(*texts: Any) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": text} for text in texts]}


@pytest.mark.model
def test_sharegpt_takes_first_two_turns_and_leaves_out_short_and_long(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    question, answer = "What is the capital of France?", "It is Paris, of course."
    entries = [
        turns(question),
        turns("Hi", answer),
        turns(question, "No."),
        turns("word " * 1100, answer),
        turns(question, "word " * 2100),
        turns(question, 5),
        "nothing",
        turns(question, answer, "And Spain?"),
    ]
    [request] = sharegpt(tmp_path / "d", entries, tokenizer, num_prompts=1)
    wanted = len(tokenizer.encode(answer, add_special_tokens=False))
    assert request == BenchRequest(question, len(tokenizer.encode(question)), wanted)
    requests = sharegpt(tmp_path / "d", entries, tokenizer, num_prompts=3, output_len=2)
    assert {request.output_len for request in requests} == {2}


@pytest.mark.model
def test_sharegpt_file_of_another_form_is_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="a list of conversations"):
        sharegpt(tmp_path / "d", {}, tokenizer)
    with pytest.raises(ConfigError, match="no usable prompts"):
        sharegpt(tmp_path / "d", [turns("a")], tokenizer)
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        make_requests(DatasetSettings(dataset_name="sharegpt", dataset_path="x"), None, 0)
