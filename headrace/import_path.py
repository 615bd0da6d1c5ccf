"""Classes and functions named by where they are: `package.module:Name`.

So can one process tell another what to use, without ever sending code.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.errors import ConfigError


def import_path_of(option: str, value: object) -> str:
    """How another process finds it; a string is taken for such a path already.

    Raises:
        ConfigError: it is neither, or cannot be found by its path.
    """
    if isinstance(value, str):
        return value
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{option} must be an import path or a class, got {value!r}")
    path = f"{module}:{name}"
    if module == "__main__" or load_import_path(option, path) is not value:
        raise ConfigError(
            f"{option}: {path} cannot be imported by its path in another process; put it at the "
            "top of a module of its own"
        )
    return path


def load_import_path(option: str, path: str) -> Any:
    """What stands at `package.module:Name` or `package.module.Name`.

    Raises:
        ConfigError: nothing that can be imported; names the option.
    """
    module, colon, names = path.partition(":")
    if not colon:
        module, _, names = path.rpartition(".")
    if not module or not names:
        raise ConfigError(f"{option}: {path!r} is not an import path like package.module:Name")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}: {path!r} cannot be imported: {error}") from None
    return found
