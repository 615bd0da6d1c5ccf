"""What every decoder offers to the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.ops.ops import Array, HeadShape, KVCache


class CausalLM(Protocol):
    """A decoder-only language model with its weights loaded.

    The two methods describe a computation with ops; they are called once to record it (native) or
    every step (torch), and never look at values.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    heads: HeadShape

    def forward(self, caches: Sequence[KVCache]) -> Array:
        """Hidden states after the last norm of the step's tokens; one cache a layer. -> [T, H]"""
        ...

    def compute_logits(self, hidden_states: Array) -> Array:
        """[L, H] -> [L, vocab_size]"""
        ...
