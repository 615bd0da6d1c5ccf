"""Where the server listens, and how it ends."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError
from headrace.server.settings.checks import check_integer, check_seconds

DEV_MODE_ENV = "HEADRACE_SERVER_DEV_MODE"


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
    ssl_ca_certs: str | None = option(
        None, "File with the authorities that may sign certificates of clients.", group="Server"
    )
    ssl_cert_reqs: int = option(
        0, "Certificates of clients: 0 none, 1 optional, 2 required.", group="Server"
    )
    ssl_ciphers: str | None = option(None, "Ciphers, as OpenSSL names them.", group="Server")
    enable_ssl_refresh: bool = option(
        True, "Read the TLS files again when they change.", group="Server"
    )
    middleware: list[str] = option(  # noqa: RUF009 - a fresh copy
        [],
        "Import paths (package.object) of ASGI middleware classes, or of coroutine functions "
        "(request, call_next), to put around the application; the last is outermost.",
        group="Server",
    )
    enable_admin_routes: bool = option(
        False,
        "Serve routes for operators (/sleep, /wake_up, /pause, /resume, /reset_prefix_cache, "
        "/start_profile, /server_info, /abort_requests ...). With keys they need the scope admin. "
        f"{DEV_MODE_ENV}=1 does the same.",
        group="Server",
    )
    disable_fastapi_docs: bool = option(
        False, "Serve neither /docs, /redoc nor /openapi.json.", group="Server"
    )
    engine_death_linger: float = option(
        5.0,
        "Seconds the server goes on answering (503) after its engine died, before it exits with "
        "status 1.",
        group="Server",
    )

    def check_listening(self) -> None:
        """Raise ConfigError for values that cannot work."""
        check_integer(self, "port", 0, 65535)
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs must be 0, 1 or 2, got {self.ssl_cert_reqs!r}")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs")
        if os.environ.get(DEV_MODE_ENV) == "1":
            self.enable_admin_routes = True
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("ssl_keyfile and ssl_certfile must be given together")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path must begin and not end with '/', got {self.root_path!r}")
        check_seconds(self, "engine_death_linger")
