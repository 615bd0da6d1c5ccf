"""What users put around the application, named by import paths."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware

from headrace.errors import ConfigError
from headrace.import_path import load_import_path


def add_user_middleware(app: Starlette, paths: Sequence[str]) -> None:
    """Put classes (ASGI) and coroutine functions (request, call_next) around an application.

    Raises:
        ConfigError: a path at which there is neither.
    """
    for path in paths:
        found: Any = load_import_path("middleware", path)
        if isinstance(found, type):
            app.add_middleware(cast(Any, found))
        elif inspect.iscoroutinefunction(found):
            app.add_middleware(BaseHTTPMiddleware, dispatch=found)
        else:
            raise ConfigError(
                f"middleware: {path!r} must be a class or a coroutine function, "
                f"got {type(found).__name__}"
            )
