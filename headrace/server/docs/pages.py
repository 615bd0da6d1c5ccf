"""/openapi.json, and the pages on which people read it and try the routes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headrace.server.docs.openapi import Route, openapi_document
from headrace.server.routes.table import RouteRow
from headrace.server.state import ServerState

# What draws the pages comes from a network of copies: it is larger than all of headrace.
_SWAGGER = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5"
_REDOC = "https://cdn.jsdelivr.net/npm/redoc@2/bundles/redoc.standalone.js"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>headrace</title>
{head}
</head>
<body>
<div id="page">What draws this page could not be loaded: it comes from cdn.jsdelivr.net.
The document itself is at <a href="openapi.json">openapi.json</a>.</div>
{body}
</body>
</html>
"""
_SWAGGER_PAGE = _PAGE.format(
    head=f'<link rel="stylesheet" href="{_SWAGGER}/swagger-ui.css">',
    body=f'<script src="{_SWAGGER}/swagger-ui-bundle.js"></script>\n'
    '<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#page"})</script>',
)
_REDOC_PAGE = _PAGE.format(
    head="",
    body=f'<script src="{_REDOC}"></script>\n'
    '<script>Redoc.init("openapi.json", {}, document.getElementById("page"))</script>',
)


class Document:
    """The document over these routes, made when it is first asked for."""

    def __init__(self, rows: Sequence[RouteRow]) -> None:
        self._rows = rows
        self._encoded: bytes | None = None

    async def answer(self, state: ServerState, _request: Request) -> Response:
        """What each route takes and answers."""
        if self._encoded is None:
            routes = [
                Route(method, path, handler.__name__, handler.__doc__ or "", body)
                for method, path, handler, body in self._rows
            ]
            document = openapi_document(
                routes, needs_key=state.keys is not None, root_path=state.settings.root_path
            )
            self._encoded = msgspec.json.encode(document)
        return Response(self._encoded, media_type="application/json")


async def swagger_page(_state: ServerState, _request: Request) -> Response:
    """The document, with forms to try the routes."""
    return HTMLResponse(_SWAGGER_PAGE)


async def redoc_page(_state: ServerState, _request: Request) -> Response:
    """The document, to be read."""
    return HTMLResponse(_REDOC_PAGE)
