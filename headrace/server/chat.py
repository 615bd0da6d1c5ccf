"""POST /v1/chat/completions: a conversation in, its next message out."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request

from headrace.errors import ValidationError
from headrace.inputs import EngineInput
from headrace.outputs import CompletionOutput
from headrace.server.answer import Head, check_answer
from headrace.server.body import read_body
from headrace.server.live import Job, LiveRequests
from headrace.server.logprobs import LogprobWriter, prompt_logprobs
from headrace.server.middleware import request_id_stem
from headrace.server.params import (
    check_request,
    default_max_tokens,
    priority_of,
    sampling_params,
)
from headrace.server.plan import AnswerPlan
from headrace.server.prompts import check_chat_options, render_chat
from headrace.server.protocol.chat import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
)
from headrace.server.response_format import fields_as_sent
from headrace.server.state import ServerState


@dataclass(kw_only=True)
class ChatPlan(AnswerPlan):
    """Everything decided about one conversation before the engine gets it.

    Attributes:
        role: who speaks the answer.
        echoed: text the answer begins with (`echo`), usually nothing.
    """

    body: ChatRequest
    job: Job
    prompt: EngineInput
    role: str
    echoed: str

    def logprobs(self, writer: LogprobWriter, answer: CompletionOutput) -> ChatLogprobs | None:
        """Log-probabilities of an answer or a piece of it, when asked for."""
        if not self.body.logprobs:
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
    check_tools(body)
    num_choices = check_request(body, settings, num_prompts=1)
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
    with state.admit(request, num_choices):
        prompt = await render_chat(engine, body, settings)
    continues = body.continue_final_message or body.add_generation_prompt is False
    last = body.messages[-1]
    return ChatPlan(
        body=body,
        engine=engine,
        head=Head.now(f"chatcmpl-{stem}", model, state.fingerprint),
        settings=settings,
        job=Job(f"chatcmpl-{stem}", prompt, params, priority),
        prompt=prompt,
        role=str(last.get("role")) if continues else "assistant",
        echoed=_echoed(body),
    )


def check_tools(body: ChatRequest) -> None:
    """Tools may be shown to the model; calls cannot be read from its answers yet.

    Raises:
        ValidationError: tools or a tool choice that would need that.
    """
    choice = body.tool_choice
    if body.tools is not None and not body.tools:
        raise ValidationError("tools must not be an empty list", param="tools")
    if body.tools is None:
        if choice not in (None, "none", "auto"):
            raise ValidationError("tool_choice needs tools", param="tool_choice")
        return
    if choice != "none":
        raise ValidationError(
            "calling tools needs --tool-call-parser (and --enable-auto-tool-choice), which this "
            "version does not have yet; with tool_choice 'none' tools are shown to the model and "
            "its answer comes as text",
            param="tool_choice",
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
    return ChatCompletion(
        id=plan.head.id,
        created=plan.head.created,
        model=plan.head.model,
        choices=[
            _choice(plan, answer) for answer in sorted(final.outputs, key=lambda one: one.index)
        ],
        system_fingerprint=plan.head.fingerprint,
        usage=plan.tally.usage(),
        prompt_logprobs=prompt_logprobs(final.prompt_logprobs),
        prompt_token_ids=final.prompt_token_ids if body.return_token_ids else None,
        prompt_text=plan.prompt.prompt if body.return_prompt_text else UNSET,
    )


def _choice(plan: ChatPlan, answer: CompletionOutput) -> ChatChoice:
    return ChatChoice(
        index=answer.index,
        message=ChatMessage(role=plan.role, content=plan.echoed + answer.text),
        logprobs=plan.logprobs(plan.writer(), answer),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if plan.body.return_token_ids else None,
    )


async def answer_chat(
    state: ServerState, request: Request
) -> tuple[ChatPlan, LiveRequests, dict[str, str]]:
    """Read a request and hand it to the engine; every refusal comes from here."""
    body, headers = await read_body(request, ChatRequest, state.settings)
    plan = await plan_chat(state, request, body)
    with fields_as_sent(body):
        live = await LiveRequests.start(state, request, plan.head.id, [plan.job])
    return plan, live, headers
