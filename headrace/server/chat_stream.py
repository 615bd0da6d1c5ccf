"""The frames of a streamed chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET

from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.answer import check_answer
from headrace.server.chat import ChatPlan
from headrace.server.live import LiveRequests
from headrace.server.logprobs import LogprobWriter
from headrace.server.protocol.chat import ChatChunk, ChatChunkChoice, Delta
from headrace.server.protocol.common import Usage
from headrace.server.sse import frame


async def chat_frames(plan: ChatPlan, live: LiveRequests) -> AsyncGenerator[bytes, None]:
    """Frames as outputs come. Per choice: first the role, then text, one finish_reason at last.

    Raises:
        EngineGenerateError, EngineDeadError: the answer could not be finished.
    """
    writers: dict[int, LogprobWriter] = {}
    async with aclosing(live.outputs()) as outputs:
        async for _job, output in outputs:
            plan.tally.add(0, output)
            for answer in output.outputs:
                check_answer(answer)
                frames = b""
                if answer.index not in writers:
                    if not answer.token_ids and not answer.finished():
                        continue
                    writers[answer.index] = plan.writer()
                    frames = _first_frames(plan, output, answer.index)
                choice = _choice(plan, answer, writers[answer.index])
                if answer.finished() or _says_something(plan, choice):
                    frames += frame(_chunk(plan, [choice], finished=answer.finished()))
                if frames:
                    yield frames
    if plan.usage.at_end:
        yield frame(_chunk(plan, [], usage=plan.tally.usage()))


def _first_frames(plan: ChatPlan, output: RequestOutput, index: int) -> bytes:
    """The role, and the text the answer begins with when an echo was asked for."""
    first = _chunk(plan, [ChatChunkChoice(index=index, delta=Delta(plan.role, ""))])
    if plan.body.return_token_ids:
        first.prompt_token_ids = output.prompt_token_ids
    frames = frame(first)
    if plan.echoed:
        echo = ChatChunkChoice(index=index, delta=Delta(content=plan.echoed))
        frames += frame(_chunk(plan, [echo]))
    return frames


def _choice(plan: ChatPlan, answer: CompletionOutput, writer: LogprobWriter) -> ChatChunkChoice:
    logprobs = plan.logprobs(writer, answer)
    choice = ChatChunkChoice(
        index=answer.index,
        delta=Delta(content=answer.text or None),
        logprobs=UNSET if logprobs is None else logprobs,
        finish_reason=answer.finish_reason,
    )
    if answer.finished():
        choice.stop_reason = answer.stop_reason
    if plan.body.return_token_ids:
        choice.token_ids = answer.token_ids
    return choice


def _says_something(plan: ChatPlan, choice: ChatChunkChoice) -> bool:
    """Whether a piece without an end is worth a frame (half a character is none)."""
    wants_tokens = plan.body.return_token_ids or plan.body.logprobs
    return choice.delta.content is not None or bool(wants_tokens) or plan.usage.in_every_chunk


def _chunk(
    plan: ChatPlan,
    choices: list[ChatChunkChoice],
    *,
    finished: bool = False,
    usage: Usage | None = None,
) -> ChatChunk:
    chunk = ChatChunk(
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
