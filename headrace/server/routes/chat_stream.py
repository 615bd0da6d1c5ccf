"""The frames of a streamed chat."""

from __future__ import annotations

from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.generation.answer import check_answer
from headrace.server.generation.logprobs import LogprobWriter
from headrace.server.protocol.chat import ChatChunk, ChatChunkChoice, Delta
from headrace.server.routes.chat import ChatPlan
from headrace.server.streams.sse import TextFrames, frame
from headrace.server.tools.parsed_answer import AnswerReader, Piece


class ChatFrames:
    """Frames as outputs come. Per choice: first the role, then text, one finish_reason at last.

    Implements `sse.FrameMaker`.
    """

    __slots__ = (
        "_is_plain", "_plan", "_readers", "_tally", "_tells_all", "_text_frames", "_wants_tokens",
        "_writers",
    )  # fmt: skip

    def __init__(self, plan: ChatPlan) -> None:
        self._plan = plan
        self._tally = plan.tally
        usage = plan.usage
        self._wants_tokens = plan.tells_token_ids or plan.tells_logprobs
        self._tells_all = self._wants_tokens or usage.in_every_chunk
        """Whether a piece without text is worth a frame, too."""
        self._is_plain = plan.parsing.is_plain
        self._writers: dict[int, LogprobWriter] = {}
        self._text_frames: dict[int, TextFrames] = {}
        self._readers: dict[int, AnswerReader] = {}

    def take(self, job: int, output: RequestOutput) -> bytes:
        """The frames of an output.

        Raises:
            EngineGenerateError: the answer could not be finished.
        """
        answers = output.outputs
        if len(answers) == 1:
            answer = answers[0]
            text_frames = self._text_frames.get(answer.index)
            if text_frames is not None and answer.finish_reason is None:
                self._tally.completion_tokens += len(answer.token_ids)
                if self._is_plain:
                    return text_frames.frame(answer.text)
                piece = self._readers[answer.index].read(answer, is_last=False)
                if piece.is_content:
                    return text_frames.frame(piece.content)
                return frame(_chunk(self._plan, [_choice(answer.index, _delta(self._plan, piece))]))
        self._tally.add(job, output)
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
            self._readers[index] = plan.reader()
            frames = _first_frames(plan, output, index)
            if not self._tells_all:
                sample = _chunk(plan, [_choice(index, Delta(content=TextFrames.MARK))])
                self._text_frames[index] = TextFrames(sample)
        reader = self._readers[index]
        piece = reader.read(answer, is_last=is_finished)
        # Half a character is no text, and what may yet become a call is none either.
        if piece or is_finished or self._tells_all:
            choice = _choice(index, _delta(plan, piece))
            _add_tokens(choice, plan, answer, self._writers[index])
            choice.finish_reason = reader.finish_reason(answer.finish_reason)
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


def _delta(plan: ChatPlan, piece: Piece) -> Delta:
    thought = piece.reasoning or None
    return Delta(
        content=piece.content or None,
        reasoning=thought,
        reasoning_content=thought if plan.settings.reasoning_content_alias else None,
        tool_calls=piece.tool_calls or None,
    )


def _choice(index: int, delta: Delta) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta)


def _add_tokens(
    choice: ChatChunkChoice, plan: ChatPlan, answer: CompletionOutput, writer: LogprobWriter
) -> None:
    """What is known about the tokens that came, and about the end."""
    logprobs = plan.logprobs(writer, answer)
    if logprobs is not None:
        choice.logprobs = logprobs
    if answer.finished():
        choice.stop_reason = answer.stop_reason
    if plan.tells_token_ids:
        choice.token_ids = answer.token_ids


def _chunk(plan: ChatPlan, choices: list[ChatChunkChoice], *, finished: bool = False) -> ChatChunk:
    head = plan.head
    chunk = ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices)
    return plan.complete(chunk, finished=finished)
