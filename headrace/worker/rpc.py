"""What may be asked of a worker and of its model from outside: two tables, and nothing else.

No code ever comes from another process, only the name of an entry and plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headrace.errors import ValidationError, shown
from headrace.models.model import CausalLM

Function: TypeAlias = Callable[..., Any]


def call_entry(table: Mapping[str, Function], of: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Call an entry of a table with what the table is about as its first argument.

    Raises:
        ValidationError: no such entry, or arguments it does not take.
    """
    function = table.get(name)
    if function is None:
        raise ValidationError(
            f"there is no method {shown(name)}; there are {', '.join(sorted(table))}",
            param="method",
        )
    try:
        return function(of, *args, **kwargs)
    except TypeError as error:
        raise ValidationError(f"{name}: {error}", param="args") from error


def model_layout(model: CausalLM) -> str:
    """A model in one line."""
    heads = model.heads
    return (
        f"{type(model).__name__}(num_layers={model.num_layers}, hidden_size={model.hidden_size}, "
        f"num_heads={heads.num_heads}, num_kv_heads={heads.num_kv_heads}, "
        f"head_dim={heads.head_dim}, vocab_size={model.vocab_size})"
    )


MODEL_FUNCTIONS: dict[str, Function] = {"layout": model_layout}
"""name -> function of the model, for `apply_model`."""
