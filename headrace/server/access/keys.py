"""The keys a server knows: their names, what each may do, and how much of it at a time.

A key itself is kept as a digest and never told; its name is what logs, metrics and lists show.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from headrace.errors import ConfigError
from headrace.logger import make_logger

logger = make_logger(__name__)

Scope: TypeAlias = Literal["infer", "admin", "metrics"]
ALL_SCOPES: tuple[Scope, ...] = ("infer", "admin", "metrics")
MAX_FILE_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the requests of one key may take at a time; None is no limit."""

    max_num_reqs: int | None = None
    """Answers under way, queued or running."""
    max_num_tokens: int | None = None
    """What those may come to, prompts and max_tokens together."""
    max_num_queued_reqs: int | None = None
    """Answers without a first token."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of those."""


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as a key file has it; either the key itself or its SHA-256, in hexadecimal digits."""

    name: str
    key: str | None = None
    sha256: str | None = None
    scopes: tuple[Scope, ...] = ("infer",)
    limits: KeyLimits = KeyLimits()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[KeyRecord]


class Key(msgspec.Struct, frozen=True):
    """A known key."""

    name: str
    sha256: str
    scopes: frozenset[Scope]
    limits: KeyLimits = KeyLimits()


def plain_keys(keys: Sequence[str]) -> list[Key]:
    """Keys without a file: named by their place, allowed everything."""
    return [
        Key(f"api-key-{place}", _digest(key), frozenset(ALL_SCOPES))
        for place, key in enumerate(keys, 1)
    ]


def read_key_file(path: str | Path) -> list[Key]:
    """The keys of a file: JSON, `{"keys": [{"name": ..., "key": ...}]}`; see KeyRecord.

    Raises:
        ConfigError: it cannot be used; names the entry, never a key.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"api_key_file {path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"api_key_file {path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        records = msgspec.json.decode(data, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # A key may stand where a name belongs: what stands there is not repeated.
        reason = re.sub(r"unknown field `[^`]*`|enum value '[^']*'", _without_value, str(error))
        raise ConfigError(f"api_key_file {path}: {reason}") from None
    keys = [_key(record, f"api_key_file {path}: keys[{i}]") for i, record in enumerate(records)]
    for field in ("name", "sha256"):
        seen: dict[str, int] = {}
        for place, key in enumerate(keys):
            first = seen.setdefault(getattr(key, field), place)
            if first != place:
                what = "name" if field == "name" else "key"
                raise ConfigError(
                    f"api_key_file {path}: keys[{first}] and keys[{place}] have the same {what}"
                )
    if not keys:
        raise ConfigError(f"api_key_file {path}: there is no key in it")
    return keys


def _key(record: KeyRecord, where: str) -> Key:
    if not _NAME.fullmatch(record.name):  # not repeated: it may be a key
        raise ConfigError(
            f"{where}.name must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a "
            "letter or digit"
        )
    if (record.key is None) == (record.sha256 is None):
        raise ConfigError(f"{where} ({record.name}) needs either key or sha256")
    if record.key is not None and not record.key.strip():
        raise ConfigError(f"{where} ({record.name}): key must not be empty")
    sha256 = (record.sha256 or "").lower() if record.key is None else _digest(record.key)
    if not _SHA256.fullmatch(sha256):
        raise ConfigError(f"{where} ({record.name}): sha256 must be 64 hexadecimal digits")
    for field in KeyLimits.__struct_fields__:
        limit = getattr(record.limits, field)
        if limit is not None and limit < 0:
            raise ConfigError(f"{where} ({record.name}): limits.{field} must not be negative")
    return Key(record.name, sha256, frozenset(record.scopes), record.limits)


def _without_value(match: re.Match[str]) -> str:
    return " ".join(match[0].split(" ")[:2])


def _digest(key: str) -> str:
    return hashlib.sha256(key.strip().encode()).hexdigest()


class KeyRing:
    """All keys of one server.

    Found by a digest that is mixed with a secret of this process: how long a search takes tells
    nothing about any key.

    Args:
        plain: keys without a name.
        path: a key file.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, plain: Sequence[str], path: str | None) -> None:
        self._secret = secrets.token_bytes(32)
        self._plain = plain_keys(plain)
        self._path = path
        self._keys: dict[bytes, Key] = {}
        self._set(self._read())

    @property
    def path(self) -> str | None:
        """The key file."""
        return self._path

    def find(self, token: bytes) -> Key | None:
        """The key that is this text; None for a text that is none."""
        mixed = self._mix(hashlib.sha256(token.strip()).hexdigest())
        return self._keys.get(mixed)

    def reload(self) -> None:
        """Read the file again. One that cannot be used changes nothing, and the log says so."""
        try:
            keys = self._read()
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error)
            return
        before = {key.name: key for key in self._keys.values()}
        now = {key.name: key for key in keys}
        self._set(keys)
        logger.info(
            "read the keys again: %d keys; new: %s; gone: %s; changed: %s",
            len(now),
            _names(now.keys() - before.keys()),
            _names(before.keys() - now.keys()),
            _names({name for name in now.keys() & before.keys() if now[name] != before[name]}),
        )

    def _read(self) -> list[Key]:
        from_file = [] if self._path is None else read_key_file(self._path)
        names = {key.name for key in from_file}
        digests = {key.sha256 for key in from_file}
        for key in self._plain:
            if key.name in names or key.sha256 in digests:
                raise ConfigError(f"{key.name} of --api-key is in the key file, too")
        return [*self._plain, *from_file]

    def _set(self, keys: list[Key]) -> None:
        self._keys = {self._mix(key.sha256): key for key in keys}

    def _mix(self, sha256: str) -> bytes:
        return hmac.digest(self._secret, sha256.encode(), "sha256")


def _names(names: set[str]) -> str:
    shown = sorted(names)[:20]
    more = len(names) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more} more" if more else "")
