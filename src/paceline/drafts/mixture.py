"""Two drafts' distributions mixed, position by position.

Each token is drawn from weight·q_A + (1 − weight)·q_B, both behind the same drafted tokens, and
that mixture is the distribution it is told with. Of a drafted token Σ min(p, q) is accepted: a
lookup (one-hot) gives what it is sure of, a model covers the rest.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence
from typing import Any

from paceline.drafts.base import Context, Draft, VerifiedRound
from paceline.drafts.calibrate import WEIGHTS, Calibration, is_greedy, worth_by_weight
from paceline.drafts.combine import CombinedDraft, check_can_continue
from paceline.drafts.options import read_options, yes_or_no
from paceline.drafts.stepwise import draw_on
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.sampling.distribution import Distribution, mixed
from paceline.types import Proposal


class MixtureDraft(CombinedDraft):
    """The mixture of two drafts' distributions at each position; where one has none, the other's
    distribution.

    Where the request is greedy, so is the target, and mixing could only lose: the heavier draft's
    token is taken outright (the first one's at 0.5), the lighter is asked where that has none.

    parts        two drafts that can go on behind drafted tokens
    weight       of the first, from 0 to 1
    calibrate    begin with that weight, and choose it by what the target said in earlier rounds of
                 the request

    Raises SettingError for other parts, and for a weight outside.
    """

    name = "mixture"
    summary = (
        "two drafts' distributions mixed at each position; weight=W (of the first), DRAFT+DRAFT"
    )

    can_continue = True

    def __init__(
        self, parts: AbstractSequence[Draft], weight: Any = 0.5, *, calibrate: bool = False
    ) -> None:
        super().__init__(parts)
        if len(parts) > 2:
            raise SettingError(
                f"A mixture of {len(parts)} drafts was asked for.", "Name two of them."
            )
        if not 0 <= weight <= 1:
            raise SettingError(f"weight is {weight}.", "It must be from 0 to 1.")
        check_can_continue(self.name, parts)
        self.weight, self.calibrate = weight, calibrate
        self.observes_logits = self.observes_logits or calibrate
        self._calibrations: dict[Context, Calibration] = {}

    @classmethod
    def create(cls, target: Engine, **options: Any) -> MixtureDraft:  # noqa: ARG003
        """Options weight (number), calibrate (yes or no)."""
        parts = options.pop("drafts")
        known: dict[str, Any] = {"weight": float, "calibrate": yes_or_no}
        return cls(parts, **read_options(cls.name, options, known))

    def open(self, context: Context) -> None:
        super().open(context)
        if self.calibrate and not is_greedy(context.sampling):
            self._calibrations[context] = Calibration(WEIGHTS, self.weight)

    def close(self, context: Context) -> None:
        self._calibrations.pop(context, None)
        super().close(context)

    def propose(
        self, contexts: AbstractSequence[Context], limits: AbstractSequence[int]
    ) -> list[Proposal]:
        return draw_on(self, contexts, limits)

    def next_distributions(
        self, contexts: AbstractSequence[Context], drafted: AbstractSequence[AbstractSequence[int]]
    ) -> list[Distribution | None]:
        heavier, lighter = self.parts if self.weight >= 0.5 else reversed(self.parts)
        distributions = dict(enumerate(heavier.next_distributions(contexts, drafted)))
        asked = [
            index
            for index, context in enumerate(contexts)
            if distributions[index] is None or not is_greedy(context.sampling)
        ]
        others = lighter.next_distributions(
            [contexts[i] for i in asked], [drafted[i] for i in asked]
        )
        for i, other in zip(asked, others, strict=True):
            both = (
                (distributions[i], other) if heavier is self.parts[0] else (other, distributions[i])
            )
            distributions[i] = self._mixed(contexts[i], drafted[i], *both)
        return list(distributions.values())

    def _mixed(
        self,
        context: Context,
        drafted: AbstractSequence[int],
        first: Distribution | None,
        second: Distribution | None,
    ) -> Distribution | None:
        if first is None or second is None:
            return second if first is None else first
        calibration = self._calibrations.get(context)
        if calibration is None:
            return mixed(first, second, self.weight)
        calibration.told[tuple(drafted)] = first, second
        return mixed(first, second, calibration.value)

    def observe_logits(self, context: Context, verified: VerifiedRound) -> None:
        super().observe_logits(context, verified)
        calibration = self._calibrations.get(context)
        if calibration is not None:
            for target, (first, second) in calibration.on_path(verified):
                calibration.learn(worth_by_weight(target, first, second))

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "weight": self.weight, "calibrate": self.calibrate}
