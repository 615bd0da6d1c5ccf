"""What goes down from the front process to the engine core: a closed union of records.

Array-like: the order of fields is the protocol, new ones go to the end. The core has no
tokenizer: everything here is token ids and numbers.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from headrace.inputs import PromptEmbeds
from headrace.sampling_params import SamplingParams


class EngineCoreRequest(
    msgspec.Struct, array_like=True, tag="add", frozen=True, forbid_unknown_fields=True
):
    """Generate from one prompt. Its answers come as `EngineCoreOutput`s with the same id."""

    request_id: str
    """Unique in this engine; made by the front process, never by a client."""
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    """n is 1 here; max_tokens is set; stop strings are the front's business."""
    eos_token_id: int | None
    """Ends the request with stop_reason None, unless ignore_eos."""
    stop_token_ids: list[int]
    """End the request with stop_reason = the id: the caller's, and the model's further EOS ids."""
    arrival_time: float
    """Wall clock, seconds."""
    priority: int = 0
    """Lower runs earlier; only with the policy `priority`."""
    cache_salt: str | None = None
    """Prefix-cache blocks are shared only between equal salts."""
    is_watched: bool = True
    """Whether each token is acted on: passed on, or searched for stop strings. The others' come
    with a delay, many at once, except the first and the last."""
    grammar: str | None = None
    """What the text must follow; checked. The core must have been given the `Vocabulary` before."""
    prompt_embeds: PromptEmbeds | None = None
    """What the prompt is, in place of its token ids, which are zeros then."""
    num_answer_tokens: int | None = None
    """See `EngineInput`."""
    tenant: str | None = None
    """Whose it is: the waiting requests of several tenants are started in fair turns."""


class Vocabulary(
    msgspec.Struct, array_like=True, tag="vocabulary", frozen=True, forbid_unknown_fields=True
):
    """The bytes of the tokens, for grammars. Sent once, before the first request that has one."""

    tokens: list[bytes]
    """By id; empty where there is no token."""
    special_token_ids: list[int]
    """Marks, which no text spells."""
    eos_token_ids: list[int]
    """Allowed where a grammar is complete; the first is the main one."""
    is_used_now: bool = False
    """Whether to prepare for grammars at once, and not when the first one comes."""


class AbortRequests(
    msgspec.Struct, array_like=True, tag="abort", frozen=True, forbid_unknown_fields=True
):
    """Forget these requests and free their blocks. Unknown ids are fine.

    The others get a last output with finish_reason ABORT, which holds their ledger.
    """

    request_ids: list[str]


class ResetPrefixCache(
    msgspec.Struct,
    array_like=True,
    tag="reset_prefix_cache",
    frozen=True,
    forbid_unknown_fields=True,
):
    """Control verb: forget all cached prefixes. Result: bool, False while blocks are in use."""

    reset_running_requests: bool = False
    """Take the blocks of running requests too; they are computed again."""


class GetDebugState(
    msgspec.Struct, array_like=True, tag="get_debug_state", frozen=True, forbid_unknown_fields=True
):
    """Control verb: sizes of the core's internal maps, for leak checks. Result: dict[str, int]."""


class GetProgress(
    msgspec.Struct, array_like=True, tag="get_progress", frozen=True, forbid_unknown_fields=True
):
    """Control verb: how far these requests are. Result: dict[str, RequestProgress], without those
    that are not live."""

    request_ids: list[str]


PauseMode: TypeAlias = Literal["abort", "wait", "keep"]
"""What becomes of requests under way: ended, finished first, or stopped until resumed."""


class Pause(msgspec.Struct, array_like=True, tag="pause", frozen=True, forbid_unknown_fields=True):
    """Control verb: schedule nothing more. New requests are queued. Result: bool, False when it was
    resumed before what was under way had finished (mode `wait`)."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class Resume(
    msgspec.Struct, array_like=True, tag="resume", frozen=True, forbid_unknown_fields=True
):
    """Control verb: undo Pause."""


class Sleep(msgspec.Struct, array_like=True, tag="sleep", frozen=True, forbid_unknown_fields=True):
    """Control verb: pause, and give memory back. Result: as Pause.

    Level 0 keeps everything, 1 gives back the KV cache, 2 the weights too.
    """

    level: int = 1
    mode: PauseMode = "abort"


class WakeUp(
    msgspec.Struct, array_like=True, tag="wake_up", frozen=True, forbid_unknown_fields=True
):
    """Control verb: take back what sleeps: weights, kv_cache, scheduling; None is all of it.

    Result: bool, whether nothing sleeps any more.
    """

    tags: list[str] | None = None


class ReleaseKVCache(
    msgspec.Struct, array_like=True, tag="release_kv_cache", frozen=True, forbid_unknown_fields=True
):
    """Control verb: give back the memory of the KV cache, while level 0 sleeps."""


class GetControlState(
    msgspec.Struct,
    array_like=True,
    tag="get_control_state",
    frozen=True,
    forbid_unknown_fields=True,
):
    """Control verb. Result: dict: is_paused, is_sleeping, is_profiling: bool."""


class StartProfile(
    msgspec.Struct, array_like=True, tag="start_profile", frozen=True, forbid_unknown_fields=True
):
    """Control verb: profile the steps to come into the engine's folder for it."""

    prefix: str | None = None
    delay_iterations: int = 0
    max_iterations: int | None = None


class StopProfile(
    msgspec.Struct, array_like=True, tag="stop_profile", frozen=True, forbid_unknown_fields=True
):
    """Control verb: write what was profiled. Result: list[str], the files."""


class CallWorkers(
    msgspec.Struct, array_like=True, tag="call_workers", frozen=True, forbid_unknown_fields=True
):
    """Control verb: a method of the worker's table, or a function of the model's. Result: a list
    with what each worker gave."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    on_model: bool = False


Verb: TypeAlias = (
    ResetPrefixCache
    | GetDebugState
    | GetProgress
    | Pause
    | Resume
    | Sleep
    | WakeUp
    | ReleaseKVCache
    | GetControlState
    | StartProfile
    | StopProfile
    | CallWorkers
)


class Call(msgspec.Struct, array_like=True, tag="call", frozen=True, forbid_unknown_fields=True):
    """A control verb; answered by one `CallResult` with the same call_id."""

    call_id: int
    verb: Verb


class Shutdown(
    msgspec.Struct, array_like=True, tag="shutdown", frozen=True, forbid_unknown_fields=True
):
    """End the core. Running requests get up to `drain_timeout` seconds, then are aborted."""

    drain_timeout: float = 0.0


CoreInput: TypeAlias = EngineCoreRequest | AbortRequests | Vocabulary | Call | Shutdown
