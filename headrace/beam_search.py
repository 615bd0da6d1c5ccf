"""Beam search over an engine: each round asks for one token of every beam, with the likeliest next
tokens, and keeps the best. The engine's prefix cache holds what the beams share.

With structured outputs a beam's log-probabilities are among the tokens that may follow: what the
form of the answer dictates costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from headrace.inputs import EngineInput
from headrace.logprobs import TokenLogprobMap
from headrace.outputs import RequestOutput
from headrace.sampling_params import BeamSearchParams, SamplingParams
from headrace.text.tokenizer import Tokenizer

Ask = Callable[[list[EngineInput], SamplingParams], list[RequestOutput]]
"""Runs requests to their ends; the outputs come in their order."""
Rounds = Generator[list[EngineInput], list[RequestOutput] | None, "list[BeamSearchOutput]"]
"""Gives the beams of each round and wants their outputs, or None to end with what there is; returns
the answers."""


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam: the prompt and what the model could go on with.

    `tokens` and `text` hold the prompt too. `logprobs` has the map of each token of the answer.
    """

    orig_prompt: EngineInput
    tokens: list[int]
    logprobs: list[TokenLogprobMap]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    """`stop` or `length`; `abort` of beams that were under way when the search was ended."""
    stop_reason: int | str | None = None
    lora_request: object | None = field(default=None, repr=False)


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class _Search:
    beams: list[BeamSearchSequence]
    done: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearch:
    """Searches for several prompts at once.

    Attributes:
        step_params: how each round of requests is to be sampled.

    Args:
        params: what the caller wants.
        tokenizer: for the texts of the beams; None leaves them out.
        eos_token_ids: tokens that end an answer.
        max_model_len: a beam that fills the context ends with `length`.
    """

    def __init__(
        self,
        params: BeamSearchParams,
        tokenizer: Tokenizer | None,
        eos_token_ids: Sequence[int],
        max_model_len: int,
    ) -> None:
        self._params = params
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._max_model_len = max_model_len
        self.step_params = SamplingParams(
            logprobs=2 * params.beam_width,
            max_tokens=1,
            temperature=params.temperature,
            ignore_eos=True,  # the end is for the search to see
            detokenize=False,
            structured_outputs=params.structured_outputs,
        )
        # Behind the end of a grammar nothing may follow.
        self._ends_at_eos = not params.ignore_eos or params.structured_outputs is not None

    def run(self, prompts: Sequence[EngineInput], ask: Ask) -> list[BeamSearchOutput]:
        """The beams of each prompt, in the prompts' order.

        Args:
            ask: runs the engine.

        Raises: what the engine raises.
        """
        rounds = self.rounds(prompts)
        try:
            inputs = next(rounds)
            while True:
                inputs = rounds.send(ask(inputs, self.step_params))
        except StopIteration as end:
            found: list[BeamSearchOutput] = end.value
            return found

    def rounds(self, prompts: Sequence[EngineInput]) -> Rounds:
        """The search without the engine: for callers that wait for it in their own way."""
        searches = [
            _Search([BeamSearchSequence(prompt, list(prompt.prompt_token_ids), [])])
            for prompt in prompts
        ]
        for _ in range(self._params.max_tokens):
            self._end_full_beams(searches)
            beams = [beam for search in searches for beam in search.beams]
            if not beams:
                break
            outputs = yield [self._input(beam) for beam in beams]
            if outputs is None:
                return [self._finish(search, "abort") for search in searches]
            following = iter(outputs)
            for search in searches:
                self._advance(search, [next(following) for _ in search.beams])
        return [self._finish(search) for search in searches]

    def _input(self, beam: BeamSearchSequence) -> EngineInput:
        prompt, is_free = beam.orig_prompt, self._params.structured_outputs is None
        num_answer_tokens = None if is_free else len(beam.tokens) - len(prompt.prompt_token_ids)
        return EngineInput(
            beam.tokens, cache_salt=prompt.cache_salt, num_answer_tokens=num_answer_tokens
        )

    def _end_full_beams(self, searches: Sequence[_Search]) -> None:
        for search in searches:
            is_full = [len(beam.tokens) >= self._max_model_len for beam in search.beams]
            if any(is_full):
                pairs = list(zip(search.beams, is_full, strict=True))
                search.done += [beam for beam, full in pairs if full]
                search.beams = [beam for beam, full in pairs if not full]

    def _advance(self, search: _Search, outputs: Sequence[RequestOutput]) -> None:
        """One token further: the best continuations become the beams."""
        width = self._params.beam_width
        grown: list[BeamSearchSequence] = []
        for beam, output in zip(search.beams, outputs, strict=True):
            logprobs = output.outputs[0].logprobs
            assert logprobs is not None
            entries: TokenLogprobMap = logprobs[0]
            for token_id, entry in entries.items():
                if entry.logprob == -math.inf:  # fewer tokens may follow than were asked for
                    continue
                longer = BeamSearchSequence(
                    beam.orig_prompt,
                    [*beam.tokens, token_id],
                    [*beam.logprobs, entries],
                    beam.cum_logprob + entry.logprob,
                )
                if token_id in self._eos_token_ids and self._ends_at_eos:
                    longer.finish_reason = "stop"
                    longer.stop_reason = token_id
                    search.done.append(longer)
                else:
                    grown.append(longer)
        search.beams = sorted(grown, key=self._score, reverse=True)[:width]
        # Of those that have ended more than the best can never be among the answers.
        search.done = sorted(search.done, key=self._score, reverse=True)[:width]

    def _score(self, beam: BeamSearchSequence) -> float:
        """The log-probability over the length to the power of the penalty; an end is no length."""
        length = len(beam.tokens)
        if beam.finish_reason == "stop":
            length -= 1
        return beam.cum_logprob / math.pow(length, self._params.length_penalty)

    def _finish(self, search: _Search, reason: str = "length") -> BeamSearchOutput:
        for beam in search.beams:
            beam.finish_reason = reason
        best = sorted([*search.done, *search.beams], key=self._score, reverse=True)
        best = best[: self._params.beam_width]
        for beam in best:
            beam.finish_reason = beam.finish_reason or "length"
            beam.text = self._text(beam)
        return BeamSearchOutput(best)

    def _text(self, beam: BeamSearchSequence) -> str | None:
        if self._tokenizer is None:
            return None
        tokens = beam.tokens
        if beam.finish_reason == "stop" and not self._params.include_stop_str_in_output:
            tokens = tokens[:-1]
        skips = self._params.skip_special_tokens
        return self._tokenizer.decode(tokens, skip_special_tokens=skips)
