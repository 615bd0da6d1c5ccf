"""Token embeddings."""

from __future__ import annotations

from headrace.ops.ops import Array, Ops, Table


class Embedding:
    """Rows of a table at the step's token ids, times a scale. -> [T, H]"""

    def __init__(self, ops: Ops, table: Table, scale: float) -> None:
        self.ops = ops
        self.table = table
        self.scale = scale

    def __call__(self) -> Array:
        return self.ops.embedding(self.table, self.scale)
