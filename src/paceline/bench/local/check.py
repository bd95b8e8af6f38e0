"""Is the bookkeeping exact? Two tests on one text, both greedy.

The target as its own draft: every token must be accepted. And plain text offered with a mistake in
every block: every block is then partly rejected and rewound, and the text must stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.local.divergence import FirstDifference, explain, largest_movement
from paceline.decode.generate import Generation, decode
from paceline.decode.round import fixed
from paceline.decode.step import Decoder
from paceline.drafts.base import Context, Draft
from paceline.drafts.model import ModelDraft
from paceline.engines.base import Engine
from paceline.types import Proposal, Request, StopConditions
from paceline.verify.chain import ChainVerifier


class MistakenDraft(Draft):
    """Offers a known text with one wrong token a block, at a place that moves on each time."""

    name = "mistaken"
    summary = "a known text with a mistake in every block; for checking engines"

    def __init__(self, output: Sequence[int], vocabulary_size: int) -> None:
        self._output, self._size = list(output), vocabulary_size
        self._blocks = 0

    def propose(self, contexts: Sequence[Context], limits: Sequence[int]) -> list[Proposal]:
        return [
            Proposal(self._block(context.history.output_length, max_draft_tokens), self.name)
            for context, max_draft_tokens in zip(contexts, limits, strict=True)
        ]

    def _block(self, start: int, max_draft_tokens: int) -> tuple[int, ...]:
        block = self._output[start : start + max_draft_tokens]
        if block:
            place = self._blocks % len(block)
            block[place] = (block[place] + 1) % self._size
            self._blocks += 1
        return tuple(block)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What became of both tests.

    rejections        output positions where a token of the target's own was rejected
    largest_gap       largest top-2 logit gap at such a position; None without any
    movement          largest change of a top-2 gap that width alone caused in this text
    first_difference        first difference to plain text when drafting with itself, if any
    rewinds           how often the second test rewound a rejected block
    rewound           first difference to plain text in the second test, if any
    """

    proposed: int
    accepted: int
    rejections: tuple[int, ...]
    largest_gap: float | None
    movement: float
    first_difference: FirstDifference | None
    rewinds: int
    rewound: FirstDifference | None

    @property
    def sound(self) -> bool:
        """Whether rounding explains every rejection and every difference."""
        gap_is_small = self.largest_gap is None or self.largest_gap <= self.movement
        differences = (self.first_difference, self.rewound)
        return gap_is_small and all(d is None or d.numeric for d in differences)


def check_bookkeeping(
    engine: Engine, prompt: Sequence[int], *, max_draft_tokens: int = 4, max_tokens: int = 48
) -> SelfCheck:
    """Run both tests on what the target says after a prompt.

    engine    needs two sequences: one for each role
    """
    request = Request(
        prompt=tuple(prompt),
        stop=StopConditions(max_tokens=max_tokens, ignore_end=True),
        margins=True,
    )
    baseline = _decode(engine, None, 0, request)
    itself = _decode(engine, ModelDraft(engine, engine), max_draft_tokens, request)
    mistaken = MistakenDraft(baseline.tokens, engine.vocabulary_size)
    rewound = _decode(engine, mistaken, max_draft_tokens, request)
    rejections = _rejections(itself)

    def difference(generation: Generation) -> FirstDifference | None:
        return explain(
            engine,
            request,
            baseline.tokens,
            generation.tokens,
            baseline.margins,
            [max_draft_tokens + 1],
        )

    return SelfCheck(
        proposed=itself.stats.proposed,
        accepted=itself.stats.accepted,
        rejections=rejections,
        largest_gap=max((itself.margins[i] for i in rejections), default=None),
        movement=largest_movement(
            engine, request, baseline.tokens, baseline.margins, [max_draft_tokens + 1]
        ),
        first_difference=difference(itself),
        rewinds=sum(round.accepted < round.proposed for round in rewound.rounds),
        rewound=difference(rewound),
    )


def _decode(
    engine: Engine, draft: Draft | None, max_draft_tokens: int, request: Request
) -> Generation:
    drafts = {} if draft is None else {draft.name: draft}
    policy = fixed(draft.name if draft else None, max_draft_tokens)
    [generation] = decode(Decoder(engine, drafts, ChainVerifier(), policy), [request])
    return generation


def _rejections(generation: Generation) -> tuple[int, ...]:
    """Output positions at which the target put its own token in place of a drafted one."""
    positions, emitted = [], 0
    for round in generation.rounds:
        emitted += round.emitted
        if round.accepted < round.proposed:
            positions.append(emitted - 1)
    return tuple(positions)


def self_check_lines(itself: SelfCheck) -> list[str]:
    """What became of both tests, a line each."""
    line = f"accepted {itself.accepted} of {itself.proposed} of its own tokens"
    if itself.rejections:
        kind = "numeric" if itself.sound else "FAULT"
        line += (
            f"; {len(itself.rejections)} rejected, {kind}: the largest top-2 logit gap there is "
            f"{itself.largest_gap:.3g}, width alone moves gaps by up to {itself.movement:.3g}"
        )
    return [
        f"itself    {line}; {_difference(itself.first_difference)}",
        f"rewinds   {itself.rewinds} blocks with a mistake rewound; {_difference(itself.rewound)}",
    ]


def _difference(found: FirstDifference | None) -> str:
    return "text equal to the baseline" if found is None else f"text {found.sentence()}"
