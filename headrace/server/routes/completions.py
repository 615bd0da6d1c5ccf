"""POST /v1/completions: prompts in, continuations out."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request

from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.generation.answer import Head, check_answer
from headrace.server.generation.beams import start_requests
from headrace.server.generation.logprobs import LogprobWriter, prompt_logprobs, with_prompt
from headrace.server.generation.params import (
    check_request,
    default_max_tokens,
    priority_of,
    sampling_params,
)
from headrace.server.generation.plan import AnswerPlan
from headrace.server.generation.prompts import (
    completion_prompts,
    render_prompts,
    text_of,
    tokenizer_of,
)
from headrace.server.generation.response_format import fields_as_sent
from headrace.server.http.body import read_body
from headrace.server.http.request_ids import request_id_stem
from headrace.server.protocol.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from headrace.server.state import ServerState
from headrace.server.streams.live import Job, LiveRequests

DEFAULT_MAX_TOKENS = 16


@dataclass(kw_only=True)
class CompletionPlan(AnswerPlan):
    """Everything decided about one request before the engine gets it.

    Attributes:
        n: answers per prompt; choice index is prompt * n + answer.
        echo: whether answers begin with their prompt.
        prompt_only: whether they end with it (echo with max_tokens=0). The engine still makes
            one token, which is neither shown nor counted.
    """

    body: CompletionRequest
    jobs: list[Job]
    prompts: list[EngineInput]
    n: int
    echo: bool
    prompt_only: bool

    def prompt_text(self, job: int) -> str:
        """The text an echo begins with."""
        prompt = self.prompts[job]
        return text_of(prompt.prompt, prompt.prompt_token_ids, self.engine)

    def shown(self, answer: CompletionOutput) -> CompletionOutput:
        """The answer as users see it: with `prompt_only` nothing but its end."""
        if not self.prompt_only:
            return answer
        finish = "length" if answer.finished() else None
        return CompletionOutput(answer.index, "", [], finish_reason=finish)

    def logprobs(
        self, writer: LogprobWriter, answer: CompletionOutput, echoed: RequestOutput | None
    ) -> CompletionLogprobs | None:
        """Log-probabilities of an answer (or a piece), after those of its echoed prompt."""
        if self.body.logprobs is None:
            return None
        before = None
        if echoed is not None:
            before = writer.for_completion(echoed.prompt_token_ids, echoed.prompt_logprobs or [])
        after = writer.for_completion(answer.token_ids, answer.logprobs or [])
        return after if before is None else with_prompt(before, after)


async def plan_completion(
    state: ServerState, request: Request, body: CompletionRequest
) -> CompletionPlan:
    """Check and render everything; nothing has reached the engine afterwards.

    Raises: every refusal that a request can get before its first token.
    """
    settings, engine = state.settings, state.engine
    model = state.model_name(body.model)
    raw = await completion_prompts(body, engine.config.model, settings.max_prompts)
    max_logprobs = engine.config.model.max_logprobs
    if body.stream_options is not None and body.stream_options.resumable:
        raise UnsupportedError(
            "only streams of /v1/chat/completions can be resumed", param="stream_options.resumable"
        )
    num_choices = check_request(body, settings, num_prompts=len(raw), max_logprobs=max_logprobs)
    priority = priority_of(request, body, engine.config)
    stem = request_id_stem(request, body.request_id)
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = default_max_tokens(engine.config) or DEFAULT_MAX_TOKENS
    echo = bool(body.echo)
    if echo and tokenizer_of(engine) is None:
        raise UnsupportedError("echo needs a tokenizer (skip_tokenizer_init)", param="echo")
    if echo and body.use_beam_search and body.logprobs is not None:
        raise ValidationError("echo with logprobs is not possible in beam search", param="echo")
    if max_tokens == 0 and not echo:
        raise ValidationError(
            "max_tokens must be at least 1 (0 is for echo=true)", param="max_tokens", value=0
        )
    params = sampling_params(
        body,
        engine,
        max_tokens=max_tokens or 1,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if echo else body.prompt_logprobs,
    )
    special = body.add_special_tokens is not False
    with state.admit(request, num_choices):
        prompts = await render_prompts(state, raw, body, special=special)
    jobs = [
        Job(f"cmpl-{stem}-{index}", prompt, params.clone(), priority)
        for index, prompt in enumerate(prompts)
    ]
    return CompletionPlan(
        body=body,
        engine=engine,
        head=Head.now(f"cmpl-{stem}", model, state.fingerprint),
        settings=settings,
        jobs=jobs,
        prompts=prompts,
        n=params.n,
        echo=echo,
        prompt_only=max_tokens == 0,
    )


async def whole_completion(plan: CompletionPlan, live: LiveRequests) -> Completion:
    """The answer in one piece.

    Raises:
        EngineGenerateError, EngineDeadError: it could not be finished.
    """
    results: dict[int, RequestOutput] = {}
    async with aclosing(live.outputs()) as outputs:
        async for job, output in outputs:
            for answer in output.outputs:
                check_answer(answer)
            results[job] = output
    choices = []
    for job in range(len(plan.jobs)):
        output = results[job]
        output.outputs = [plan.shown(answer) for answer in output.outputs]
        plan.tally.add(job, output)
        choices += [_choice(plan, job, output, answer) for answer in output.outputs]
    return Completion(
        id=plan.head.id,
        created=plan.head.created,
        model=plan.head.model,
        choices=sorted(choices, key=lambda choice: choice.index),
        system_fingerprint=plan.head.fingerprint,
        usage=plan.tally.usage(),
    )


def _choice(
    plan: CompletionPlan, job: int, output: RequestOutput, answer: CompletionOutput
) -> CompletionChoice:
    wants_ids = bool(plan.body.return_token_ids)
    wants_prompt = plan.body.prompt_logprobs is not None
    return CompletionChoice(
        index=job * plan.n + answer.index,
        text=(plan.prompt_text(job) if plan.echo else "") + answer.text,
        logprobs=plan.logprobs(plan.writer(), answer, output if plan.echo else None),
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if wants_ids else None,
        prompt_logprobs=prompt_logprobs(output.prompt_logprobs) if wants_prompt else None,
        prompt_token_ids=output.prompt_token_ids if wants_ids else None,
    )


async def answer_completion(
    state: ServerState, request: Request
) -> tuple[CompletionPlan, LiveRequests, dict[str, str]]:
    """Read a request and hand it to the engine; every refusal comes from here."""
    body, headers = await read_body(request, CompletionRequest, state)
    plan = await plan_completion(state, request, body)
    with fields_as_sent(body):
        live = await start_requests(state, request, plan.head.id, body, plan.jobs)
    return plan, live, headers
