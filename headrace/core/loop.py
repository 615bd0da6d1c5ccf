"""The engine loop of the core process: takes records in, steps, hands records out.

Two threads: one decodes what comes in, the caller's runs the steps and hands out their results.
Knows nothing of how the core was made.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

import msgspec

from headrace.core.control import Later
from headrace.core.engine_core import EngineCore
from headrace.core.grammar_queue import GrammarQueue
from headrace.core.outbox import Outbox
from headrace.errors import HeadraceError
from headrace.ipc.codec import RecordDecoder
from headrace.ipc.sockets import Receiver, Sender, SocketClosedError
from headrace.logger import make_logger
from headrace.messages.outputs import CallResult, EngineCoreOutput, EngineDead, FinishReason
from headrace.messages.requests import (
    AbortRequests,
    Call,
    CoreInput,
    EngineCoreRequest,
    Pause,
    Shutdown,
    Sleep,
    Vocabulary,
)

logger = make_logger(__name__)

BEAT_SECONDS = 1.0
"""Time between signs of life of an idle core."""
NO_PROGRESS_SECONDS = 0.05
"""Rest after a step that found nothing to compute although requests are live."""


@dataclass(slots=True)
class _Unreadable:
    """A request that could not be decoded, but whose sender can be told."""

    request_id: str


@dataclass(slots=True)
class _Fault:
    """Another thread failed."""

    error: BaseException


@dataclass(slots=True)
class _Compiled:
    """The grammar of a request is ready, or wrong."""

    request_id: str
    error: str | None
    error_param: str | None


_Letter: TypeAlias = CoreInput | _Unreadable | _Fault | _Compiled


class CoreLoop:
    """Runs one core until it is told to end.

    Args:
        core: what to step; used by the calling thread of `run` only.
        receiver: where `CoreInput`s come from; owned from here on.
        sender: where `CoreOutput`s go; owned from here on.
    """

    def __init__(self, core: EngineCore, receiver: Receiver, sender: Sender) -> None:
        self._core = core
        self._receiver = receiver
        self._inbox: SimpleQueue[_Letter] = SimpleQueue()
        self._outbox = Outbox(sender, lambda error: self._inbox.put(_Fault(error)))
        self._grammars = GrammarQueue(
            core.prepare_grammar, lambda *ready: self._inbox.put(_Compiled(*ready))
        )
        self._deadline: float | None = None
        """When the core ends even with live requests; None until it is told to end."""
        self._last_word: str | None = None
        self._later: list[tuple[int, Later]] = []
        """Calls whose results are not there yet."""

    def terminate(self, reason: str) -> None:
        """End at once, telling the front process why. May be called by a signal handler."""
        self._last_word = reason
        self._inbox.put(Shutdown(0.0))

    @property
    def was_terminated(self) -> bool:
        """Whether it ended for another reason than the front process's word."""
        return self._last_word is not None

    def run(self) -> None:
        """Serve until told to end. When it returns or raises, all that was said has been sent.

        Raises:
            Exception: what the core or the executor failed with; the front has been told.
        """
        threading.Thread(target=self._receive, name="core-input", daemon=True).start()
        try:
            self._serve()
        except BaseException as error:
            self._last_word = f"the engine loop failed: {one_line(error)}"
            raise
        finally:
            if self._last_word is not None:
                self._outbox.put(EngineDead(self._last_word))
            self._outbox.close()

    # The loop

    def _serve(self) -> None:
        core = self._core
        while True:
            self._answer_later()
            self._take_letters(wait=not core.has_work())
            if self._deadline is not None:
                if not core.has_work() and not self._grammars:
                    return
                if time.monotonic() >= self._deadline:
                    self._abort_all()
                    return
            if core.has_work():
                outputs = core.step()
                if core.has_news:
                    self._outbox.put(outputs)
                else:
                    self._outbox.hold(outputs)
                if not outputs.outputs and not outputs.num_step_tokens and core.has_work():
                    time.sleep(NO_PROGRESS_SECONDS)

    def _take_letters(self, *, wait: bool) -> None:
        """Handle all that has come in; with `wait`, sleep until there is something, or beat."""
        if wait and (self._deadline is None or self._grammars):
            self._outbox.flush()
            timeout = BEAT_SECONDS
            if self._deadline is not None:
                timeout = min(timeout, max(0.0, self._deadline - time.monotonic()))
            try:
                self._handle(self._inbox.get(timeout=timeout))
            except Empty:
                self._outbox.put(self._core.idle_outputs())
        while not self._inbox.empty():
            self._handle(self._inbox.get())

    def _handle(self, letter: _Letter) -> None:
        match letter:
            case EngineCoreRequest():
                self._add(letter)
            case AbortRequests():
                self._abort_held(letter.request_ids)
                self._core.abort_requests(letter.request_ids)
            case Vocabulary():
                self._core.set_vocabulary(letter)
            case _Compiled():
                self._add_compiled(letter)
            case Call():
                self._call(letter)
            case Shutdown():
                self._deadline = time.monotonic() + letter.drain_timeout
            case _Unreadable():
                error = "the engine core could not read this request"
                self._answer(letter.request_id, FinishReason.ERROR, error)
            case _Fault():
                raise letter.error

    def _add(self, request: EngineCoreRequest) -> None:
        if self._deadline is not None:
            self._answer(request.request_id, FinishReason.ABORT)
        elif request.grammar is None:
            self._add_to_core(request)
        elif request.request_id in self._grammars:
            error = f"request id {request.request_id!r} is in use"
            self._answer(request.request_id, FinishReason.ERROR, error)
        else:
            self._grammars.hold(request, self._core.draw_seed())

    def _add_compiled(self, letter: _Compiled) -> None:
        held = self._grammars.take(letter.request_id)
        if held is None:
            return
        if letter.error is not None:
            self._answer(letter.request_id, FinishReason.ERROR, letter.error, letter.error_param)
        else:
            self._add_to_core(*held)

    def _add_to_core(self, request: EngineCoreRequest, drawn_seed: int | None = None) -> None:
        try:
            self._core.add_request(request, drawn_seed)
        except Exception as error:  # one request never ends the engine for the others
            logger.exception("request %s could not be added", request.request_id)
            self._core.abort_requests([request.request_id])
            self._answer(request.request_id, FinishReason.ERROR, one_line(error))

    def _abort_held(self, request_ids: list[str]) -> None:
        """End those whose grammars are being compiled. Unknown ids are fine."""
        for request_id in request_ids:
            if self._grammars.take(request_id) is not None:
                self._answer(request_id, FinishReason.ABORT)

    def _call(self, call: Call) -> None:
        verb = call.verb
        if isinstance(verb, (Pause, Sleep)) and verb.mode == "abort":
            self._abort_held(self._grammars.request_ids())
        try:
            self._give_result(call.call_id, self._core.call(call.verb))
        except Exception as error:
            self._give_error(call.call_id, error)

    def _give_result(self, call_id: int, result: object) -> None:
        if isinstance(result, Later):
            self._later.append((call_id, result))
        else:
            self._outbox.put(CallResult(call_id, result))

    def _give_error(self, call_id: int, error: Exception) -> None:
        if isinstance(error, HeadraceError):
            text, kind = str(error), type(error).__name__
            self._outbox.put(CallResult(call_id, error=text, error_type=kind))
            return
        logger.error("a control call failed", exc_info=error)
        self._outbox.put(CallResult(call_id, error=one_line(error)))

    def _answer_later(self) -> None:
        """Give the results that have come about."""
        for entry in list(self._later):
            call_id, later = entry
            if later.is_ready():
                self._later.remove(entry)
                try:
                    self._give_result(call_id, later.finish())
                except Exception as error:
                    self._give_error(call_id, error)

    def _abort_all(self) -> None:
        self._abort_held(self._grammars.request_ids())
        self._core.abort_requests(self._core.live_request_ids())
        self._outbox.put(self._core.idle_outputs())

    def _answer(
        self,
        request_id: str,
        reason: FinishReason,
        error: str | None = None,
        error_param: str | None = None,
    ) -> None:
        """End a request that the core does not know, or not any more."""
        output = EngineCoreOutput(
            request_id, [], finish_reason=reason, error=error, error_param=error_param
        )
        self._outbox.put(msgspec.structs.replace(self._core.idle_outputs(), outputs=[output]))

    # The other thread

    def _receive(self) -> None:
        decoder: RecordDecoder[CoreInput] = RecordDecoder(CoreInput, "the front process")
        try:
            while True:
                frame = self._receiver.receive()
                letter = decoder.decode(frame)
                if letter is not None:
                    self._inbox.put(letter)
                elif (request_id := _request_id_in(frame)) is not None:
                    self._inbox.put(_Unreadable(request_id))
        except SocketClosedError:
            pass
        except BaseException as error:
            self._inbox.put(_Fault(error))
        finally:
            self._receiver.close()


def one_line(error: BaseException) -> str:
    """An exception as one line for people."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _request_id_in(frame: bytes) -> str | None:
    """The id of a request that does not decode as a whole, if it can be made out."""
    try:
        fields = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    match fields:
        case ["add", str(request_id), *_]:
            return request_id
        case _:
            return None
