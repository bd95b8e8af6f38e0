"""One answer of an OpenAI-compatible server: its stream of events read, and what it came to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class BadAnswer(Exception):
    """An answer that is none: `kind` for counting, and what happened in words."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request. A time or count that wasn't measured is None.

    text             the answer; `reasoning` what a thinking model put before it
    ttft_s           from sending the request to the first piece of either; of the last attempt
    decode_s         from there to the last piece, or to the end that the server gave as a reason
    total_s          from sending the first attempt to the end of the answer, waits included
    output_tokens    by the server's own count, reasoning included
    pieces           how many pieces of text came; with drafts a piece may hold several tokens
    arrivals         at how many moments they came: fewer than pieces where something bundles them
    cached_tokens    prompt tokens that the server had from earlier requests, if it tells
    drafted          drafted tokens, if the server tells them per answer, and those it `accepted`
    retries          attempts that were refused for now (429, 5xx)
    waited_s         from sending the first attempt to sending the last
    failure          what went wrong, in words, and its `failure_kind`; None for an answer
    """

    text: str = ""
    reasoning: str = ""
    ttft_s: float | None = None
    decode_s: float | None = None
    total_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    pieces: int = 0
    arrivals: int = 0
    streamed: bool = True
    drafted: int | None = None
    accepted: int | None = None
    retries: int = 0
    waited_s: float = 0.0
    failure: str | None = None
    failure_kind: str | None = None

    @property
    def later_tokens(self) -> int:
        """Output tokens after the first: those that `decode_s` was spent on."""
        return max((self.output_tokens or 0) - 1, 0) if self.decode_s is not None else 0

    @property
    def s_per_token(self) -> float | None:
        """Seconds per output token after the first."""
        return self.decode_s / self.later_tokens if self.decode_s and self.later_tokens else None


class Events:
    """Server-sent events from bytes as they come (WHATWG HTML, section 9.2.6): (name, data)."""

    def __init__(self) -> None:
        self._rest = b""
        self._name, self._data = "", list[str]()

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """The events (name and data) that these bytes complete."""
        # By newlines alone: JSON may hold the other separators that str.splitlines knows.
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", errors="replace")
            if line:
                self._take(line)
            elif self._data:
                event = self._name, "\n".join(self._data)
                self._name, self._data = "", []
                yield event

    def _take(self, line: str) -> None:
        field_name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field_name == "data":
            self._data.append(value)
        elif field_name == "event":
            self._name = value
        elif field_name == "error":  # older builds of llama.cpp's server
            self._name, self._data = "error", [value]


@dataclass(slots=True)
class AnswerReading:
    """An answer as far as it has come. Times are of one clock, in seconds."""

    started: float
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    first: float | None = None
    last: float | None = None
    arrived: float | None = None
    pieces: int = 0
    arrivals: int = 0
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    drafts: tuple[int | None, int | None] = (None, None)
    done: bool = False
    streamed: bool = True
    events: Events = field(default_factory=Events)

    def take_bytes(self, data: bytes, now: float) -> None:
        """A part of a stream. Raises BadAnswer as `take_event` does."""
        for name, text in self.events.feed(data):
            self.take_event(name, text, now)

    def take_event(self, name: str, data: str, now: float) -> None:
        """Raises BadAnswer for an event that tells of an error, or is not JSON."""
        if data.strip() == "[DONE]":
            self.done = True
            return
        document = parsed(data)
        if name == "error" or document.get("error") or document.get("object") == "error":
            raise BadAnswer("error event", f"sent an error: {message_of(document, data)}")
        with _in_openais_form(data):
            self._take_metadata(document)
            for choice in document.get("choices") or ():
                self._take_piece(choice.get("delta") or choice, now)
                if choice.get("finish_reason"):
                    self.finish_reason, self.last = str(choice["finish_reason"]), now

    def take_whole(self, data: str) -> None:
        """An answer in one piece, from a server that doesn't stream: nothing is known of times."""
        self.streamed = False
        document = parsed(data)
        choices = document.get("choices")
        if document.get("error") or not choices:
            raise BadAnswer(
                "no answer", f"answered without an answer: {message_of(document, data)}"
            )
        with _in_openais_form(data):
            self._take_metadata(document)
            self._take_piece(choices[0].get("message") or choices[0], None)
            reason = choices[0].get("finish_reason")
            self.finish_reason, self.done = None if reason is None else str(reason), True

    def _take_piece(self, piece: Mapping[str, Any], now: float | None) -> None:
        text = piece.get("content") or piece.get("text") or ""
        thought = piece.get("reasoning_content") or piece.get("reasoning") or ""
        if not text and not thought:
            return
        self.text.append(str(text))
        self.reasoning.append(str(thought))
        self.pieces += 1
        self.arrivals += now != self.arrived
        self.first = now if self.first is None else self.first
        self.last = self.arrived = now

    def _take_metadata(self, document: Mapping[str, Any]) -> None:
        usage = document.get("usage")
        self.usage = usage if isinstance(usage, dict) else self.usage
        timings = document.get("timings")  # llama.cpp's server; the two only where it drafted
        if isinstance(timings, dict) and "draft_n" in timings:
            self.drafts = _count(timings, "draft_n"), _count(timings, "draft_n_accepted")
        told = (document.get("metrics") or {}).get("speculative_decoding")  # vLLM, if asked to
        if isinstance(told, dict):
            names = ("num_draft_tokens", "num_accepted_draft_tokens")
            self.drafts = _count(told, names[0]), _count(told, names[1])

    @property
    def complete(self) -> bool:
        """Whether the server said that this is the end; without a reason, at least of a text."""
        return self.finish_reason is not None or (self.done and self.pieces > 0)

    def answer(self, ended: float, *, retries: int = 0, asked: float | None = None) -> Answer:
        """
        asked    when the first attempt was sent, if this isn't it
        """
        asked = self.started if asked is None else asked
        return Answer(
            text=whole_characters("".join(self.text)),
            reasoning=whole_characters("".join(self.reasoning)),
            ttft_s=_less(self.first, self.started),
            # Of text that came at one moment no time passed that could be shared by its tokens.
            decode_s=_less(self.last, self.first) if self.arrivals > 1 else None,
            total_s=ended - asked,
            prompt_tokens=_count(self.usage, "prompt_tokens"),
            cached_tokens=_count(self.usage.get("prompt_tokens_details"), "cached_tokens"),
            output_tokens=_count(self.usage, "completion_tokens"),
            finish_reason=self.finish_reason and whole_characters(self.finish_reason),
            pieces=self.pieces,
            arrivals=self.arrivals,
            streamed=self.streamed,
            drafted=self.drafts[0],
            accepted=self.drafts[1],
            retries=retries,
            waited_s=self.started - asked,
        )


def whole_characters(text: str) -> str:
    """The halves of a character that came in two pieces put together; a half alone is replaced.
    JSON may hold halves (RFC 8259, section 8.2); UTF-8 can't.

    >>> whole_characters("\\ud83d" + "\\ude00") == "\\U0001f600", whole_characters("\\ud83d")
    (True, '�')
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _less(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def _count(found: object, name: str) -> int | None:
    """A number of tokens by its name; None where there is none."""
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) else None


@contextmanager
def _in_openais_form(data: str) -> Iterator[None]:
    """Raises BadAnswer where JSON has another form than OpenAI's API gives it."""
    try:
        yield
    except (AttributeError, TypeError, KeyError, IndexError):
        sentence = f"answered with {shortened(data)}, in another form than OpenAI's"
        raise BadAnswer("another form", sentence) from None


def parsed(data: str) -> dict[str, Any]:
    """A JSON object. Raises BadAnswer for anything else."""
    try:
        document = json.loads(data)
    except ValueError:
        raise BadAnswer("not JSON", f"answered with {shortened(data)}, not with JSON") from None
    if not isinstance(document, dict):
        raise BadAnswer("not JSON", f"answered with {shortened(data)}, no JSON object")
    return document


def message_of(document: object, text: str) -> str:
    """What a server says of an error, in whichever of the usual places."""
    if isinstance(document, dict):
        inner = document.get("error")
        for place in (inner, document):
            if isinstance(place, dict):
                for key in ("message", "detail", "error"):
                    if isinstance(place.get(key), str):
                        return shortened(place[key])
        if isinstance(inner, str):
            return shortened(inner)
    return shortened(text)


def shortened(text: str, most: int = 240) -> str:
    """A text as one line, cut; an HTML page is only named."""
    line = " ".join(text.split())
    if line[:1] == "<":
        return "an HTML page"
    return repr(line) if len(line) <= most else f"{line[:most]!r} …"
