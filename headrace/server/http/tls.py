"""The certificate of a server: checked before the start, read again when its files change."""

from __future__ import annotations

import ssl

from headrace.errors import ConfigError
from headrace.logger import make_logger
from headrace.server.settings.listen import ListenSettings

logger = make_logger(__name__)


def check_tls(settings: ListenSettings) -> None:
    """Refuse a certificate that cannot be used, before uvicorn stumbles over it."""
    if settings.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"ssl_certfile {settings.ssl_certfile} and ssl_keyfile {settings.ssl_keyfile} "
            f"cannot be used: {error.strerror or error}"
        ) from None


def tls_files(settings: ListenSettings) -> list[str]:
    """The files a running server reads again when they change."""
    if settings.ssl_certfile is None or not settings.enable_ssl_refresh:
        return []
    files = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
    return [path for path in files if path is not None]


def reload_certificate(context: ssl.SSLContext, settings: ListenSettings) -> None:
    """Let new connections get what the files hold now; files that do not fit change nothing."""
    try:
        check_tls(settings)  # a context that refuses a pair of files may have taken half of it
    except ConfigError as error:
        logger.error("the TLS certificate stays as it was: %s", error)
        return
    assert settings.ssl_certfile is not None
    context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    if settings.ssl_ca_certs is not None:
        context.load_verify_locations(settings.ssl_ca_certs)
    logger.info("read the TLS certificate again: %s", settings.ssl_certfile)
