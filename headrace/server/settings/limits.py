"""Bounds on what strangers may send. Each has a default that no honest client meets."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.args import option
from headrace.server.settings.checks import check_integer, check_seconds


@dataclass
class LimitSettings:
    """The options of the group Limits."""

    max_connections: int = option(
        0,
        "Most connections at a time; further ones get a 503. 0: as many as the process may have "
        "open files, less 128.",
        group="Limits",
    )
    max_header_size: int = option(
        65_536, "Most bytes of a request's line and headers.", group="Limits", kind="size",
        short=("--h11-max-incomplete-event-size",),
    )  # fmt: skip
    max_header_count: int = option(
        256, "Most headers of a request.", group="Limits", short=("--h11-max-header-count",)
    )
    header_timeout: float = option(
        30.0,
        "Seconds a connection may take to send the head of a request, and before that for the "
        "handshake of TLS; 0 is for ever.",
        group="Limits",
    )
    body_timeout: float = option(
        60.0, "Seconds a request's body may take to come; 0 is for ever.", group="Limits"
    )
    max_body_size: int = option(
        32 << 20, "Most bytes of a request's body, unpacked.", group="Limits", kind="size"
    )
    max_json_depth: int = option(128, "Deepest nesting of a request's JSON.", group="Limits")
    max_json_values: int = option(
        1_000_000,
        "Most values in a request's JSON; numbers in lists, such as token ids, are not counted.",
        group="Limits",
        kind="size",
    )
    max_prompts: int = option(1024, "Most prompts in one request.", group="Limits", kind="size")
    max_choices: int = option(
        4096, "Most answers in one request: prompts times n.", group="Limits", kind="size"
    )
    max_tokenize_length: int = option(
        4 << 20, "Most characters for /tokenize, and most token ids for /detokenize.",
        group="Limits", kind="size",
    )  # fmt: skip
    max_stop_strings: int = option(4, "Most stop strings in one request.", group="Limits")
    max_stop_length: int = option(
        1024, "Most characters of a stop string or a bad word.", group="Limits", kind="size"
    )
    max_token_entries: int = option(
        16_384,
        "Most entries of each of logit_bias, stop_token_ids and allowed_token_ids.",
        group="Limits",
        kind="size",
    )

    def check_limits(self) -> None:
        """Raise ConfigError for values that cannot work."""
        for name, low, high in (
            ("max_connections", 0, 2**31),
            ("max_header_size", 1, 2**31),
            ("max_header_count", 1, 2**31),
            ("max_body_size", 1, 2**40),
            ("max_json_depth", 1, 500),
            ("max_json_values", 1, 2**31),
            ("max_prompts", 1, 2**31),
            ("max_choices", 1, 2**31),
            ("max_tokenize_length", 1, 2**40),
            ("max_stop_strings", 0, 2**31),
            ("max_stop_length", 1, 2**31),
            ("max_token_entries", 0, 2**31),
        ):
            check_integer(self, name, low, high)
        for name in ("header_timeout", "body_timeout"):
            check_seconds(self, name)
