"""One way of decoding beside its baseline, over the prompts that both finished: what a bench of a
local model and a run on live servers come to in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.bench.stats import Pair, Ratio, speed_ratio


@dataclass(frozen=True, slots=True)
class ComparedPrompt:
    """What one prompt took on both sides.

    per_token    seconds and tokens after the first
    whole        of whole answers, waits and the reading of the prompt included; servers only
    """

    id: str
    category: str
    per_token: Pair
    whole: Pair | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate's times beside its baseline's.

    candidate    a configuration's name, or the server that is judged
    title        for people: marked if lossy, or with how many clients asked
    equal        texts that are the baseline's, of so many compared; None when sampled
    """

    candidate: str
    title: str
    baseline: str
    prompts: tuple[ComparedPrompt, ...]
    equal: tuple[int, int] | None
    _known: dict[tuple[bool, str | None], Ratio | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    def ratio(self, category: str | None = None) -> Ratio | None:
        """Speedup per token after the first, its interval over prompts; None without any."""
        return self._ratio(False, category)

    def whole_ratio(self, category: str | None = None) -> Ratio | None:
        """Speedup of whole answers."""
        return self._ratio(True, category)

    def _ratio(self, whole: bool, category: str | None) -> Ratio | None:
        key = (whole, category)  # a bootstrap takes a while, and each is asked for more than once
        if key not in self._known:
            among = [one for one in self.prompts if category in (None, one.category)]
            pairs = [one.whole if whole else one.per_token for one in among]
            self._known[key] = speed_ratio([pair for pair in pairs if pair is not None])
        return self._known[key]

    @property
    def categories(self) -> list[str]:
        """In the order of the prompts."""
        return list(dict.fromkeys(one.category for one in self.prompts))

    def worst_first(self) -> list[tuple[str, Ratio]]:
        """Categories with their speedup, the least first."""
        found = [(name, ratio) for name in self.categories if (ratio := self.ratio(name))]
        return sorted(found, key=lambda each: each[1].value)

    def as_json(self, categories: Iterable[str] = ()) -> dict[str, Any]:
        """What a summary in JSON says of it.

        categories    to name also where no prompt of theirs was finished by both
        """
        every = dict.fromkeys([*categories, *self.categories])
        document: dict[str, Any] = msgspec.to_builtins(
            {
                "prompts_compared": len(self.prompts),
                "speedup": self.ratio(),
                "speedup_by_category": {name: self.ratio(name) for name in every},
                "equal_texts": self.equal and {"equal": self.equal[0], "compared": self.equal[1]},
            }
        )
        return document

    def prompt_ratios(self) -> dict[str, Ratio]:
        """Speedup by prompt; one pair has no interval."""
        found = {one.id: speed_ratio([one.per_token]) for one in self.prompts}
        return {id: ratio for id, ratio in found.items() if ratio is not None}
