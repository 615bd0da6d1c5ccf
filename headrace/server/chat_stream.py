"""The frames of a streamed chat."""

from __future__ import annotations

from msgspec import UNSET

from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.answer import check_answer
from headrace.server.chat import ChatPlan
from headrace.server.logprobs import LogprobWriter
from headrace.server.protocol.chat import ChatChunk, ChatChunkChoice, Delta
from headrace.server.sse import TextFrames, frame


class ChatFrames:
    """Frames as outputs come. Per choice: first the role, then text, one finish_reason at last.

    Implements `sse.FrameMaker`.
    """

    def __init__(self, plan: ChatPlan) -> None:
        self._plan = plan
        body, usage = plan.body, plan.usage
        self._wants_tokens = bool(body.return_token_ids) or bool(body.logprobs)
        self._tells_all = self._wants_tokens or usage.in_every_chunk
        """Whether a piece without text is worth a frame, too."""
        self._writers: dict[int, LogprobWriter] = {}
        self._text_frames: dict[int, TextFrames] = {}

    def take(self, job: int, output: RequestOutput) -> bytes:
        """The frames of an output.

        Raises:
            EngineGenerateError: the answer could not be finished.
        """
        tally, answers = self._plan.tally, output.outputs
        if len(answers) == 1:
            answer = answers[0]
            text_frames = self._text_frames.get(answer.index)
            if text_frames is not None and answer.finish_reason is None:
                tally.completion_tokens += len(answer.token_ids)
                return text_frames.frame(answer.text)
        tally.add(job, output)
        return b"".join([self._frames(output, answer) for answer in output.outputs])

    def end(self) -> bytes:
        """What comes after the last output."""
        return frame(_chunk(self._plan, [])) if self._plan.usage.at_end else b""

    def _frames(self, output: RequestOutput, answer: CompletionOutput) -> bytes:
        check_answer(answer)
        index, is_finished = answer.index, answer.finish_reason is not None
        plan, frames = self._plan, b""
        if index not in self._writers:
            if not answer.token_ids and not is_finished:
                return b""
            self._writers[index] = plan.writer()
            frames = _first_frames(plan, output, index)
            if not self._tells_all:
                sample = _chunk(plan, [_choice(plan, CompletionOutput(index, TextFrames.MARK, []))])
                self._text_frames[index] = TextFrames(sample)
        choice = _choice(plan, answer, self._writers[index])
        # Half a character is no text.
        if is_finished or choice.delta.content is not None or self._tells_all:
            frames += frame(_chunk(plan, [choice], finished=is_finished))
        return frames


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


def _choice(
    plan: ChatPlan, answer: CompletionOutput, writer: LogprobWriter | None = None
) -> ChatChunkChoice:
    logprobs = None if writer is None else plan.logprobs(writer, answer)
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


def _chunk(plan: ChatPlan, choices: list[ChatChunkChoice], *, finished: bool = False) -> ChatChunk:
    head = plan.head
    chunk = ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)
    return plan.complete(chunk, finished=finished)
