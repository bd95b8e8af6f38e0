"""What a replay found, and the same as a JSON document (docs/replay.md has its fields)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.prompts.workload import Workload
from paceline.simulate.fixed_limits import Outcome
from paceline.simulate.replay import Log
from paceline.simulate.replay_costs import Prices, best_of

Outcomes = Mapping[int, Mapping[str | None, Outcome]]
"""By limit, then by category; None is all answers together."""


@dataclass(slots=True)
class ReplayResult:
    """What is known once drafts were replayed.

    target       the engine's facts, of its tokenizer alone
    drafts       facts by name
    outcomes     by draft
    costs        where they come from
    whose        sentences on costs that are not of this target on this machine, or may not be
    prices       by batch size; empty without costs
    notes        what a reader of the figures must know, one sentence each
    complete     false after an interrupt: what there is was found all the same
    """

    target: dict[str, Any]
    workload: Workload
    log: Log
    temperature: float
    drafts: dict[str, dict[str, Any]]
    replayed: int = 0
    outcomes: dict[str, Outcomes] = field(default_factory=dict)
    costs: str | None = None
    whose: list[str] = field(default_factory=list)
    prices: dict[int, Prices] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    @property
    def categories(self) -> list[str]:
        """Of the answers that were replayed, the one with fewest tokens per round first."""
        limits = next(iter(self.outcomes.values()), {})
        if not limits:
            return []
        widest = limits[max(limits)]
        return sorted(
            (name for name in widest if name is not None),
            key=lambda name: widest[name].tokens_per_round or 0.0,
        )

    def as_document(self) -> dict[str, Any]:
        """One JSON document; nothing in it is a measured time."""
        log, found = self.log, self.log.answers[: self.replayed]
        return {
            "kind": "paceline replay",
            "complete": self.complete,
            "target": self.target,
            "workload": self.workload.metadata(),
            "temperature": self.temperature,
            "answers": {
                "replayed": self.replayed,
                "tokens": sum(len(answer.output) for answer in found),
                "unanswered": log.unanswered,
                "cut": sum(answer.cut for answer in found),
                "respelled": sum(answer.respelled for answer in found),
                "failed": list(log.failed),
            },
            "drafts": {
                name: {
                    "metadata": self.drafts[name],
                    "limits": {
                        str(max_draft_tokens): _parted(
                            {c: o.as_json() for c, o in by_category.items()}
                        )
                        for max_draft_tokens, by_category in outcomes.items()
                    },
                }
                for name, outcomes in self.outcomes.items()
            },
            "costs": self.costs,
            "predicted": {str(batch): _priced(prices) for batch, prices in self.prices.items()},
            "notes": [*self.whose, *self.notes],
        }


def _priced(prices: Prices) -> dict[str, Any]:
    best = {category: best_of(prices, category) for category in next(iter(prices.values()), {})}
    return {
        "policies": {
            spec: _parted({category: price.as_json() for category, price in by_category.items()})
            for spec, by_category in prices.items()
        },
        "best": _parted(
            {c: one and {"policy": one[0], "pays": one[1].pays} for c, one in best.items()}
        ),
    }


def _parted(by_category: Mapping[str | None, Any]) -> dict[str, Any]:
    """All answers apart from the categories, one of which may be named anything."""
    return {
        "all": by_category.get(None),
        "categories": {name: one for name, one in by_category.items() if name is not None},
    }
