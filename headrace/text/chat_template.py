"""Renders chat templates: compiled once, bounded, every fault one line for the caller."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from threading import Lock
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError

from headrace.errors import ValidationError
from headrace.text.template_limits import MAX_CHARS, LimitError, bounded
from headrace.text.template_sandbox import MAX_SECONDS, TemplateSandbox

MAX_TEMPLATE_CHARS = 1 << 17
MAX_CACHED = 32
MAX_MESSAGE_CHARS = 500
MAX_INDENT = 16
PARAM = "chat_template"


class ComplaintError(TemplateError):
    """What a template says through raise_exception."""


class ChatTemplates:
    """Compiles templates once and renders them. Safe to use from several threads.

    Args:
        max_seconds, max_chars: what one rendering may take and make.
    """

    def __init__(self, max_seconds: float = MAX_SECONDS, max_chars: int = MAX_CHARS) -> None:
        self._sandbox = TemplateSandbox(max_seconds)
        self._max_chars = max_chars
        self._sandbox.add_filter("tojson", to_json)
        self._sandbox.globals["raise_exception"] = _raise_exception
        self._sandbox.globals["strftime_now"] = _strftime_now
        self._compiled: OrderedDict[str, Template] = OrderedDict()
        self._lock = Lock()

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """The text of a template with these variables.

        Raises:
            ValidationError: the template does not compile, complains, fails, or takes more time or
                room than it may have.
        """
        try:
            self._sandbox.start_run()
            template = self._compile(source)
            pieces, num_chars = [], 0
            for piece in template.root_render_func(template.new_context(dict(variables))):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > self._max_chars:
                    raise LimitError(f"it makes more than {self._max_chars} characters")
            return "".join(pieces)
        except ComplaintError as complaint:
            raise ValidationError(_short(complaint), param="messages") from None
        except TemplateSyntaxError as error:
            raise ValidationError(
                f"the chat template is not valid (line {error.lineno}): {_short(error)}",
                param=PARAM,
            ) from None
        except RecursionError:
            raise ValidationError(
                "the chat template failed: it is nested too deeply", param=PARAM
            ) from None
        except Exception as error:
            # whatever a stranger's program runs into is the caller's to see, in one line
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise ValidationError(
                f"the chat template failed: {kind}{_short(error)}", param=PARAM
            ) from None

    def _compile(self, source: str) -> Template:
        with self._lock:
            template = self._compiled.get(source)
            if template is not None:
                self._compiled.move_to_end(source)
                return template
        if len(source) > MAX_TEMPLATE_CHARS:
            raise LimitError(f"it is longer than {MAX_TEMPLATE_CHARS} characters")
        template = self._sandbox.from_string(source)
        with self._lock:
            self._compiled[source] = template
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return template


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter tojson as chat templates expect it: plain JSON, not escaped for HTML."""
    bounded(value)
    if indent is not None and not 0 <= int(indent) <= MAX_INDENT:
        raise LimitError(f"it indents by more than {MAX_INDENT}")
    if separators is not None and sum(map(len, separators)) > MAX_INDENT:
        raise LimitError("it separates by more than a few characters")
    return json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=separators,
        sort_keys=bool(sort_keys),
    )


def _raise_exception(message: object) -> NoReturn:
    raise ComplaintError(str(message)[:MAX_MESSAGE_CHARS] if isinstance(message, str) else "")


def _strftime_now(format: str) -> str:
    if len(format) > MAX_MESSAGE_CHARS or any(c.isdigit() for c in format):
        raise LimitError("it formats the time with widths or at length")
    return datetime.now().strftime(format)


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:MAX_MESSAGE_CHARS] if lines else type(error).__name__
