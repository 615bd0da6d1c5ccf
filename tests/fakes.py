"""Small stand-ins for the parts of the engine, public within tests. None loads a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.messages.outputs import TokenLogprobs
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.startup import EngineReady
from headrace.messages.step import ModelRunnerOutput, NewRequest, SchedulerOutput
from headrace.sampling_params import SamplingParams


def chain_hashes(token_ids: Sequence[int]) -> list[int]:
    """One number per position that stands for all tokens up to it, as keys and values do."""
    hashes: list[int] = []
    value = 1
    for token_id in token_ids:
        value = hash((value, token_id))
        hashes.append(value)
    return hashes


def next_token(token_ids: Sequence[int], seed: int, vocab_size: int) -> int:
    """The token the fake model samples after these: a function of them and the seed only."""
    return hash((chain_hashes(token_ids)[-1], seed)) % vocab_size


def make_core_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int = 4,
    eos_token_id: int | None = None,
    stop_token_ids: Sequence[int] = (),
    arrival_time: float = 0.0,
    priority: int = 0,
    cache_salt: str | None = None,
    is_watched: bool = True,
    **params: Any,
) -> EngineCoreRequest:
    """A request as the front process would send it. `params` are of SamplingParams."""
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt_token_ids),
        sampling_params=SamplingParams(max_tokens=max_tokens, **params),
        eos_token_id=eos_token_id,
        stop_token_ids=list(stop_token_ids),
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        is_watched=is_watched,
    )


@dataclass
class _Row:
    params: SamplingParams
    seed: int
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    num_computed_tokens: int
    answer: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)

    @property
    def all_token_ids(self) -> list[int]:
        """Known and drafted."""
        return self.token_ids + self.draft


class RecordingExecutor:
    """An Executor that keeps every order, and a model of the KV cache it would fill.

    Each slot of the cache holds the hash of the tokens up to its position. A step fails with an
    AssertionError when a request's block table does not lead to exactly its own prefix, when two
    requests write one slot, or when the order breaks the rules of `messages.step`.

    Args:
        script: request id -> tokens to sample, in turn, in place of `next_token`'s.
        errors: request id -> text; the request fails when it would sample.
        memory: how many of the last tokens the next one depends on; None: on all. With few of them
            answers soon repeat themselves.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 64,
        vocab_size: int = 1000,
        script: Mapping[str, Sequence[int]] | None = None,
        errors: Mapping[str, str] | None = None,
        memory: int | None = None,
    ) -> None:
        self.ready = EngineReady(
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_cache_bytes=0,
            weight_bytes=0,
            isa="portable",
        )
        self.vocab_size = vocab_size
        self.memory = memory
        self.script = {key: list(tokens) for key, tokens in (script or {}).items()}
        self.errors = dict(errors or {})
        self.orders: list[SchedulerOutput] = []
        self.corrupted: set[str] = set()
        """Those of `errors` that fail because of the model's logits."""
        self.raises: Exception | None = None
        """Raised by the next step."""
        self.is_shut_down = False
        self._slots: dict[int, int] = {}
        self._rows: dict[str, _Row] = {}

    @property
    def known_ids(self) -> set[str]:
        """Requests the worker holds."""
        return set(self._rows)

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        self.orders.append(order)
        if self.raises is not None:
            raise self.raises
        self._apply(order)
        self._compute(order)
        output = ModelRunnerOutput({}, {}, {}, {}, corrupted=self.corrupted)
        for request_id, num in order.num_scheduled_tokens.items():
            self._answer(request_id, num, output)
        return output

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _apply(self, order: SchedulerOutput) -> None:
        for request_id in order.finished_ids:
            assert self._rows.pop(request_id, None) is not None, f"{request_id} was not known"
        for new in order.new_requests:
            self._add(new)
        for cached in order.cached_requests:
            row = self._rows[cached.request_id]
            row.block_ids += cached.new_block_ids
            assert row.num_computed_tokens == cached.num_computed_tokens
            row.draft = order.draft_token_ids.get(cached.request_id, [])
        assert set(order.draft_token_ids) <= {c.request_id for c in order.cached_requests}
        assert all(order.draft_token_ids.values()), "an empty draft"
        mentioned = [r.request_id for r in (*order.cached_requests, *order.new_requests)]
        assert sorted(mentioned) == sorted(order.num_scheduled_tokens)
        assert order.total_num_scheduled_tokens == sum(order.num_scheduled_tokens.values())

    def _add(self, new: NewRequest) -> None:
        assert new.request_id not in self._rows
        known = self.script.get(new.request_id)
        answer = new.token_ids[new.num_prompt_tokens :]
        if known is not None and answer:
            assert answer == known[: len(answer)]
        self._rows[new.request_id] = _Row(
            params=new.sampling_params,
            seed=new.seed,
            token_ids=list(new.token_ids),
            num_prompt_tokens=new.num_prompt_tokens,
            block_ids=list(new.block_ids),
            num_computed_tokens=new.num_computed_tokens,
            answer=list(answer),
        )

    def _compute(self, order: SchedulerOutput) -> None:
        size = self.ready.block_size
        written: set[int] = set()
        for request_id, num in order.num_scheduled_tokens.items():
            row = self._rows[request_id]
            first = row.num_computed_tokens
            assert num >= 1
            assert first + num <= len(row.all_token_ids)
            assert not row.draft or first + num == len(row.all_token_ids)
            hashes = chain_hashes(row.all_token_ids)
            for position in range(first, first + num):
                slot = row.block_ids[position // size] * size + position % size
                assert 0 <= slot < self.ready.num_blocks * size
                assert slot not in written, f"slot {slot} was written twice in a step"
                written.add(slot)
                self._slots[slot] = hashes[position]
        for request_id, num in order.num_scheduled_tokens.items():
            row = self._rows[request_id]
            row.num_computed_tokens += num
            hashes = chain_hashes(row.all_token_ids)
            for position in range(row.num_computed_tokens):
                slot = row.block_ids[position // size] * size + position % size
                assert self._slots.get(slot) == hashes[position], (
                    f"{request_id} finds a foreign key at position {position}"
                )

    def _answer(self, request_id: str, num: int, output: ModelRunnerOutput) -> None:
        row = self._rows[request_id]
        end = row.num_computed_tokens
        if row.params.prompt_logprobs is not None:
            positions = range(end - num + 1, min(end + 1, row.num_prompt_tokens))
            if positions:
                output.prompt_logprobs[request_id] = [
                    prompt_entry(row.token_ids, position) for position in positions
                ]
        if end < len(row.all_token_ids):
            return
        if request_id in self.errors:
            output.errors[request_id] = self.errors[request_id]
            return
        sampled: list[int] = []
        for drafted in (*row.draft, None):
            sampled.append(self._sample(request_id, row))
            if sampled[-1] != drafted:
                break
        output.sampled_token_ids[request_id] = sampled
        if row.params.logprobs is not None:
            first = len(row.token_ids) - len(sampled)
            output.logprobs[request_id] = [
                TokenLogprobs([token_id], [-float(first + i)], 1)
                for i, token_id in enumerate(sampled)
            ]
        row.num_computed_tokens = len(row.token_ids) - 1
        row.draft = []

    def _sample(self, request_id: str, row: _Row) -> int:
        script = self.script.get(request_id)
        if script is None:
            seen = row.token_ids if self.memory is None else row.token_ids[-self.memory :]
            token_id = next_token(seen, row.seed, self.vocab_size)
        else:
            token_id = script[len(row.answer)]
        row.token_ids.append(token_id)
        row.answer.append(token_id)
        return token_id


def prompt_entry(token_ids: Sequence[int], position: int) -> TokenLogprobs:
    """What the fake model says of the prompt token at a position (which is not 0)."""
    return TokenLogprobs([token_ids[position]], [-float(position)], position)
