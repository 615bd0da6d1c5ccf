"""What one step is: the scheduler's order to the worker, and the worker's answer."""

from __future__ import annotations

import msgspec

from headrace.inputs import PromptEmbeds
from headrace.messages.outputs import TokenLogprobs
from headrace.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, frozen=True):
    """A request the worker has not seen (or forgot, when it was preempted)."""

    request_id: str
    token_ids: list[int]
    """Prompt, and after a preemption the tokens generated before it. The worker copies it."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    stop_token_ids: list[int]
    """All ids that end it (EOS included unless ignored): masked before min_tokens."""
    seed: int
    """The caller's, or one drawn for the request."""
    block_ids: list[int]
    num_computed_tokens: int
    grammar: str | None = None
    """What the tokens generated must follow."""
    prompt_embeds: PromptEmbeds | None = None
    """Stand in place of the prompt's tokens, which are zeros then."""
    num_answer_tokens: int | None = None
    """See `EngineInput`."""


class CachedRequest(msgspec.Struct, frozen=True):
    """A request the worker knows: only what changed. The worker adds tokens it sampled itself."""

    request_id: str
    new_block_ids: list[int]
    num_computed_tokens: int


class SchedulerOutput(msgspec.Struct, frozen=True):
    """One step's order. Order of execution: drop `finished_ids`, then add, then compute."""

    new_requests: list[NewRequest]
    cached_requests: list[CachedRequest]
    num_scheduled_tokens: dict[str, int]
    """request_id -> tokens to compute now. A request samples exactly when num_computed_tokens + its
    scheduled tokens reaches the number of its known tokens: one token, and with a draft one more
    for each token of it that is the one sampled in its place."""
    total_num_scheduled_tokens: int
    finished_ids: list[str]
    """Ended, aborted or preempted since the last order: the worker forgets them."""
    draft_token_ids: dict[str, list[int]] = {}
    """Cached request -> tokens guessed to follow its known ones, counted among those to compute."""


class ModelRunnerOutput(msgspec.Struct, frozen=True):
    """One step's answer."""

    sampled_token_ids: dict[str, list[int]]
    """Only requests that sampled in this step; all but the last are tokens of their drafts."""
    logprobs: dict[str, list[TokenLogprobs]] = {}
    """One entry per sampled token, when asked for."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    """Entries for the prompt tokens that follow the positions computed in this step."""
    errors: dict[str, str] = {}
    """Requests that failed on their own in this step; the others are unharmed."""
    error_params: dict[str, str] = {}
    """Of those that failed by what they ask for: the field that asks for it."""
    corrupted: set[str] = set()
    """Of those that failed: because the model gave logits that are no numbers."""
    grammar_ended: set[str] = set()
    """Requests whose grammar allows nothing after the token sampled in this step."""
