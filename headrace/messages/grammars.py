"""What the front process and the process that checks grammars tell each other."""

from __future__ import annotations

import msgspec

from headrace.config.engine import StructuredOutputsConfig
from headrace.structured_params import StructuredOutputsParams


class GrammarQuery(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a caller asks of a text."""

    params: StructuredOutputsParams
    limits: StructuredOutputsConfig
    special_tokens: list[bytes]
    """Names of the model's marks, which grammars may use."""


class GrammarAnswer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The grammar, or why there is none."""

    grammar: str | None
    error: str = ""
    param: str | None = None
