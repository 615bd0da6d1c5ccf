"""GET /v1/models: the names under which the model is served."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.generation.answer import json_response
from headrace.server.protocol.models import ModelCard, ModelList
from headrace.server.state import ServerState


async def list_models(state: ServerState, _request: Request) -> Response:
    """All names."""
    return json_response(ModelList(data=_cards(state)))


async def get_model(state: ServerState, request: Request) -> Response:
    """One of them."""
    name = request.path_params["model_id"]
    state.model_name(name)
    return json_response(next(card for card in _cards(state) if card.id == name))


def _cards(state: ServerState) -> list[ModelCard]:
    engine = state.engine
    return [
        ModelCard(
            id=name,
            created=state.started,
            root=engine.config.model.model,
            max_model_len=engine.max_model_len,
        )
        for name in engine.config.model.served_names
    ]
