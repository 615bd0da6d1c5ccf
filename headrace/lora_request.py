"""Names an adapter for one request. This version knows none yet and refuses such requests."""

from __future__ import annotations

import msgspec

from headrace.checks import check_integer
from headrace.errors import ValidationError


class LoRARequest(msgspec.Struct, frozen=True, eq=False):
    """An adapter. Two of one name are equal.

    Raises:
        ValidationError: a name or a path that is empty, or a number below 1.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        check_integer("lora_int_id", self.lora_int_id, 1, 2**31)
        for name in ("lora_name", "lora_path"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValidationError(f"{name} must be a non-empty string", param=name, value=value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and other.lora_name == self.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)
