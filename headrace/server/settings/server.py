"""What a user may ask of the HTTP server: one flat record, from which flags are generated.

Its groups are in files of their own; what requests may ask is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.config.args import option
from headrace.errors import ConfigError
from headrace.inputs import CONTENT_FORMATS
from headrace.server.settings.access import AccessSettings
from headrace.server.settings.checks import check_choice, check_integer, check_seconds
from headrace.server.settings.limits import LimitSettings
from headrace.server.settings.listen import ListenSettings
from headrace.server.settings.observability import ObservabilitySettings
from headrace.server.settings.tools import ToolSettings


@dataclass
class ServerSettings(
    LimitSettings, ToolSettings, ObservabilitySettings, AccessSettings, ListenSettings
):
    """The options of one HTTP server.

    Raises:
        ConfigError: a value that cannot work, in one line.
    """

    strict_requests: bool = option(
        False, "Refuse requests with unknown fields instead of listing them in a header.",
        group="Requests",
    )  # fmt: skip
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
    sse_keep_alive_interval: float = option(
        0.0,
        "Most seconds a stream may be silent: then a comment is sent, for proxies that close "
        "connections on which nothing comes. 0 is off.",
        group="Requests",
    )
    enable_request_id_headers: bool = option(
        False, "Answer with an X-Request-Id header: the client's, or a new one.", group="Requests"
    )

    def __post_init__(self) -> None:
        self.check_listening()
        self.check_access()
        self.check_observability()
        self.check_tools()
        self.check_limits()
        self._check_others()

    def _check_others(self) -> None:
        check_integer(self, "stream_resume_size", 1)
        check_integer(self, "max_resumable_streams", 0)
        check_seconds(self, "stream_resume_seconds")
        check_seconds(self, "sse_keep_alive_interval")
        check_choice(self, "chat_template_content_format", CONTENT_FORMATS)
        if not isinstance(self.default_chat_template_kwargs, dict):
            raise ConfigError('default_chat_template_kwargs must be a JSON object, like {"a": 1}')
        if not self.response_role:
            raise ConfigError("response_role must not be empty")
