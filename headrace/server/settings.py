"""What a user may ask of the HTTP server: one flat record, from which flags are generated.

Its groups are in files of their own; what requests may ask is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.config.args import option
from headrace.errors import ConfigError
from headrace.inputs import CONTENT_FORMATS
from headrace.server.access_settings import AccessSettings
from headrace.server.listen_settings import ListenSettings
from headrace.server.observability_settings import ObservabilitySettings
from headrace.server.tool_settings import ToolSettings


@dataclass
class ServerSettings(ToolSettings, ObservabilitySettings, AccessSettings, ListenSettings):
    """The options of one HTTP server.

    Raises:
        ConfigError: a value that cannot work, in one line.
    """

    strict_requests: bool = option(
        False, "Refuse requests with unknown fields instead of listing them in a header.",
        group="Requests",
    )  # fmt: skip
    max_prompts: int = option(1024, "Most prompts in one request.", group="Requests", kind="size")
    max_choices: int = option(
        4096, "Most answers in one request: prompts times n.", group="Requests", kind="size"
    )
    max_stop_strings: int = option(4, "Most stop strings in one request.", group="Requests")
    max_body_size: int = option(
        32 << 20, "Most bytes of a request's body.", group="Requests", kind="size"
    )
    max_json_depth: int = option(128, "Deepest nesting of a request's JSON.", group="Requests")
    trust_request_chat_template: bool = option(
        False, "Let requests bring a chat template of their own.", group="Requests"
    )
    default_chat_template_kwargs: dict[str, Any] = option(  # noqa: RUF009
        {},
        "Variables every chat template gets, as JSON; those of a request win.",
        group="Requests",
    )
    chat_template_content_format: str = option(
        "auto",
        "How templates see the content of messages: as one text, or, with `openai`, as the parts "
        "they came in. `auto` is one text.",
        group="Requests",
        choices=CONTENT_FORMATS,
    )
    response_role: str = option(
        "assistant", "Role of the messages a chat is answered with.", group="Requests"
    )
    return_tokens_as_token_ids: bool = option(
        False, "Write tokens in log-probabilities as `token_id:N`.", group="Requests"
    )
    enable_prompt_tokens_details: bool = option(
        False, "Tell in `usage` how many prompt tokens came from the cache.", group="Requests"
    )
    enable_usage_details: bool = option(
        False, "Tell in every `usage` what the request took; a request asks for it itself with "
        "include_usage_details.", group="Requests",
    )  # fmt: skip
    enable_force_include_usage: bool = option(
        False, "Send usage with every chunk of every stream, asked for or not.", group="Requests"
    )
    enable_resumable_streams: bool = option(
        False,
        "Let every streamed chat be resumed after a lost connection; a request asks for it itself "
        "with stream_options.resumable.",
        group="Requests",
    )
    stream_resume_seconds: float = option(
        30.0, "How long such a stream is kept after its connection is gone.", group="Requests"
    )
    stream_resume_size: int = option(
        256 << 10, "Bytes kept of such a stream that were read, and as many that were not.",
        group="Requests", kind="size",
    )  # fmt: skip
    max_resumable_streams: int = option(
        256, "Most such streams at a time; more are served without being kept.", group="Requests"
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "Serve /tokenizer_info: the tokenizer's configuration and chat template.",
        group="Requests",
    )  # fmt: skip
    body_timeout: float = option(
        60.0, "Seconds a request's body may take to come; 0 is for ever.", group="Requests"
    )
    enable_request_id_headers: bool = option(
        False, "Answer with an X-Request-Id header: the client's, or a new one.", group="Requests"
    )

    def __post_init__(self) -> None:
        self.check_listening()
        self.check_access()
        self.check_observability()
        self.check_tools()
        self._check_limits()

    def _check_limits(self) -> None:
        for name, low, high in (
            ("max_prompts", 1, 2**31),
            ("max_choices", 1, 2**31),
            ("max_stop_strings", 0, 2**31),
            ("max_body_size", 1, 2**40),
            ("max_json_depth", 1, 500),
            ("stream_resume_size", 1, 2**31),
            ("max_resumable_streams", 0, 2**31),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
        if not 0 <= self.stream_resume_seconds < float("inf"):
            raise ConfigError("stream_resume_seconds must be a number of seconds, 0 or more")
        if not 0 <= self.body_timeout < float("inf"):
            raise ConfigError("body_timeout must be a number of seconds, 0 or more")
        if self.chat_template_content_format not in CONTENT_FORMATS:
            raise ConfigError(
                f"chat_template_content_format must be one of {', '.join(CONTENT_FORMATS)}"
            )
        if not isinstance(self.default_chat_template_kwargs, dict):
            raise ConfigError('default_chat_template_kwargs must be a JSON object, like {"a": 1}')
        if not self.response_role:
            raise ConfigError("response_role must not be empty")
