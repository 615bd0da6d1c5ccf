"""From response_format and structured_outputs to one constraint on the text of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.errors import ValidationError
from headrace.server.protocol.common import GenerationRequest, ResponseFormat
from headrace.structured_params import StructuredOutputsParams

_TYPES = ("text", "json_object", "json_schema", "structural_tag")
_SCHEMA_FIELD = "response_format.json_schema"


def structured_outputs(body: GenerationRequest) -> StructuredOutputsParams | None:
    """What the request asks of the text; response_format wins over its like in structured_outputs.

    Raises:
        ValidationError: names the field.
    """
    values: dict[str, Any] = {}
    if body.structured_outputs is not None:
        values = body.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        tag = values.get("structural_tag")
        if isinstance(tag, dict):
            values["structural_tag"] = json.dumps(tag)
    if body.response_format is not None:
        values |= _of_response_format(body.response_format)
    if not values and body.structured_outputs is None:
        return None
    return StructuredOutputsParams(**values)


def _of_response_format(wanted: ResponseFormat) -> dict[str, Any]:
    match wanted.type:
        case "text":
            return {}
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            return {"json": _schema(wanted)}
        case "structural_tag":
            return {"structural_tag": _structural_tag(wanted)}
        case _:
            raise ValidationError(
                f"response_format.type must be one of {', '.join(_TYPES)}",
                param="response_format.type",
                value=wanted.type,
            )


def _schema(wanted: ResponseFormat) -> dict[str, Any]:
    schema = (wanted.json_schema or {}).get("schema")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ValidationError(
            "response_format of type json_schema needs response_format.json_schema.schema, "
            "an object",
            param=_SCHEMA_FIELD,
        )
    return schema


def _structural_tag(wanted: ResponseFormat) -> str:
    parts = {"format": wanted.format, "structures": wanted.structures, "triggers": wanted.triggers}
    given = {name: part for name, part in parts.items() if part is not None}
    if set(given) not in ({"format"}, {"structures", "triggers"}):
        raise ValidationError(
            "response_format of type structural_tag needs either response_format.format, or "
            "response_format.structures and response_format.triggers",
            param="response_format",
        )
    return json.dumps(given)


def _of_completion_tokens(error: ValidationError) -> ValidationError:
    text, num = re.subn(r"\bmax_tokens\b", "max_completion_tokens", str(error))
    if not num and error.param != "max_tokens":
        return error
    param = "max_completion_tokens" if error.param == "max_tokens" else error.param
    return ValidationError(text, param=param)


_NAMES_OF_THE_ENGINE = {"extra_args": "vllm_xargs"}


@contextmanager
def fields_as_sent(body: GenerationRequest) -> Iterator[None]:
    """Errors name the fields as the request does, and not as the engine knows them: the constraint
    that came as response_format, the number of log-probabilities of a chat, the length of its
    answer.

    Raises: what is raised inside.
    """
    try:
        yield
    except ValidationError as error:
        if getattr(body, "max_completion_tokens", None) is not None:
            error = _of_completion_tokens(error)
        ours, _, kind = (error.param or "").partition(".")
        theirs = _NAMES_OF_THE_ENGINE.get(ours)
        wanted = body.response_format
        if ours == "logprobs" and getattr(body, "top_logprobs", None) is not None:
            theirs = "top_logprobs"
        elif ours == "structured_outputs" and wanted is not None and wanted.type != "text":
            names = {"json": _SCHEMA_FIELD, "json_object": "response_format"}
            names["structural_tag"] = "response_format"
            theirs = names.get(kind, "response_format")
            ours = f"structured_outputs.{kind}" if kind else ours
        if theirs is None:
            raise error from None
        text = str(error).replace(ours, theirs, 1 if theirs == "top_logprobs" else -1)
        raise ValidationError(text, param=theirs) from None
