"""Turns token ids into text as they come: whole characters only, stop strings found and held back.

The streamed and the whole text come from this one machine, so they are equal. Work per token does
not grow with the length of the answer.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from headrace.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one answer.

    Call `update` with new ids, then `next_text` for what may be shown. After `next_text` with
    finished=True, `text` is complete: an unfinished character at the end is U+FFFD by then.

    Of several stop strings the one that is complete first counts; of those complete at the same
    character the longest. So it does not matter how the text was cut into tokens.

    Args:
        tokenizer: gives the bytes of each token.
        prompt_token_ids: what comes before the answer: a character begun there is finished here,
            and a leading space is kept when there is text before it.
        stop: strings that end the answer.
        include_stop_str_in_output: whether the stop string, or the text of a stop token, stays.
        skip_special_tokens: whether special tokens have no text.
        spaces_between_special_tokens: taken for compatibility; the tokenizers here put none there.
        min_tokens: a stop string counts only when a later token completes it.

    Attributes:
        token_ids: the answer's ids so far.
    """

    __slots__ = (
        "_drops_space", "_held_back", "_include_stop", "_min_tokens", "_num_chars",
        "_num_sent_parts", "_parts", "_pending", "_skip_special_tokens", "_stop", "_tail",
        "_tokenizer", "_whole_texts", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_token_ids: Sequence[int],
        stop: Sequence[str],
        include_stop_str_in_output: bool,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self.token_ids: list[int] = []
        self._tokenizer = tokenizer
        self._whole_texts = tokenizer.whole_texts
        self._skip_special_tokens = skip_special_tokens
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._stop = list(stop)
        self._held_back = max(map(len, self._stop), default=1) - 1
        """How many characters at the end may be the beginning of a stop string."""
        self._parts: list[str] = []
        self._num_sent_parts = 0
        self._num_chars = 0
        self._tail = ""
        """The last characters of the text, in which a stop string may have begun."""
        prompt = _last_bytes(tokenizer, prompt_token_ids, skip_special_tokens)
        self._pending = _unfinished_character(prompt)
        """Bytes of a character whose other bytes are still to come."""
        self._drops_space = tokenizer.strips_leading_space and not prompt

    @property
    def text(self) -> str:
        """All text so far, without an unfinished character."""
        self._parts[self._num_sent_parts :] = ["".join(self._parts[self._num_sent_parts :])]
        return "".join(self._parts)

    def update(self, new_token_ids: Sequence[int], *, stop_terminated: bool) -> str | None:
        """Take in new tokens.

        Args:
            stop_terminated: the last of them is a stop token: its text is left out, unless
                include_stop_str_in_output.

        Returns:
            the stop string that ended the answer, or None. The text then ends before it (or with
            it), and tokens after the one that completed it are dropped.
        """
        num_text_tokens = len(new_token_ids)
        if stop_terminated and not self._include_stop:
            num_text_tokens -= 1
        elif not self._stop:  # what streams do most
            self.token_ids += new_token_ids
            for token_id in new_token_ids:
                is_whole = not self._pending and not self._drops_space
                text = self._whole_texts.get(token_id) if is_whole else None
                if text is None:
                    text = self._decode(token_id)
                if text:
                    self._parts.append(text)
                    self._num_chars += len(text)
            return None
        for token_id in new_token_ids[:num_text_tokens]:
            self.token_ids.append(token_id)
            new_text = self._decode(token_id)
            if new_text:
                stop = self._append(new_text)
                if stop is not None:
                    return stop
        self.token_ids.extend(new_token_ids[num_text_tokens:])
        return None

    def next_text(self, *, finished: bool, delta: bool) -> str:
        """What may be shown now.

        Args:
            finished: nothing more will come: nothing is held back any more.
            delta: only what no call has returned yet, else all of it.
        """
        if finished:
            self._flush()
        held_back = 0 if finished else self._held_back
        if not delta:
            return self.text[: max(self._num_chars - held_back, 0)]
        if not held_back:
            first, self._num_sent_parts = self._num_sent_parts, len(self._parts)
            return "".join(self._parts[first:])
        unsent = "".join(self._parts[self._num_sent_parts :])
        cut = max(len(unsent) - held_back, 0)
        self._parts[self._num_sent_parts :] = [unsent[:cut], unsent[cut:]]
        self._num_sent_parts += 1
        return unsent[:cut]

    def _decode(self, token_id: int) -> str:
        """The characters that are whole with this token."""
        tokenizer = self._tokenizer
        data = tokenizer.token_bytes(token_id)
        if self._skip_special_tokens and tokenizer.is_special(token_id):
            return ""
        data = self._pending + data
        text, num_used = utf_8_decode(data, "replace", False)
        self._pending = data[num_used:]
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def _append(self, new_text: str) -> str | None:
        """Add to the text; cut it and return the stop string when one is complete."""
        self._parts.append(new_text)
        self._num_chars += len(new_text)
        if not self._stop:
            return None
        window = self._tail + new_text
        if len(self.token_ids) > self._min_tokens:
            found = self._find_stop(window, len(self._tail))
            if found is not None:
                start, stop = found
                end = start + len(stop) if self._include_stop else start
                self._truncate(self._num_chars - len(window) + end)
                self._pending = b""
                return stop
        self._tail = window[-self._held_back :] if self._held_back else ""
        return None

    def _find_stop(self, window: str, num_old: int) -> tuple[int, str] | None:
        """Where a stop string begins that ends after the first num_old characters."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = window.find(stop, max(num_old - len(stop) + 1, 0))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _truncate(self, num_chars: int) -> None:
        while self._num_chars > num_chars:
            part = self._parts.pop()
            self._num_chars -= len(part)
            if self._num_chars < num_chars:
                kept = part[: num_chars - self._num_chars]
                self._parts.append(kept)
                self._num_chars = num_chars

    def _flush(self) -> None:
        """The answer ends inside a character: say so once."""
        if self._pending:
            rest = self._pending.decode(errors="replace")
            self._pending = b""
            self._parts.append(rest)
            self._num_chars += len(rest)


def _last_bytes(tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool) -> bytes:
    """Up to three bytes and a bit from the end of the prompt: enough to see a begun character."""
    data = b""
    for token_id in reversed(ids):
        if not (skip_special_tokens and tokenizer.is_special(token_id)):
            data = tokenizer.token_bytes(token_id) + data
        if len(data) >= 4:
            break
    return data


def _unfinished_character(data: bytes) -> bytes:
    """The bytes at the end that begin a character and do not finish it."""
    data = data[-3:]
    for start in range(len(data)):
        if data[start] >= 0xC0:  # a lead byte
            _, num_used = utf_8_decode(data[start:], "replace", False)
            return data[start + num_used :]
    return b""
