"""Repetition detection: against a plain search, and where it stands among the reasons to end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from headrace.core.engine_core import EngineCore
from headrace.core.repetition import RepetitionDetector
from headrace.messages.outputs import FinishReason
from headrace.sampling_params import RepetitionDetectionParams
from tests.fakes import RecordingExecutor, make_core_request


def is_repeated(answer: list[int], params: RepetitionDetectionParams) -> bool:
    """Whether the answer ends with some pattern, min_count times."""
    for size in range(params.min_pattern_size, params.max_pattern_size + 1):
        end = answer[-size * params.min_count :]
        if len(end) == size * params.min_count and end == end[:size] * params.min_count:
            return True
    return False


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 4), st.integers(0, 4), st.integers(2, 4), st.integers(0, 5),
)  # fmt: skip
def test_detector_says_what_a_plain_search_finds(
    answer: list[int], low: int, more: int, min_count: int, num_prompt_tokens: int
) -> None:
    params = RepetitionDetectionParams(low + more, low, min_count)
    detector = RepetitionDetector(params)
    tokens = [answer[0]] * num_prompt_tokens  # equal tokens of the prompt do not count
    for i, token_id in enumerate(answer):
        tokens.append(token_id)
        assert detector.append(tokens, i + 1) == is_repeated(answer[: i + 1], params)


def run(script: list[int], **params: object) -> tuple[list[int], FinishReason | None]:
    """What a request whose model says these tokens is given."""
    config = EngineConfig(
        model=ModelConfig(
            model="m", path="m", format="dummy", hf_config={}, model_type="m", tokenizer=None,
            max_model_len=64, vocab_size=1000, served_names=["m"],
        ),
        cache=CacheConfig(block_size=4),
        scheduler=SchedulerConfig(),
    )  # fmt: skip
    core = EngineCore(config, RecordingExecutor(num_blocks=32, script={"a": script}))
    core.add_request(make_core_request("a", [1, 2, 3], eos_token_id=99, **params))  # type: ignore[arg-type]
    tokens: list[int] = []
    while core.has_work():
        for output in core.step().outputs:
            tokens += output.new_token_ids
            if output.finish_reason is not None:
                return tokens, output.finish_reason
    return tokens, None


TWICE = RepetitionDetectionParams(max_pattern_size=3, min_count=2)


def test_repeated_pattern_ends_the_request() -> None:
    assert run([5, 6, 7, 6, 7, 8], max_tokens=6, repetition_detection=TWICE) == (
        [5, 6, 7, 6, 7], FinishReason.REPETITION,
    )  # fmt: skip


def test_without_repetition_it_goes_on_to_the_limit() -> None:
    tokens = [5, 6, 7, 6, 8]
    assert run(tokens, max_tokens=5, repetition_detection=TWICE) == (tokens, FinishReason.LENGTH)


def test_end_of_answer_and_length_come_before_repetition() -> None:
    again = RepetitionDetectionParams(max_pattern_size=1)
    assert run([5, 5], max_tokens=2, repetition_detection=again)[1] is FinishReason.LENGTH
    stopped = run([5, 5], max_tokens=9, stop_token_ids=[5], min_tokens=2,
                  repetition_detection=again)  # fmt: skip
    assert stopped == ([5, 5], FinishReason.STOP)


def test_min_tokens_come_before_repetition() -> None:
    again = RepetitionDetectionParams(max_pattern_size=1)
    ended = run([5, 5, 6, 6, 7], max_tokens=9, min_tokens=3, repetition_detection=again)
    assert ended == ([5, 5, 6, 6], FinishReason.REPETITION)
