"""A prompt that comes in pieces: the model answers after each, and goes on from what it has said.

Each piece is a request of the core with all that came before as its prompt, which the prefix cache
still holds; so the core knows nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from headrace.engine.client import RequestOutputStream
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput, StreamingInput
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.sampling_params import RequestOutputKind, SamplingParams

Start: TypeAlias = Callable[[EngineInput, SamplingParams], Awaitable[RequestOutputStream]]
Render: TypeAlias = Callable[[object], Awaitable[EngineInput]]


def check_streaming(params: SamplingParams) -> None:
    """Refuse what has no meaning when the prompt comes in pieces.

    Raises:
        ValidationError: names the field.
    """
    if params.n > 1:
        raise ValidationError("n must be 1 when the prompt comes in pieces", param="n")
    if params.output_kind is RequestOutputKind.FINAL_ONLY:
        raise ValidationError(
            "output_kind must be DELTA or CUMULATIVE when the prompt comes in pieces",
            param="output_kind",
        )
    if params.stop:
        raise ValidationError(
            "stop strings are not possible when the prompt comes in pieces", param="stop"
        )


async def stream_pieces(
    pieces: AsyncGenerator[StreamingInput, None],
    params: SamplingParams,
    render: Render,
    start: Start,
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of all pieces as those of one request: only the very last is `finished`.

    Args:
        params: for pieces that bring none of their own; their output_kind is that of all.
        render: makes tokens of a piece's prompt.
        start: queues a request of the core.

    Raises: what `pieces` raises, unchanged; what `render`, `start` and the streams raise.
    """
    check_streaming(params)
    said = _Answer(params.output_kind)
    context: list[int] = []
    last: RequestOutput | None = None
    async with aclosing(pieces):
        async for piece in pieces:
            own = params if piece.sampling_params is None else piece.sampling_params
            check_streaming(own)
            own = own.clone()
            own.output_kind = params.output_kind
            rendered = await render(piece.prompt)
            if rendered.prompt_embeds is not None:
                raise UnsupportedError(
                    "prompt_embeds are not possible when the prompt comes in pieces",
                    param="prompt_embeds",
                )
            context += rendered.prompt_token_ids
            whole = EngineInput(list(context), cache_salt=rendered.cache_salt)
            stream = await start(whole, own)
            said.begin_piece()
            try:
                async for output in stream:
                    last = said.take(output)
                    yield said.as_unfinished(last)
            finally:
                await stream.aclose()
            context += said.piece_token_ids
    if last is not None:
        yield said.as_end(last)


class _Answer:
    """What has been said to all pieces so far."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._is_delta = kind is RequestOutputKind.DELTA
        self._text = self._piece_text = ""
        self._token_ids: list[int] = []
        self.piece_token_ids: list[int] = []

    def begin_piece(self) -> None:
        self._text += self._piece_text
        self._token_ids += self.piece_token_ids
        self._piece_text, self.piece_token_ids = "", []

    def take(self, output: RequestOutput) -> RequestOutput:
        """Note an output of the current piece; the same as one of the whole request."""
        [answer] = output.outputs
        if self._is_delta:
            self._piece_text += answer.text
            self.piece_token_ids = self.piece_token_ids + answer.token_ids
        else:
            self._piece_text, self.piece_token_ids = answer.text, answer.token_ids
            answer.text = self._text + answer.text
            answer.token_ids = self._token_ids + answer.token_ids
        return output

    def as_unfinished(self, output: RequestOutput) -> RequestOutput:
        [answer] = output.outputs
        shown = CompletionOutput(
            answer.index, answer.text, answer.token_ids, answer.cumulative_logprob, answer.logprobs
        )
        return _with(output, shown, finished=False)

    def as_end(self, output: RequestOutput) -> RequestOutput:
        """The end, which says why the last piece's answer ended."""
        [answer] = output.outputs
        text = "" if self._is_delta else answer.text
        token_ids = [] if self._is_delta else answer.token_ids
        end = CompletionOutput(
            answer.index,
            text,
            token_ids,
            answer.cumulative_logprob,
            None if self._is_delta else answer.logprobs,
            answer.finish_reason,
            answer.stop_reason,
        )
        return _with(output, end, finished=True)


def _with(output: RequestOutput, answer: CompletionOutput, *, finished: bool) -> RequestOutput:
    return RequestOutput(
        output.request_id,
        output.prompt,
        output.prompt_token_ids,
        [answer],
        finished,
        output.prompt_logprobs,
        output.num_cached_tokens,
        output.metrics,
    )
