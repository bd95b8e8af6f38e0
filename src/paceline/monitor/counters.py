"""The draft counters of vLLM, SGLang, TensorRT-LLM and llama.cpp's server in one form.

Each server counts something a little different under a similar name; `Dialect.says` puts into words
what. A figure that a server doesn't count is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from paceline.errors import SettingError
from paceline.monitor.prometheus import Page


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server names what it counts.

    prefix        how all its names begin
    drafts        rounds (of one sequence) that verified a drafted token, and no others
    steps         verified rounds, drafted or not
    drafted       drafted tokens that were verified
    accepted      those of them that were accepted; bonus and replacement excluded
    generated     tokens of all answers
    recent        gauges of the server's last interval, by our names: no sums, so never subtracted
    says          what these numbers are, a sentence each
    """

    server: str
    prefix: str
    says: tuple[str, ...]
    drafts: str | None = None
    steps: str | None = None
    drafted: str | None = None
    accepted: str | None = None
    generated: str | None = None
    drafted_by_position: str | None = None
    accepted_by_position: str | None = None
    position: str = "position"
    recent: Mapping[str, str] = field(default_factory=dict)


VLLM = Dialect(
    server="vLLM",
    prefix="vllm:",
    drafts="vllm:spec_decode_num_drafts_total",
    drafted="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
    accepted_by_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
    generated="vllm:generation_tokens_total",
    says=(
        "vLLM counts a round only if a token was drafted in it: tokens per drafted round is more "
        "than tokens per round where some rounds have no draft.",
        "Accepted tokens exclude the bonus, and include what an end token cut off.",
        "The counters are there only where drafts are configured.",
    ),
)
LLAMACPP = Dialect(
    server="llama.cpp",
    prefix="llamacpp:",
    drafts="llamacpp:spec_decode_num_drafts_total",
    drafted="llamacpp:spec_decode_num_draft_tokens_total",
    accepted="llamacpp:spec_decode_num_accepted_tokens_total",
    accepted_by_position="llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    generated="llamacpp:tokens_predicted_total",
    says=(
        "llama.cpp's server counts a round only if a token was drafted in it: tokens per drafted "
        "round is more than tokens per round where some rounds have no draft.",
        "Accepted tokens exclude the target's own. A request is counted when it ends.",
    ),
)
SGLANG = Dialect(
    server="SGLang",
    prefix="sglang:",
    steps="sglang:spec_verify_calls_total",
    generated="sglang:generation_tokens_total",
    recent={
        "tokens_per_round": "sglang:spec_accept_length",
        "acceptance_rate": "sglang:spec_accept_rate",
    },
    says=(
        "SGLang has no counters of drafted and accepted tokens; tokens per round is generated "
        "tokens over verified rounds, bonus included, and a little high on short answers, whose "
        "first token comes from the prompt.",
        "Its gauges are of its last log interval only; its acceptance rate is over the configured "
        "width, so it is low by construction for trees.",
    ),
)
TENSORRT_LLM = Dialect(
    server="TensorRT-LLM",
    prefix="trtllm_",
    drafted="trtllm_spec_decode_num_draft_tokens_total",
    accepted="trtllm_spec_decode_num_accepted_tokens_total",
    drafted_by_position="trtllm_spec_decode_drafted_tokens_total",
    accepted_by_position="trtllm_spec_decode_accepted_tokens_total",
    position="token_position",
    recent={
        "tokens_per_round": "trtllm_spec_decode_acceptance_length",
        "draft_share": "trtllm_spec_decode_draft_overhead",
    },
    says=(
        "TensorRT-LLM's accepted tokens exclude the target's own. Older versions count drafted "
        "tokens that were only padding.",
        "Its counters by position are of ended requests; its gauges of the last forward only.",
    ),
)
DIALECTS = (VLLM, LLAMACPP, SGLANG, TENSORRT_LLM)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a server has counted since it started, or between two moments.

    by position    accepted (drafted) tokens at each position of a draft, from its first on; empty
                   where the server doesn't tell
    started_s      when the server's process started, if it tells; Unix time
    """

    server: str | None = None
    drafts: float | None = None
    steps: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    generated: float | None = None
    drafted_by_position: tuple[float, ...] = ()
    accepted_by_position: tuple[float, ...] = ()
    recent: Mapping[str, float] = field(default_factory=dict)
    started_s: float | None = None

    @property
    def has_drafts(self) -> bool:
        """Whether the server counts its drafts at all."""
        return any(x is not None for x in (self.drafts, self.steps, self.drafted, self.accepted))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted or it isn't counted."""
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted

    @property
    def tokens_per_drafted_round(self) -> float | None:
        """1 + accepted / drafts, over rounds that verified a draft."""
        if not self.drafts or self.accepted is None:
            return None
        return 1 + self.accepted / self.drafts

    @property
    def tokens_per_round(self) -> float | None:
        """Generated / verified rounds, where all of them are counted."""
        if not self.steps or self.generated is None:
            return None
        return self.generated / self.steps

    @property
    def accepted_at(self) -> tuple[float, ...]:
        """By position, the share of drafted rounds whose token there was accepted; where the server
        counts what it drafted there, the share of those. Empty if it doesn't tell."""
        if self.drafted_by_position:
            pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=False)
            return tuple(accepted / drafted for accepted, drafted in pairs if drafted)
        if not self.drafts:
            return ()
        return tuple(accepted / self.drafts for accepted in self.accepted_by_position)

    def __add__(self, other: Counters) -> Counters:
        """Two stretches of one server together; a figure that either lacks is unknown."""
        return self._joined(other, 1)

    def _joined(self, other: Counters, sign: int) -> Counters:
        def sums(name: str) -> float | None:
            ours, theirs = getattr(self, name), getattr(other, name)
            return None if ours is None or theirs is None else ours + sign * theirs

        return Counters(
            self.server,
            **{name: sums(name) for name in _SCALARS},
            drafted_by_position=_add(self.drafted_by_position, other.drafted_by_position, sign),
            accepted_by_position=_add(self.accepted_by_position, other.accepted_by_position, sign),
            recent=self.recent,
            started_s=self.started_s,
        )

    def as_json(self) -> dict[str, Any]:
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**document, "recent": dict(self.recent)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Counters:
        values = {one.name: document[one.name] for one in fields(cls)}
        for name in ("drafted_by_position", "accepted_by_position"):
            values[name] = tuple(map(float, values[name]))
        return cls(**values)


_SCALARS = ("drafts", "steps", "drafted", "accepted", "generated")


def read_counters(page: Page, model: str | None = None) -> Counters:
    """What a page says, summed over its series (engines, ranks).

    model    whose counters, where the page has those of several

    Raises SettingError if it has several models and not this one.
    """
    dialect = dialect_of(page)
    if dialect is None:
        return Counters()
    only = _only(page, dialect, model)

    def total(name: str | None) -> float | None:
        return None if name is None else page.total(name, **only)

    def by_position(name: str | None) -> tuple[float, ...]:
        found = {} if name is None else page.by_label(name, dialect.position, **only)
        places = {int(place): value for place, value in found.items() if place.isdecimal()}
        return tuple(places.get(i, 0.0) for i in range(max(places, default=-1) + 1))

    drafted_there, accepted_there = (
        by_position(name) for name in (dialect.drafted_by_position, dialect.accepted_by_position)
    )
    recent = {
        ours: sum(sample.value for sample in found) / len(found)
        for ours, name in dialect.recent.items()
        if (found := page.named(name, **only))
    }
    drafts, drafted, accepted = map(total, (dialect.drafts, dialect.drafted, dialect.accepted))
    if drafted_there:
        drafts = drafted_there[0] if drafts is None else drafts  # each draft has a first token
        drafted = sum(drafted_there) if drafted is None else drafted
        accepted = sum(accepted_there) if accepted is None else accepted
    return Counters(
        server=dialect.server,
        drafts=drafts,
        steps=total(dialect.steps),
        drafted=drafted,
        accepted=accepted,
        generated=total(dialect.generated),
        drafted_by_position=drafted_there,
        accepted_by_position=accepted_there,
        recent=recent,
        started_s=page.total("process_start_time_seconds"),
    )


def dialect_of(page: Page) -> Dialect | None:
    """Whose page it is, told by its names; None if it is nobody's we know."""
    return next(
        (d for d in DIALECTS if any(s.name.startswith(d.prefix) for s in page.samples)), None
    )


def says(server: str | None) -> tuple[str, ...]:
    """What a server's counters mean, a sentence each."""
    return next((d.says for d in DIALECTS if d.server == server), ())


def restarted(before: Counters, after: Counters) -> bool:
    """Whether the server began anew in between, so that a difference would mean nothing: its
    process is another, or a counter fell or vanished."""
    if before.started_s != after.started_s or before.server not in (None, after.server):
        return True  # a page may have no names of a server that was never asked

    def fell(old: float | None, new: float | None) -> bool:
        return old is not None and (new is None or new < old)

    by_position = any(
        fell(old, new)
        for name in ("drafted_by_position", "accepted_by_position")
        for old, new in zip(getattr(before, name), getattr(after, name), strict=False)
    )
    return by_position or any(fell(getattr(before, n), getattr(after, n)) for n in _SCALARS)


def between(before: Counters, after: Counters) -> Counters | None:
    """What was counted between two readings; None if the server restarted in between. A counter
    that appears with its first count began at 0."""
    if restarted(before, after):
        return None
    started = {
        name: 0.0
        for name in _SCALARS
        if getattr(before, name) is None and getattr(after, name) is not None
    }
    zero = {one.name: getattr(before, one.name) for one in fields(before)} | started
    return after._joined(Counters(**zero), -1)


def _add(ours: tuple[float, ...], theirs: tuple[float, ...], sign: int) -> tuple[float, ...]:
    length = max(len(ours), len(theirs))
    return tuple(
        (ours[i] if i < len(ours) else 0.0) + sign * (theirs[i] if i < len(theirs) else 0.0)
        for i in range(length)
    )


def _only(page: Page, dialect: Dialect, model: str | None) -> dict[str, str]:
    names = page.values_of("model_name", dialect.prefix)
    if len(names) < 2:
        return {}
    if model not in names:
        raise SettingError(
            f"The page counts for {', '.join(sorted(names))}, not for {model}.",
            "Name one of them with --model.",
        )
    return {"model_name": model}
