"""Keeps the metrics of a request from what the core tells of each of its n parts."""

from __future__ import annotations

from headrace.messages.outputs import EngineCoreOutput, RequestLedger
from headrace.metrics.stats import FinishedRequestStats
from headrace.outputs import RequestMetrics

_NOTHING = RequestLedger(0.0, 0.0, 0.0, 0.0)


class Siblings:
    """What the n parts of one request have in common.

    Args:
        num_parts: n.
    """

    __slots__ = ("_longest", "_num_open")

    def __init__(self, num_parts: int) -> None:
        self._num_open = num_parts
        self._longest = 0

    def settle(self, num_tokens: int) -> int | None:
        """A part has ended with so many tokens; the most of all parts once all have."""
        self._num_open -= 1
        self._longest = max(self._longest, num_tokens)
        return self._longest if self._num_open == 0 else None


class PartLedger:
    """The ledger of one request of the core.

    Args:
        metrics: of the caller's request, shared by its n parts.
        siblings: shared by them as well.
        num_prompt_tokens, max_tokens, n: as asked for.

    Attributes:
        last_token_at: core clock; None until the first token.
    """

    __slots__ = (
        "_e2e_latency", "_finish_reason", "_has_last_word", "_last", "_num_output_tokens",
        "_siblings", "last_token_at", "max_tokens", "metrics", "n", "num_prompt_tokens",
    )  # fmt: skip

    def __init__(
        self,
        metrics: RequestMetrics,
        siblings: Siblings,
        num_prompt_tokens: int,
        max_tokens: int | None,
        n: int,
    ) -> None:
        self.metrics = metrics
        self._siblings = siblings
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.n = n
        self.last_token_at: float | None = None
        self._last: RequestLedger | None = None
        self._has_last_word = False
        self._num_output_tokens = 0
        self._finish_reason = ""
        self._e2e_latency = 0.0

    def take(self, output: EngineCoreOutput, timestamp: float) -> int:
        """Take in what an output tells. Returns how many tokens are new."""
        num_new = len(output.new_token_ids)
        ledger = output.ledger
        self._has_last_word = output.finish_reason is not None
        if ledger is not None:
            # With the last word come the tokens that nobody waited for.
            num_new = max(num_new, ledger.num_output_tokens - self._num_output_tokens)
        self._num_output_tokens += num_new
        self.metrics.num_generation_tokens += num_new
        if output.new_token_ids:
            self.last_token_at = timestamp
        if ledger is not None:
            self._settle(ledger)
        return num_new

    def _settle(self, new: RequestLedger) -> None:
        """Put the new state of this part in place of the old one."""
        old, self._last, metrics = self._last or _NOTHING, new, self.metrics
        metrics.queued_ts = _earliest(metrics.queued_ts, new.queued)
        metrics.scheduled_ts = _earliest(metrics.scheduled_ts, new.scheduled)
        metrics.first_token_ts = _earliest(metrics.first_token_ts, new.first_token)
        metrics.last_token_ts = _latest(metrics.last_token_ts, new.last_token)
        metrics.num_prefill_tokens += new.num_prefill_tokens - old.num_prefill_tokens
        metrics.num_cached_tokens += new.num_cached_tokens - old.num_cached_tokens
        metrics.num_preemptions += new.num_preemptions - old.num_preemptions
        metrics.num_draft_tokens += new.num_draft_tokens - old.num_draft_tokens
        metrics.num_accepted_tokens += new.num_accepted_tokens - old.num_accepted_tokens

    def note_end(self, finish_reason: str, now: float) -> None:
        """The request has ended, for this reason, at this time of the wall clock."""
        self._finish_reason = finish_reason
        metrics = self.metrics
        metrics.e2e_latency = self._e2e_latency = now - metrics.arrival_time
        metrics.finish_reasons.append(finish_reason)
        if self.last_token_at is not None and not self._has_last_word:
            # Until the core's last word is in, as far as is known here.
            metrics.last_token_ts = _latest(metrics.last_token_ts, self.last_token_at)

    def finished_stats(self) -> FinishedRequestStats:
        """What is measured of a part that has ended, once the core's last word is in."""
        last, num_tokens = self._last, self._num_output_tokens
        stats = FinishedRequestStats(
            finish_reason=self._finish_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generation_tokens=num_tokens,
            num_cached_tokens=0 if last is None else last.num_cached_tokens,
            num_preemptions=0 if last is None else last.num_preemptions,
            max_tokens_param=self.max_tokens,
            n_param=self.n,
            e2e_latency=self._e2e_latency,
        )
        if last is not None:
            stats.queue_time = last.scheduled - last.queued
            stats.prefill_time = last.first_token - last.scheduled
            stats.decode_time = last.last_token - last.first_token
            stats.inference_time = last.last_token - last.scheduled
            if num_tokens > 1:
                stats.time_per_output_token = stats.decode_time / (num_tokens - 1)
        stats.max_num_generation_tokens = self._siblings.settle(num_tokens)
        return stats


def _earliest(known: float | None, new: float) -> float:
    return new if known is None or new < known else known


def _latest(known: float | None, new: float) -> float:
    return new if known is None or new > known else known
