"""What a user may ask of the HTTP server: one flat record, from which flags are generated."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError

API_KEY_ENV = "HEADRACE_API_KEY"
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


# The defaults below are fresh copies, made by `option`.
@dataclass
class ServerSettings:
    """The options of one HTTP server.

    Raises:
        ConfigError: a value that cannot work, in one line.
    """

    host: str | None = option(
        None, "Address to listen on. Default: all IPv4 interfaces.", group="Server"
    )
    port: int = option(8000, "Port to listen on; 0 picks a free one.", group="Server")
    uds: str | None = option(
        None, "Path of a Unix socket to listen on instead of host and port.", group="Server"
    )
    root_path: str = option(
        "", "Path prefix under which a proxy shows this server.", group="Server"
    )
    ssl_keyfile: str | None = option(None, "File with the TLS key.", group="Server")
    ssl_certfile: str | None = option(None, "File with the TLS certificate.", group="Server")
    disable_fastapi_docs: bool = option(
        False, "Serve neither /docs nor /openapi.json.", group="Server"
    )
    engine_death_linger: float = option(
        5.0,
        "Seconds the server goes on answering (503) after its engine died, before it exits with "
        "status 1.",
        group="Server",
    )

    api_key: list[str] = option(  # noqa: RUF009
        [],
        f"Keys clients must send as `Authorization: Bearer KEY`; default is ${API_KEY_ENV}. "
        "Guards every route but /health, /livez, /readyz, /startupz, /ping and /version.",
        group="Access",
        secret=True,
    )
    public_metrics: bool = option(False, "Let /metrics be read without a key.", group="Access")
    allowed_origins: list[str] = option(  # noqa: RUF009
        [], "Origins whose pages may call the server (CORS), as JSON.", group="Access", kind="json"
    )
    allowed_methods: list[str] = option(  # noqa: RUF009
        ["*"], "Methods such pages may use, as JSON.", group="Access", kind="json"
    )
    allowed_headers: list[str] = option(  # noqa: RUF009
        ["*"], "Headers such pages may send, as JSON.", group="Access", kind="json"
    )
    allow_credentials: bool = option(
        False, "Let such pages send cookies and credentials.", group="Access"
    )

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
    return_tokens_as_token_ids: bool = option(
        False, "Write tokens in log-probabilities as `token_id:N`.", group="Requests"
    )
    enable_prompt_tokens_details: bool = option(
        False, "Tell in `usage` how many prompt tokens came from the cache.", group="Requests"
    )
    enable_force_include_usage: bool = option(
        False, "Send usage with every chunk of every stream, asked for or not.", group="Requests"
    )
    enable_request_id_headers: bool = option(
        False, "Answer with an X-Request-Id header: the client's, or a new one.", group="Requests"
    )

    metrics_prefix: str = option(
        "headrace", "What stands before the colon in names of engine metrics.",
        group="Observability",
    )  # fmt: skip
    uvicorn_log_level: str = option(
        "info", "How much the HTTP layer logs.", group="Observability", choices=LOG_LEVELS
    )
    disable_uvicorn_access_log: bool = option(
        False, "Log no line per HTTP request.", group="Observability"
    )

    def __post_init__(self) -> None:
        if not self.api_key and API_KEY_ENV in os.environ:
            self.api_key = [os.environ[API_KEY_ENV]]
        self._check_access()
        self._check_limits()

    def _check_access(self) -> None:
        if any(not key.strip() for key in self.api_key):
            raise ConfigError("api_key must not be empty; leave it out to serve without keys")
        for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
            value = getattr(self, name)
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ConfigError(f'{name} must be a JSON list of strings, like ["*"]')
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "allow_credentials cannot go with allowed_origins '*'; list the origins you trust"
            )
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile must be given together")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path must begin and not end with '/', got {self.root_path!r}")

    def _check_limits(self) -> None:
        for name, low, high in (
            ("port", 0, 65535),
            ("max_prompts", 1, 2**31),
            ("max_choices", 1, 2**31),
            ("max_stop_strings", 0, 2**31),
            ("max_body_size", 1, 2**40),
            ("max_json_depth", 1, 500),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
        if not 0 <= self.engine_death_linger < float("inf"):
            raise ConfigError("engine_death_linger must be a number of seconds, 0 or more")
        if self.uvicorn_log_level not in LOG_LEVELS:
            raise ConfigError(f"uvicorn_log_level must be one of {', '.join(LOG_LEVELS)}")
        if not self.metrics_prefix.replace("_", "a").isalnum() or not self.metrics_prefix.isascii():
            raise ConfigError(
                f"metrics_prefix must be letters, digits and _, got {self.metrics_prefix!r}"
            )
