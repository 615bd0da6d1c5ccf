"""How calls and thoughts are found in what the model writes, and what tools requests may bring."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.args import option
from headrace.server.settings.checks import check_choice, check_integer
from headrace.text.reasoning import FORMATS
from headrace.text.tool_calls.table import ALIASES, FAMILIES

BY_ITSELF, NOT_AT_ALL = "auto", "none"
CALL_PARSERS = (BY_ITSELF, NOT_AT_ALL, *FAMILIES, *ALIASES)
REASONING_PARSERS = (BY_ITSELF, NOT_AT_ALL, *FORMATS)


@dataclass
class ToolSettings:
    """The options of the group Tools and reasoning."""

    max_tools: int = option(128, "Most tools in one request.", group="Tools and reasoning")
    max_tools_size: int = option(
        262_144, "Most bytes of a request's tools, as JSON.", group="Tools and reasoning",
        kind="size",
    )  # fmt: skip
    tool_call_parser: str = option(
        BY_ITSELF,
        f"How the model writes calls of tools: {', '.join(FAMILIES)}; auto goes by its chat "
        "template, none reads no calls.",
        group="Tools and reasoning",
    )
    enable_auto_tool_choice: bool = option(
        True,
        "Let the model call tools by its own choice (tool_choice auto).",
        group="Tools and reasoning",
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False,
        "With tool_choice none, do not show the tools to the model.",
        group="Tools and reasoning",
    )
    reasoning_parser: str = option(
        BY_ITSELF,
        f"How the model marks its thoughts: {', '.join(FORMATS)}; auto goes by its chat template, "
        "none leaves thoughts in the text.",
        group="Tools and reasoning",
    )
    reasoning_content_alias: bool = option(
        False,
        "Send thoughts as reasoning_content, too, for older clients.",
        group="Tools and reasoning",
    )

    def check_tools(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: names the option.
        """
        check_integer(self, "max_tools", 1)
        check_integer(self, "max_tools_size", 1)
        check_choice(self, "tool_call_parser", CALL_PARSERS)
        check_choice(self, "reasoning_parser", REASONING_PARSERS)
