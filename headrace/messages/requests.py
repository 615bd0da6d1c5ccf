"""What goes down from the front process to the engine core: a closed union of records.

Array-like: the order of fields is the protocol, new ones go to the end. The core has no
tokenizer: everything here is token ids and numbers.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

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


class AbortRequests(
    msgspec.Struct, array_like=True, tag="abort", frozen=True, forbid_unknown_fields=True
):
    """Forget these requests and free their blocks. Unknown ids are fine. Nothing is answered."""

    request_ids: list[str]


class ResetPrefixCache(
    msgspec.Struct,
    array_like=True,
    tag="reset_prefix_cache",
    frozen=True,
    forbid_unknown_fields=True,
):
    """Control verb: forget all cached prefixes. Result: bool, False while blocks are in use."""


class GetDebugState(
    msgspec.Struct, array_like=True, tag="get_debug_state", frozen=True, forbid_unknown_fields=True
):
    """Control verb: sizes of the core's internal maps, for leak checks. Result: dict[str, int]."""


Verb: TypeAlias = ResetPrefixCache | GetDebugState


class Call(msgspec.Struct, array_like=True, tag="call", frozen=True, forbid_unknown_fields=True):
    """A control verb; answered by one `CallResult` with the same call_id."""

    call_id: int
    verb: Verb


class Shutdown(
    msgspec.Struct, array_like=True, tag="shutdown", frozen=True, forbid_unknown_fields=True
):
    """End the core. Running requests get up to `drain_timeout` seconds, then are aborted."""

    drain_timeout: float = 0.0


CoreInput: TypeAlias = EngineCoreRequest | AbortRequests | Call | Shutdown
