"""Self-attention over the paged KV cache, with its projections."""

from __future__ import annotations

from headrace.layers.linear import Linear
from headrace.ops.ops import Array, HeadNorm, HeadShape, KVCache, Ops


class Attention:
    """Grouped-query attention (Ainslie et al. 2023) with rotary positions. [T, H] -> [T, H]

    Args:
        qkv_proj: queries, keys and values side by side.
        window: how many positions, itself included, a token sees; None is all.
        head_norm: norm over each head of queries and keys before the rotation.
    """

    def __init__(
        self,
        ops: Ops,
        heads: HeadShape,
        *,
        qkv_proj: Linear,
        o_proj: Linear,
        scale: float,
        window: int | None = None,
        head_norm: HeadNorm | None = None,
    ) -> None:
        self.ops = ops
        self.heads = heads
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.scale = scale
        self.window = window
        self.head_norm = head_norm

    def __call__(self, x: Array, rope: Array, cache: KVCache) -> Array:
        qkv = self.qkv_proj(x)
        q = self.ops.rope_and_cache(qkv, rope, cache, self.heads, self.head_norm)
        return self.o_proj(self.ops.attention(q, cache, self.heads, self.scale, self.window))
