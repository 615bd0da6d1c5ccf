"""Who may use the server."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError

API_KEY_ENV = "HEADRACE_API_KEY"


# The defaults below are fresh copies, made by `option`.
@dataclass
class AccessSettings:
    """The options of the group Access."""

    api_key: list[str] = option(  # noqa: RUF009
        [],
        f"Keys clients must send as `Authorization: Bearer KEY`; default is ${API_KEY_ENV}. "
        "Guards every route but /health, /livez, /readyz, /startupz, /ping and /version.",
        group="Access",
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "JSON file of keys with names, scopes (infer, admin, metrics) and limits; read again when "
        "it changes.",
        group="Access",
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

    @property
    def needs_keys(self) -> bool:
        """Whether routes are guarded."""
        return bool(self.api_key) or self.api_key_file is not None

    def check_access(self) -> None:
        """Take the key of the environment where none is given.

        Raises:
            ConfigError: a value that cannot work.
        """
        if not self.needs_keys and API_KEY_ENV in os.environ:
            self.api_key = [os.environ[API_KEY_ENV]]
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
