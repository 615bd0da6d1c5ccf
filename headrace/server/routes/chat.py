"""POST /v1/chat/completions: a conversation in, its next message out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET
from starlette.requests import Request

from headrace.errors import ValidationError
from headrace.inputs import EngineInput
from headrace.outputs import CompletionOutput
from headrace.sampling_params import SamplingParams
from headrace.server.generation.answer import Head, check_answer
from headrace.server.generation.beams import start_requests
from headrace.server.generation.logprobs import LogprobWriter, prompt_logprobs
from headrace.server.generation.params import (
    check_request,
    default_max_tokens,
    priority_of,
    sampling_params,
)
from headrace.server.generation.plan import AnswerPlan
from headrace.server.generation.prompts import check_chat_options, render_chat, tokenizer_of
from headrace.server.generation.response_format import fields_as_sent
from headrace.server.http.body import read_body
from headrace.server.http.request_ids import request_id_stem
from headrace.server.protocol.chat import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
)
from headrace.server.state import ServerState
from headrace.server.streams.live import Job, LiveRequests
from headrace.server.tools.answer_formats import (
    call_family,
    fit_params,
    plan_reasoning,
    reasoning_format,
)
from headrace.server.tools.choice import ToolPlan, plan_tools
from headrace.server.tools.grammar import errors_name_tools, tool_grammar
from headrace.server.tools.parsed_answer import AnswerReader, ParsingPlan, without_indices


@dataclass(kw_only=True)
class ChatPlan(AnswerPlan):
    """Everything decided about one conversation before the engine gets it.

    Attributes:
        role: who speaks the answer.
        echoed: text the answer begins with (`echo`), usually nothing.
        parsing: how the text of the answers is read.
        count_calls: told at the end of each answer that may hold calls whether it does.
    """

    body: ChatRequest
    job: Job
    prompt: EngineInput
    role: str
    echoed: str
    parsing: ParsingPlan
    count_calls: Callable[[bool], None] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parsing.reasoning is not None:
            self.tally.reasoning_tokens = 0

    @property
    def tells_token_ids(self) -> bool:
        """Whether the tokens of answers are shown: where thoughts are hidden, they are as well."""
        return bool(self.body.return_token_ids) and not self.parsing.hides_thoughts

    @property
    def tells_logprobs(self) -> bool:
        """Whether the log-probabilities of answers are shown; see tells_token_ids."""
        return bool(self.body.logprobs) and not self.parsing.hides_thoughts

    def reader(self) -> AnswerReader:
        """What reads one choice."""
        return AnswerReader(self.parsing, tokenizer_of(self.engine), self.tally, self.count_calls)

    def logprobs(self, writer: LogprobWriter, answer: CompletionOutput) -> ChatLogprobs | None:
        """Log-probabilities of an answer or a piece of it, when asked for."""
        if not self.tells_logprobs:
            return None
        top = self.body.top_logprobs or 0
        return writer.for_chat(answer.token_ids, answer.logprobs or [], top)


async def plan_chat(state: ServerState, request: Request, body: ChatRequest) -> ChatPlan:
    """Check and render everything; nothing has reached the engine afterwards.

    Raises: every refusal that a request can get before its first token.
    """
    settings, engine = state.settings, state.engine
    model = state.model_name(body.model)
    check_chat_options(body, settings)
    max_logprobs = engine.config.model.max_logprobs
    num_choices = check_request(body, settings, num_prompts=1, max_logprobs=max_logprobs)
    priority = priority_of(request, body, engine.config)
    stem = request_id_stem(request, body.request_id)
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(body, field)
    params = sampling_params(
        body,
        engine,
        max_tokens=default_max_tokens(engine.config) if max_tokens is None else max_tokens,
        max_tokens_field=field,
        logprobs=_num_logprobs(body),
        prompt_logprobs=body.prompt_logprobs,
    )
    tools = plan_tools(body, settings, call_family(engine, settings, body.chat_template))
    format = reasoning_format(engine, settings, body.chat_template)
    if tools is not None and tools.has_grammar:
        marks = () if format is None else format.starts
        constrain(params, body, tools, engine.config.structured_outputs.max_depth, marks)
    with state.admit(request, num_choices):
        prompt = await render_chat(engine, body, settings)
    thought = None if format is None else plan_reasoning(format, body, prompt, engine)
    parsing = ParsingPlan(tools, thought)
    fit_params(params, parsing, engine)
    continues = body.continue_final_message or body.add_generation_prompt is False
    last = body.messages[-1]
    return ChatPlan(
        body=body,
        engine=engine,
        head=Head.now(f"chatcmpl-{stem}", model, state.fingerprint),
        settings=settings,
        job=Job(f"chatcmpl-{stem}", prompt, params, priority),
        prompt=prompt,
        role=str(last.get("role")) if continues else settings.response_role,
        echoed=_echoed(body),
        parsing=parsing,
        count_calls=None
        if state.metrics is None
        else partial(state.metrics.tools.record, bool(body.stream)),
    )


def constrain(
    params: SamplingParams,
    body: ChatRequest,
    tools: ToolPlan,
    max_depth: int,
    thought_marks: Sequence[str],
) -> None:
    """Let the text follow what the tools want of it.

    Raises:
        ValidationError: tools that cannot be called so; names the field.
    """
    if body.structured_outputs is not None:
        raise ValidationError(
            "structured_outputs cannot go with tool_choice 'required', a named tool or strict "
            "tools, which constrain the text themselves",
            param="structured_outputs",
        )
    if params.structured_outputs is not None and not (tools.is_forced or tools.or_json):
        raise ValidationError(
            "response_format cannot go with strict tools here: where this model may call tools as "
            "it likes, its calls cannot be told from such an answer; leave out either",
            param="response_format",
        )
    params.structured_outputs = tool_grammar(
        tools, max_depth, params.structured_outputs, thought_marks=thought_marks
    )


def _num_logprobs(body: ChatRequest) -> int | None:
    """How many alternatives the engine shall report per token.

    Raises:
        ValidationError: top_logprobs without logprobs, or out of range.
    """
    top = body.top_logprobs
    if top is not None and not body.logprobs and top != 0:
        raise ValidationError("top_logprobs needs logprobs=true", param="top_logprobs", value=top)
    if top is not None and top < -1:
        raise ValidationError(
            f"top_logprobs must be at least 0, or -1 for all, got {top}", param="top_logprobs"
        )
    return (top or 0) if body.logprobs else None


def _echoed(body: ChatRequest) -> str:
    content = body.messages[-1].get("content") if body.echo else None
    return content if isinstance(content, str) else ""


async def whole_chat(plan: ChatPlan, live: LiveRequests) -> ChatCompletion:
    """The answer in one piece.

    Raises:
        EngineGenerateError, EngineDeadError: it could not be finished.
    """
    final = None
    async with aclosing(live.outputs()) as outputs:
        async for _job, output in outputs:
            for answer in output.outputs:
                check_answer(answer)
            final = output
    assert final is not None, "a stream ends with an output"
    plan.tally.add(0, final)
    body = plan.body
    answers = sorted(final.outputs, key=lambda one: one.index)
    choices = [_choice(plan, answer) for answer in answers]  # which counts tokens, too
    return ChatCompletion(
        id=plan.head.id,
        created=plan.head.created,
        model=plan.head.model,
        choices=choices,
        system_fingerprint=plan.head.fingerprint,
        usage=plan.tally.usage(),
        prompt_logprobs=prompt_logprobs(final.prompt_logprobs),
        prompt_token_ids=final.prompt_token_ids if body.return_token_ids else None,
        prompt_text=plan.prompt.prompt if body.return_prompt_text else UNSET,
    )


def _choice(plan: ChatPlan, answer: CompletionOutput) -> ChatChoice:
    reader = plan.reader()
    piece = reader.read(answer, is_last=True)
    content: str | None = plan.echoed + piece.content
    message = ChatMessage(role=plan.role, content=content)
    if piece.tool_calls:
        message.tool_calls = without_indices(piece.tool_calls)
    if piece.reasoning:
        message.reasoning = piece.reasoning
        if plan.settings.reasoning_content_alias:
            message.reasoning_content = piece.reasoning
    if piece.tool_calls or piece.reasoning:
        message.content = content or None
    return ChatChoice(
        index=answer.index,
        message=message,
        logprobs=plan.logprobs(plan.writer(), answer),
        finish_reason=reader.finish_reason(answer.finish_reason),
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if plan.tells_token_ids else None,
    )


async def answer_chat(
    state: ServerState, request: Request
) -> tuple[ChatPlan, LiveRequests, dict[str, str]]:
    """Read a request and hand it to the engine; every refusal comes from here."""
    body, headers = await read_body(request, ChatRequest, state)
    plan = await plan_chat(state, request, body)
    with fields_as_sent(body), errors_name_tools(plan.parsing.tools):
        live = await start_requests(state, request, plan.head.id, body, [plan.job])
    return plan, live, headers
