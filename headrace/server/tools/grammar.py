"""Grammars that hold the calls of an answer to the parameters of their tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headrace.errors import ValidationError
from headrace.server.tools.choice import Tool, ToolPlan
from headrace.server.tools.grammar_texts import SPACES, beginning_otherwise, only_begun, quoted
from headrace.server.tools.keyword_grammar import KeywordWriter
from headrace.server.tools.parameter_grammar import ParameterWriter
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
    family = plan.family
    if family.parameter_form is not None:
        one_by_one = ParameterWriter(family.parameter_form, max_depth)
        return _grammar(one_by_one.free(plan), one_by_one.rules)
    if family.keyword_form is not None:
        keywords = KeywordWriter(family.keyword_form, max_depth)
        return _grammar(keywords.free(plan, thought_marks), keywords.rules)
    writer = _Writer(plan, [_schema(plan, tool, max_depth) for tool in plan.tools])
    if plan.or_json:
        assert answer is not None
        start = f"{writer.forced()} | %json {_answer_schema(answer, max_depth)}"
    else:
        start = writer.forced() if plan.is_forced else writer.free(thought_marks)
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

    def __init__(self, plan: ToolPlan, schemas: Sequence[str]) -> None:
        self._plan = plan
        self.rules = [
            f"arguments_{tool.index}: %json {schema}"
            for tool, schema in zip(plan.tools, schemas, strict=True)
        ]

    def forced(self) -> str:
        """Calls and nothing else."""
        options = [
            f"{_joined(form.before_all)} {self._several(form, call)} {_joined(form.after_all)}"
            for i, form in enumerate(self._plan.family.forms)
            if (call := self._calls(f"call_{i}", form, form.begin, form.end))
        ]
        return " | ".join(options)

    def free(self, thought_marks: Sequence[str]) -> str:
        """Text in which a mark is followed by calls; or, where the family allows it, calls without
        a mark from the beginning to the end."""
        family = self._plan.family
        [mark] = family.marks
        options = [
            option
            for i, form in enumerate(family.forms)
            if (option := self._marked(f"marked_{i}", form, mark))
        ]
        self.rules.append(f"marked: {' | '.join(options)}")
        # Lazy: free text ends with the first mark in it.
        self.rules.append(f"free[lazy]: TEXT {quoted(mark)}")
        self.rules.append("text: TEXT")
        behind = "" if family.ends_answer else " rest"
        self.rules.append(f"behind: marked{behind}")
        self.rules.append(
            "rest: free behind | text" if family.ends_answer else "rest: (free marked)* text"
        )
        if not family.openings:
            return "rest"
        [form] = family.forms
        begin = form.begin.removeprefix(mark)
        bare = self._calls(
            "bare", form, begin[begin.index("{") :], form.end[: form.end.index("}") + 1]
        )
        several, line = self._several(form, bare), quoted("\n")
        fenced = f"{quoted(FENCE)} {line} {several} {line} {quoted(FENCE_END)}"
        openings = (mark, *family.openings)
        other = beginning_otherwise((*openings, *thought_marks))
        self.rules.append(SPACES)
        text = f"{other} rest | {only_begun(openings)}"
        return f"SPACES? ({quoted(mark)} behind | {text} | {several} | {fenced})?"

    def _marked(self, kind: str, form: CallForm, mark: str) -> str:
        """What stands behind a mark: all calls where they are in brackets or nothing else comes, or
        one that others follow with marks of their own."""
        call = self._calls(kind, form, form.begin.removeprefix(mark), form.end)
        if not call:
            return ""
        if form.before_all.startswith(mark):
            before = form.before_all.removeprefix(mark)
            return f"{_joined(before)} {self._several(form, call)} {_joined(form.after_all)}"
        return self._several(form, call) if self._plan.family.ends_answer else call

    def _several(self, form: CallForm, call: str) -> str:
        """One call, or more where the request allows that."""
        more = f"({_joined(form.separator)} {call})*" if self._plan.is_parallel else ""
        return f"{call} {more}".rstrip()

    def _calls(self, kind: str, form: CallForm, begin: str, end: str) -> str:
        """A rule for a call of any tool; none when no name can be written so."""
        names: list[str] = []
        for tool in self._plan.tools:
            if not form.names.fullmatch(tool.name):
                continue
            names.append(f"{kind}_{tool.index}")
            # A name between quotes is written as JSON writes it.
            name = json.dumps(tool.name, ensure_ascii=False)[1:-1]
            text = quoted(begin.replace("NAME", name))
            self.rules.append(f"{names[-1]}: {text} arguments_{tool.index} {_joined(end)}")
        if names:
            self.rules.append(f"{kind}: {' | '.join(names)}")
        return kind if names else ""


def _joined(text: str) -> str:
    return quoted(text) if text else ""
