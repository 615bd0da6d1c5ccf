"""n > 1: one request of the caller as n requests of the core, and their answers as one again."""

from __future__ import annotations

import msgspec

from headrace.engine.ledger import Siblings
from headrace.messages.requests import EngineCoreRequest
from headrace.outputs import CompletionOutput
from headrace.sampling_params import RequestOutputKind


class ParentRequest:
    """What the children of one request have in common while they run.

    Args:
        child_ids: ids in the core, by index.
        kind: with FINAL_ONLY the children's answers are held back until the last one ends.

    Attributes:
        siblings: the children, in what is measured.
    """

    __slots__ = ("_answers", "_num_running", "child_ids", "kind", "siblings")

    def __init__(self, child_ids: list[str], kind: RequestOutputKind) -> None:
        self.child_ids = child_ids
        self.kind = kind
        self.siblings = Siblings(len(child_ids))
        self._num_running = len(child_ids)
        self._answers: dict[int, CompletionOutput] = {}

    def take(self, answer: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """Take in what a child gave; what there is to pass on now, and whether it is the last."""
        if answer.finish_reason is not None:
            self._num_running -= 1
        is_last = self._num_running == 0
        if self.kind is not RequestOutputKind.FINAL_ONLY:
            return [answer], is_last
        self._answers[answer.index] = answer
        return [self._answers[i] for i in sorted(self._answers)] if is_last else [], is_last


def fan_out(request: EngineCoreRequest) -> list[EngineCoreRequest]:
    """The n requests for the core; the request itself when n is 1.

    Child i is named `{i}_{request_id}` and has seed + i, if there is a seed.
    """
    params = request.sampling_params
    if params.n == 1:
        return [request]
    return [
        msgspec.structs.replace(
            request,
            request_id=f"{i}_{request.request_id}",
            sampling_params=msgspec.structs.replace(params, n=1, seed=_child_seed(params.seed, i)),
        )
        for i in range(params.n)
    ]


def _child_seed(seed: int | None, index: int) -> int | None:
    """seed + index, within the 64 bits that seeds have, and never -1, which stands for none."""
    if seed is None:
        return None
    child = (seed + index + 2**63) % 2**64 - 2**63
    return child if child != -1 else 2**63 - 1
