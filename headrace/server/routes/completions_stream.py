"""The frames of a streamed completion."""

from __future__ import annotations

from msgspec import UNSET

from headrace.outputs import CompletionOutput, RequestOutput
from headrace.server.generation.answer import check_answer
from headrace.server.generation.logprobs import LogprobWriter
from headrace.server.protocol.completions import CompletionChunk, CompletionChunkChoice
from headrace.server.routes.completions import CompletionPlan
from headrace.server.streams.sse import TextFrames, frame


class CompletionFrames:
    """Frames as outputs come; each choice has exactly one with a finish_reason, its last.

    Implements `sse.FrameMaker`.
    """

    def __init__(self, plan: CompletionPlan) -> None:
        self._plan = plan
        wants_tokens = bool(plan.body.return_token_ids) or plan.body.logprobs is not None
        self._tells_all = wants_tokens or plan.usage.in_every_chunk
        """Whether a piece without text is worth a frame, too."""
        self._writers: dict[int, LogprobWriter] = {}
        self._text_frames: dict[int, TextFrames] = {}

    def take(self, job: int, output: RequestOutput) -> bytes:
        """The frames of an output.

        Raises:
            EngineGenerateError: the answer could not be finished.
        """
        plan, answers = self._plan, output.outputs
        if len(answers) == 1:
            answer = answers[0]
            text_frames = self._text_frames.get(job * plan.n + answer.index)
            if text_frames is not None and answer.finish_reason is None:
                plan.tally.completion_tokens += len(answer.token_ids)
                return text_frames.frame(answer.text)
        if plan.prompt_only:
            output.outputs = [plan.shown(_checked(answer)) for answer in answers]
        plan.tally.add(job, output)
        return b"".join([self._frames(job, output, answer) for answer in output.outputs])

    def end(self) -> bytes:
        """What comes after the last output."""
        return frame(_chunk(self._plan, [])) if self._plan.usage.at_end else b""

    def _frames(self, job: int, output: RequestOutput, answer: CompletionOutput) -> bytes:
        check_answer(answer)
        plan = self._plan
        index, is_finished = job * plan.n + answer.index, answer.finish_reason is not None
        is_first = index not in self._writers
        if is_first:
            if not answer.token_ids and not is_finished and not plan.echo:
                return b""
            self._writers[index] = plan.writer()
            if not self._tells_all and not plan.prompt_only:
                sample = CompletionChunkChoice(index=index, text=TextFrames.MARK)
                self._text_frames[index] = TextFrames(_chunk(plan, [sample]))
        choice = _choice(plan, job, output, answer, self._writers[index], is_first)
        # Half a character is no text.
        if is_first or is_finished or choice.text or self._tells_all:
            return frame(_chunk(plan, [choice], finished=is_finished))
        return b""


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


def _chunk(
    plan: CompletionPlan, choices: list[CompletionChunkChoice], *, finished: bool = False
) -> CompletionChunk:
    head = plan.head
    chunk = CompletionChunk(id=head.id, created=head.created, model=head.model, choices=choices)
    return plan.complete(chunk, finished=finished)
