"""Committed tokens pass here one by one, drafted or not, so that every mode ends alike.

What follows a stop vanishes: it reaches neither text, ids, log-probabilities nor counts.
"""

from __future__ import annotations

import codecs

from paceline.engines.tokenizer import Tokenizer
from paceline.types import FinishReason, StopConditions


class Stopper:
    """Turns one request's tokens into text and says when to stop.

    stop            the request's conditions
    tokenizer       gives bytes and end tokens
    most_tokens     output tokens that fit the context behind the prompt
    min_tokens      stop strings that complete before this many tokens are text like any other
    """

    def __init__(
        self, stop: StopConditions, tokenizer: Tokenizer, most_tokens: int, min_tokens: int = 0
    ) -> None:
        self._stop, self._tokenizer, self._min_tokens = stop, tokenizer, min_tokens
        self._most_tokens = most_tokens
        self._end_tokens = frozenset() if stop.ignore_end else tokenizer.end_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # may yet turn out to be the beginning of a stop string
        self._released: list[str] = []
        self.count = 0

    @property
    def stop_tokens(self) -> frozenset[int]:
        """All tokens that end the request."""
        return self._end_tokens | frozenset(self._stop.tokens)

    @property
    def remaining_tokens(self) -> int:
        """Output tokens that may still come."""
        most = self._stop.max_tokens
        return min(self._most_tokens, self._most_tokens if most is None else most) - self.count

    def push(self, token: int) -> FinishReason | None:
        """Take one committed token; a reason means that it was the last."""
        self.count += 1
        reason = self._reason(token)
        if reason is not None:
            self._flush(cut=reason is FinishReason.STOP_STRING)
        return reason

    def take_text(self) -> str:
        """The text released since the last call: whole characters, in order, each once."""
        text = "".join(self._released)
        self._released.clear()
        return text

    def _reason(self, token: int) -> FinishReason | None:
        if token in self._end_tokens:
            return FinishReason.END_TOKEN
        if token in self._stop.tokens:
            return FinishReason.STOP_TOKEN
        if self._add_text(self._decoder.decode(self._tokenizer.token_bytes(token))):
            return FinishReason.STOP_STRING
        if self.remaining_tokens > 0:
            return None
        by_limit = self._stop.max_tokens is not None and self.count >= self._stop.max_tokens
        return FinishReason.MAX_TOKENS if by_limit else FinishReason.CONTEXT_END

    def _add_text(self, text: str) -> bool:
        """Release what is certain; True if a stop string is complete (then cut before it)."""
        self._held += text
        if self._stop.strings and self.count >= self._min_tokens:
            found = [self._held.find(string) for string in self._stop.strings]
            starts = [start for start in found if start >= 0]
            if starts:
                self._held = self._held[: min(starts)]
                return True
        keep = max((_overlap(self._held, string) for string in self._stop.strings), default=0)
        certain = len(self._held) - keep
        if certain:
            self._released.append(self._held[:certain])
            self._held = self._held[certain:]
        return False

    def _flush(self, cut: bool) -> None:
        # Behind a stop string the decoder may hold bytes; they belong to what was cut.
        rest = self._held if cut else self._held + self._decoder.decode(b"", final=True)
        self._released.append(rest)
        self._held = ""


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string` without completing it."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
