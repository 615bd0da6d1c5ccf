"""The frames of a streamed completion."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET

from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.answer import check_answer
from headrace.server.completions import CompletionPlan
from headrace.server.live import LiveRequests
from headrace.server.logprobs import LogprobWriter
from headrace.server.protocol.common import Usage
from headrace.server.protocol.completions import CompletionChunk, CompletionChunkChoice
from headrace.server.sse import frame


async def completion_frames(
    plan: CompletionPlan, live: LiveRequests
) -> AsyncGenerator[bytes, None]:
    """Frames as outputs come; each choice has exactly one with a finish_reason, its last.

    Raises:
        EngineGenerateError, EngineDeadError: the answer could not be finished.
    """
    writers: dict[int, LogprobWriter] = {}
    async with aclosing(live.outputs()) as outputs:
        async for job, output in outputs:
            output.outputs = [plan.shown(_checked(answer)) for answer in output.outputs]
            plan.tally.add(job, output)
            for answer in output.outputs:
                index = job * plan.n + answer.index
                is_first = index not in writers
                if is_first:
                    if not answer.token_ids and not answer.finished() and not plan.echo:
                        continue
                    writers[index] = plan.writer()
                choice = _choice(plan, job, output, answer, writers[index], is_first)
                if is_first or answer.finished() or _says_something(plan, choice):
                    yield frame(_chunk(plan, [choice], finished=answer.finished()))
    if plan.usage.at_end:
        yield frame(_chunk(plan, [], usage=plan.tally.usage()))


def _checked(answer: CompletionOutput) -> CompletionOutput:
    check_answer(answer)
    return answer


def _choice(
    plan: CompletionPlan,
    job: int,
    output: RequestOutput,
    answer: CompletionOutput,
    writer: LogprobWriter,
    is_first: bool,
) -> CompletionChunkChoice:
    echoes = is_first and plan.echo
    logprobs = plan.logprobs(writer, answer, output if echoes else None)
    choice = CompletionChunkChoice(
        index=job * plan.n + answer.index,
        text=(plan.prompt_text(job) if echoes else "") + answer.text,
        logprobs=UNSET if logprobs is None else logprobs,
        finish_reason=answer.finish_reason,
    )
    if answer.finished():
        choice.stop_reason = answer.stop_reason
    if plan.body.return_token_ids:
        choice.token_ids = answer.token_ids
        if is_first:
            choice.prompt_token_ids = output.prompt_token_ids
    return choice


def _says_something(plan: CompletionPlan, choice: CompletionChunkChoice) -> bool:
    """Whether a piece without an end is worth a frame (half a character is none)."""
    wants_tokens = plan.body.return_token_ids or plan.body.logprobs is not None
    return bool(choice.text) or bool(wants_tokens) or plan.usage.in_every_chunk


def _chunk(
    plan: CompletionPlan,
    choices: list[CompletionChunkChoice],
    *,
    finished: bool = False,
    usage: Usage | None = None,
) -> CompletionChunk:
    chunk = CompletionChunk(
        id=plan.head.id, created=plan.head.created, model=plan.head.model, choices=choices
    )
    is_last = not choices or (finished and not plan.usage.at_end)
    if is_last:
        chunk.system_fingerprint = plan.head.fingerprint
    if usage is not None:
        chunk.usage = usage
    elif plan.usage.in_every_chunk:
        chunk.usage = plan.tally.usage()
    return chunk
