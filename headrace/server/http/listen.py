"""The address a server listens on: a port or a Unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import ConfigError
from headrace.server.settings.listen import ListenSettings

BACKLOG = 2048


def bind(settings: ListenSettings) -> socket.socket:
    """A listening socket, so that a taken address is noticed before anything else is done.

    Raises:
        ConfigError: the address cannot be used.
    """
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    host = settings.host or "0.0.0.0"  # as servers of this field do; the log says so
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{settings.port}: {error.strerror or error}; "
            "choose another --port or --host"
        ) from None
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on --uds {path}: {error.strerror or error}") from None
    return listener


def _is_stale_socket(path: str) -> bool:
    """Whether a socket file lies there that nobody listens on."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) != 0


@contextlib.contextmanager
def removed_at_end(path: str | None) -> Iterator[None]:
    """Leave no socket file behind."""
    try:
        yield
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)


def address_of(listener: socket.socket, settings: ListenSettings) -> str:
    """Where clients find the server."""
    if settings.uds is not None:
        return f"http+unix://{settings.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    shown = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    if ":" in shown:
        shown = f"[{shown}]"
    return f"{scheme}://{shown}:{port}{settings.root_path}"
