"""What is found in the text of an answer, in the order in which it stands there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The beginning of a call, with its arguments as far as they are known.

    Attributes:
        index: of the call in the answer, from 0.
        arguments: JSON; what `MoreArguments` of the same index add belongs behind it.
    """

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MoreArguments:
    """Further arguments of the last call."""

    index: int
    text: str


Event: TypeAlias = Content | Reasoning | ToolCall | MoreArguments


def joined(events: list[Event]) -> list[Event]:
    """The same events with neighbours made one, however the text was cut."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        match last, event:
            case Content(), Content():
                out[-1] = Content(last.text + event.text)
            case Reasoning(), Reasoning():
                out[-1] = Reasoning(last.text + event.text)
            case ToolCall(), MoreArguments():
                out[-1] = replace(last, arguments=last.arguments + event.text)
            case _:
                out.append(event)
    return out
