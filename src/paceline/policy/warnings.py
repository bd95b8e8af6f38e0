"""One clear line, once, when a draft can't pay here or has stopped paying."""

from __future__ import annotations

from collections.abc import Callable

from paceline.policy.acceptance import Acceptance
from paceline.policy.break_even import (
    LEAST_SPEEDUP_BOUND,
    Prices,
    best_speedup_bound,
    least_acceptance,
    prices,
)
from paceline.policy.costs import Costs
from paceline.types import Sampling

_ENOUGH = 16  # judged tokens before anything is said


class Warnings:
    """Says each thing once.

    say    takes a line
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[str] = set()
        self._least: dict[str, tuple[int, float] | None] = {}

    def cannot_pay(self, target: Costs, name: str, draft: Costs | None) -> bool:
        """Whether this draft would gain next to nothing even if it were always right; then says
        so."""
        if draft is None:
            return False
        priced = prices(target, draft)
        max_draft_tokens, gain = best_speedup_bound(priced)
        if gain >= LEAST_SPEEDUP_BOUND:
            self._least[name] = least_acceptance(
                priced.r,
                draft_cost=priced.draft_cost,
                overhead=priced.overhead,
                most=min(16, priced.most),
            )
            return False
        so = f"at most {gain:.2f} times as fast as" if max_draft_tokens else "slower than"
        self._once(
            name,
            f"The draft {label(name, draft)} can't pay here: {cost_words(priced)}, so even if the "
            f"target accepted every token it would be {so} ordinary decoding. It is not asked.",
        )
        return True

    def collapsed(
        self, name: str, draft: Costs | None, acceptance: Acceptance, sampling: Sampling
    ) -> None:
        """After enough judged tokens, say that a draft is not accepted often enough."""
        least = self._least.get(name)
        if acceptance.judged < _ENOUGH or least is None or name in self._said:
            return
        rate = acceptance.accepted / acceptance.judged
        if rate >= least[1]:
            return
        self._once(
            name,
            f"The draft {label(name, draft)} doesn't pay on this text: {rate:.0%} of "
            f"{acceptance.judged} judged tokens were accepted, break-even is {least[1]:.0%}. It is "
            f"asked only now and then. Likely causes: {causes(sampling)}.",
        )

    def _once(self, name: str, line: str) -> None:
        if name not in self._said:
            self._said.add(name)
            self._say(line)


def label(name: str, draft: Costs | None) -> str:
    """A draft's name, with its model where it has one."""
    model = "" if draft is None else str(draft.key.get("model", ""))
    return f"{name} ({model})" if model and not model.startswith(name) else name


def cost_words(priced: Prices) -> str:
    """What drafting and two rows cost, in words."""
    return (
        f"a drafted token costs {priced.draft_cost:.2f} of a target pass and two rows cost "
        f"{priced.r(2):.2f}"
    )


def causes(sampling: Sampling) -> str:
    """What most often makes a draft fail."""
    hot = f"temperature {sampling.temperature:g}, " if sampling.temperature >= 0.7 else ""
    return (
        f"{hot}another chat template or language than the draft was trained on, another "
        "tokenizer's text habits, or a context beyond the draft's"
    )
