"""What the server tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError
from headrace.server.settings.checks import check_choice

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclass
class ObservabilitySettings:
    """The options of the group Observability."""

    metrics_prefix: str = option(
        "headrace", "What stands before the colon in names of engine metrics.",
        group="Observability",
    )  # fmt: skip
    request_log: str | None = option(
        None,
        "File to which a line of JSON is written for each request: whose it was and what it took. "
        "Made anew when it was moved away, and on SIGHUP.",
        group="Observability",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector (http://HOST:4318/v1/traces) that gets a span for each "
        "request; needs headrace[otel].",
        group="Observability",
    )
    uvicorn_log_level: str = option(
        "info", "How much the HTTP layer logs.", group="Observability", choices=LOG_LEVELS
    )
    disable_uvicorn_access_log: bool = option(
        False, "Log no line per HTTP request.", group="Observability"
    )
    disable_access_log_for_endpoints: list[str] = option(  # noqa: RUF009 - a fresh copy
        [], "Paths whose requests get no such line; also with commas between them.",
        group="Observability",
    )  # fmt: skip
    log_format: str = option(
        "text", "How lines of the log look: text, or JSON objects.", group="Observability",
        choices=("text", "json"),
    )  # fmt: skip

    @property
    def quiet_paths(self) -> list[str]:
        """The paths whose requests are not logged."""
        given = [path for item in self.disable_access_log_for_endpoints for path in item.split(",")]
        return [path.strip() for path in given if path.strip()]

    def check_observability(self) -> None:
        """Raise ConfigError for values that cannot work."""
        check_choice(self, "log_format", ("text", "json"))
        check_choice(self, "uvicorn_log_level", LOG_LEVELS)
        if not self.metrics_prefix.replace("_", "a").isalnum() or not self.metrics_prefix.isascii():
            raise ConfigError(
                f"metrics_prefix must be letters, digits and _, got {self.metrics_prefix!r}"
            )
