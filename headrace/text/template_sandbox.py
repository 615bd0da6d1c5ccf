"""The place where chat templates run: no way out to Python, and an end to every loop.

A template is a small program from a stranger. Jinja's sandbox keeps it away from Python's insides.
Added here: every loop turn and call is counted and timed, and what a template makes goes through
`template_limits`. No signals and no threads are used, so it works anywhere.
"""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from headrace.text.template_limits import (
    CHARS_PER_ITEM,
    DEEP_FILTERS,
    MAX_CHARS_MADE,
    SHALLOW_FILTERS,
    LimitError,
    bounded,
    check_binop,
    check_format,
    check_method,
    guard_filter,
    join_bounded,
    measure,
    range_bounded,
)

MAX_SECONDS = 5.0
MAX_STEPS = 500_000
"""Loop turns and calls of one rendering."""
BUILT_IN = (str, int, float, bytes, list, tuple, dict, set, frozenset)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for templates of strangers. Shared by threads.

    Args:
        max_seconds: what one rendering may take.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    bounded = staticmethod(bounded)

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._run = _Run()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=self._printable,
            cache_size=0,
        )
        self.code_generator_class = _CodeGenerator
        self.filters = {
            name: guard_filter(name, self.filters[name], self._after_filter)
            for name in SHALLOW_FILTERS | DEEP_FILTERS
        }
        self.globals = {
            "range": range_bounded,
            "dict": dict,
            "namespace": QuietNamespace,
            "joiner": self.globals["joiner"],
            "cycler": self.globals["cycler"],
        }

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Offer a filter that is not Jinja's own."""
        self.filters[name] = guard_filter(name, function, self._after_filter)

    # -- one rendering ------------------------------------------------------------------------

    def start_run(self) -> None:
        """Begin to count for a rendering in this thread."""
        self._run.steps = 0
        self._run.chars_made = 0
        self._run.deadline = time.monotonic() + self._max_seconds

    def tick(self) -> None:
        """One more loop turn or call. The compiled template calls this everywhere."""
        run = self._run
        run.steps += 1
        if run.steps > MAX_STEPS:
            raise LimitError(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > run.deadline:
            raise LimitError(f"it takes more than {self._max_seconds:g} seconds")

    def charged(self, value: Any) -> Any:
        """The value itself, when what this rendering made so far is not too much with it."""
        if isinstance(value, str):
            self._charge(len(value))
        elif isinstance(value, (list, tuple)):
            self._charge(CHARS_PER_ITEM * len(value))
        return value

    def _after_filter(self, result: Any) -> Any:
        self.tick()
        return self.charged(result)

    def _charge(self, num_chars: int) -> None:
        self._run.chars_made += num_chars
        if self._run.chars_made > MAX_CHARS_MADE:
            raise LimitError(f"it makes more than {MAX_CHARS_MADE} characters on the way")

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """A forbidden attribute fails at once, even where nobody uses what it would give."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not for chat templates")

    # -- what the compiled template calls -----------------------------------------------------

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something for the template, when it may be called like that."""
        self.tick()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, BUILT_IN):
            args = check_method(owner, obj.__name__, args)
        elif isinstance(obj, Macro) or obj is dict:
            bounded((args, kwargs))  # it may keep them as one list
        return self.charged(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator whose result may be larger than its operands."""
        check_binop(operator, left, right)
        return self.charged(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`text.format` and `text.format_map`, measured."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def guarded(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, [*args, *kwargs.values()])
            return inner(*args, **kwargs)

        return guarded

    def join_texts(self, values: tuple[Any, ...]) -> str:
        """The operator `~`."""
        return self.concat(str(self._printable(value)) for value in values)

    def concat(self, parts: Iterable[str]) -> str:
        """What a block or a macro has written, as one text."""
        text = join_bounded(parts)
        self._charge(len(text))
        return text

    def _printable(self, value: Any) -> Any:
        """What is written out: anything that is not too large as text."""
        self._charge(measure(value))
        return value

    def _compile(self, source: str, filename: str) -> CodeType:
        """Compile generated Python with a tick at the start of every loop turn and function."""
        tree = _AddTicks().visit(ast.parse(source, filename))
        return compile(ast.fix_missing_locations(tree), filename, "exec")


class _Run(threading.local):
    """What one rendering has used; each thread has its own."""

    steps = 0
    chars_made = 0
    deadline = float("inf")


class GenerationTag(Extension):
    """`{% generation %}`, with which templates mark what training looks at: only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read up to the end tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class QuietNamespace(Namespace):
    """A namespace that does not print what is in it (which may hold itself many times)."""

    def __repr__(self) -> str:
        return "<namespace>"


class _CodeGenerator(CodeGenerator):
    """Sends every list that a template writes, and every `~`, through the bounds."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._write_bounded(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._write_bounded(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._write_bounded(super().visit_Dict, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):  # a copy, made without asking the environment
            self.write("environment.charged(")
            super().visit_Getitem(node, frame)
            self.write(")")
        else:
            super().visit_Getitem(node, frame)

    def _write_bounded(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.bounded(")
        visit(node, frame)
        self.write(")")


class _AddTicks(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.AST:
        return self._add(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._add(node)

    def _add(self, node: ast.For | ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        environment = ast.Name("environment", ast.Load())
        tick = ast.Attribute(environment, "tick", ast.Load())
        node.body.insert(0, ast.Expr(ast.Call(tick, [], [])))
        return node
