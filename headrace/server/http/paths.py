"""Paths of requests: as the router sees them, and those that are treated apart."""

from __future__ import annotations

from starlette.types import Scope

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/startupz", "/ping", "/version"})
"""Need no key."""
UNMEASURED = OPEN_PATHS | {"/metrics"}


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the root path, when it stands there."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path
