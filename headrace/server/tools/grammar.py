"""Grammars that hold the calls of an answer to the parameters of their tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.errors import ValidationError
from headrace.server.tools.choice import Tool, ToolPlan
from headrace.server.tools.parameter_grammar import ParameterWriter, quoted
from headrace.structured.json_schema import SchemaCleaner, write_json
from headrace.structured_params import StructuredOutputsParams
from headrace.text.tool_calls.call_parser import CallForm

FENCE, FENCE_END = "```json", "```"


def tool_grammar(
    plan: ToolPlan,
    max_depth: int,
    answer: StructuredOutputsParams | None = None,
    *,
    thought_marks: Sequence[str] = (),
) -> StructuredOutputsParams:
    """What the text of an answer must follow.

    Args:
        max_depth: of the schemas.
        answer: the JSON that the answer is when it is no calls; for plans with `or_json`.
        thought_marks: texts that open a thought: with them no answer begins.

    Raises:
        ValidationError: a schema that could not be enforced; names its field.
    """
    form = plan.family.form
    if form is None:
        assert plan.family.parameter_form is not None, "plan_tools refuses what no grammar can hold"
        one_by_one = ParameterWriter(plan.family.parameter_form, max_depth)
        return _grammar(one_by_one.free(plan), one_by_one.rules)
    writer = _Writer(form, plan.tools, [_schema(plan, tool, max_depth) for tool in plan.tools])
    if plan.or_json:
        assert answer is not None
        start = f"{writer.forced(plan)} | %json {_answer_schema(answer, max_depth)}"
    else:
        start = writer.forced(plan) if plan.is_forced else writer.free(plan, thought_marks)
    return _grammar(start, writer.rules)


def _grammar(start: str, rules: Sequence[str]) -> StructuredOutputsParams:
    lines = [f"start: {start}", *rules, r"TEXT: /(.|\n)*/", ""]
    # That sign would make the text one in another notation. It can stand in strings only.
    return StructuredOutputsParams(grammar="\n".join(lines).replace("::=", ":\\u003a="))


@contextmanager
def errors_name_tools(plan: ToolPlan | None) -> Iterator[None]:
    """Errors of the grammar made of tools name these, and not structured_outputs.

    Raises: what is raised inside.
    """
    try:
        yield
    except ValidationError as error:
        ours = "structured_outputs"
        if plan is None or not plan.has_grammar or not (error.param or "").startswith(ours):
            raise
        text = str(error).replace(error.param or ours, "tools")
        raise ValidationError(text, param="tools") from None


def _answer_schema(answer: StructuredOutputsParams, max_depth: int) -> str:
    field = "response_format.json_schema"
    clean = SchemaCleaner(field, max_depth=max_depth).clean(answer.json or {"type": "object"})
    return write_json(clean, field)


def _schema(plan: ToolPlan, tool: Tool, max_depth: int) -> str:
    """A tool's parameters as JSON, fit for the grammar."""
    field = f"{tool.field}.parameters"
    if not plan.is_forced and not tool.is_strict:
        return '{"type": "object"}'
    kinds = tool.parameters.get("type", "object")
    if kinds != "object":
        raise ValidationError(f"{field}: its type must be object", param=f"{field}.type")
    clean = SchemaCleaner(field, max_depth=max_depth).clean(tool.parameters)
    return write_json({**clean, "type": "object"}, field)


class _Writer:
    """Writes rules; a rule of its own for each tool, of calls with and without a mark."""

    def __init__(self, form: CallForm, tools: Sequence[Tool], schemas: Sequence[str]) -> None:
        self._form = form
        self._tools = tools
        self._schemas = schemas
        self.rules: list[str] = []

    def forced(self, plan: ToolPlan) -> str:
        """Calls and nothing else."""
        form = self._form
        several = self._several(plan, self._calls("call", form.begin, form.end))
        return f"{_joined(form.before_all)} {several} {_joined(form.after_all)}"

    def free(self, plan: ToolPlan, thought_marks: Sequence[str]) -> str:
        """Text in which a mark is followed by calls; or, where the family allows it, calls without
        a mark from the beginning to the end."""
        form, family = self._form, plan.family
        [mark] = family.marks
        begin = form.begin.removeprefix(mark)
        marked = self._calls("marked", begin, form.end)
        if form.before_all == mark:
            marked = f"{self._several(plan, marked)} {_joined(form.after_all)}"
        # Lazy: free text ends with the first mark in it.
        self.rules.append(f"free[lazy]: TEXT {quoted(mark)}")
        self.rules.append("text: TEXT")
        if family.ends_answer:
            self.rules.append(f"behind: {self._several(plan, marked)}")
            self.rules.append("rest: free behind | text")
        else:
            self.rules.append(f"behind: {marked} rest")
            self.rules.append(f"rest: (free {marked})* text")
        if not family.openings:
            return "rest"
        bare = self._calls("bare", begin[begin.index("{") :], form.end[: form.end.index("}") + 1])
        several, line = self._several(plan, bare), quoted("\n")
        fenced = f"{quoted(FENCE)} {line} {several} {line} {quoted(FENCE_END)}"
        other = _beginning_otherwise((mark, *family.openings, *thought_marks))
        return f"({quoted(mark)} behind | {other} rest | {several} | {fenced})?"

    def _several(self, plan: ToolPlan, call: str) -> str:
        """One call, or more where the request allows that."""
        more = f"({_joined(self._form.separator)} {call})*" if plan.is_parallel else ""
        return f"{call} {more}".rstrip()

    def _calls(self, kind: str, begin: str, end: str) -> str:
        names: list[str] = []
        for tool, schema in zip(self._tools, self._schemas, strict=True):
            names.append(f"{kind}_{tool.index}")
            # A name between quotes is written as JSON writes it.
            name = json.dumps(tool.name, ensure_ascii=False)[1:-1]
            text = begin.replace("NAME", name)
            self.rules.append(f"{names[-1]}: {quoted(text)} %json {schema} {quoted(end)}")
        self.rules.append(f"{kind}: {' | '.join(names)}")
        return kind


def _joined(text: str) -> str:
    return quoted(text) if text else ""


def _beginning_otherwise(texts: Sequence[str]) -> str:
    """A pattern for the first characters of what begins with none of these texts, nor with white
    space: as few as tell that."""
    begun = sorted({text[:i] for text in texts for i in range(len(text))}, key=len)
    options = []
    for prefix in begun:
        taken = {text[len(prefix)] for text in texts if text.startswith(prefix)}
        excluded = "".join(sorted(_escaped(char) for char in taken))
        spaces = r" \t\r\n" if not prefix else ""
        options.append("".join(map(_escaped, prefix)) + f"[^{excluded}{spaces}]")
    return f"/{'|'.join(options)}/"


def _escaped(char: str) -> str:
    """A character in a pattern, also between brackets."""
    if char == "\n":
        return r"\n"
    return char if char.isalnum() or char in '_"<>`' else f"\\{char}"
