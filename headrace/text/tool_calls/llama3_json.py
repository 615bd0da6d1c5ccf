"""Llama 3: the answer is `{"name": "f", "parameters": {...}}`, several with `;` between them.

`<|python_tag|>` may stand before them.
"""

from __future__ import annotations

from headrace.text.tool_calls.call_parser import CallForm, Family
from headrace.text.tool_calls.json_calls import read_bare

FAMILY = Family(
    marks=("<|python_tag|>",),
    read=read_bare,
    read_opening=read_bare,
    forms=(CallForm(begin='{"name": "NAME", "parameters": ', end="}", separator="; "),),
    openings=("{", "```json"),
    ends_answer=True,
)
