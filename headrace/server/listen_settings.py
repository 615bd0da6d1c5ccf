"""Where the server listens, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError


@dataclass
class ListenSettings:
    """The options of the group Server."""

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

    def check_listening(self) -> None:
        """Raise ConfigError for values that cannot work."""
        is_number = isinstance(self.port, int) and not isinstance(self.port, bool)
        if not is_number or not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be an integer in [0, 65535], got {self.port!r}")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile must be given together")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path must begin and not end with '/', got {self.root_path!r}")
        if not 0 <= self.engine_death_linger < float("inf"):
            raise ConfigError("engine_death_linger must be a number of seconds, 0 or more")
