"""Lets requests pass that have a key, where keys are needed."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.access.caller import caller_of
from headrace.server.access.keys import Key, KeyRing
from headrace.server.access.keys import Scope as KeyScope
from headrace.server.errors import AuthenticationError, PermissionDeniedError
from headrace.server.http.paths import route_path

INFER: frozenset[KeyScope] = frozenset({"infer"})


class KeyGuard:
    """Lets a request pass only with a key of the right scope, except on a short list of open paths.

    Works on the path the router will see, and denies by default: a new route is guarded, by the
    scope `infer`, without further code.

    Args:
        scopes: path -> the scopes of which one is needed there and below, where it is not `infer`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        open_paths: frozenset[str],
        scopes: Mapping[str, frozenset[KeyScope]],
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        key = self._key(scope)
        caller_of(scope).key = key
        try:
            self._check(key, route_path(scope))
        except (AuthenticationError, PermissionDeniedError):
            if scope["type"] != "websocket":
                raise
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    def _key(self, scope: Scope) -> Key | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        return self._keys.find(token) if scheme.lower() == b"bearer" else None

    def _check(self, key: Key | None, path: str) -> None:
        if path in self._open_paths:
            return
        if key is None:
            raise AuthenticationError(
                "this route needs a valid key: send the header 'Authorization: Bearer KEY'"
            )
        needed = self._needed(path)
        if not key.scopes & needed:
            raise PermissionDeniedError(
                f"the key {key.name!r} may not use this route: it needs the scope "
                f"{' or '.join(sorted(needed))}"
            )

    def _needed(self, path: str) -> frozenset[KeyScope]:
        while path:
            if path in self._scopes:
                return self._scopes[path]
            path = path.rpartition("/")[0]
        return INFER
