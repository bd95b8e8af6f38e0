"""Our lookup, recycled tokens and policy inside transformers' own `generate`.

    drafts = paceline_drafts()
    model.generate(**inputs, max_new_tokens=200, custom_generate=drafts)
    drafts.figures.tokens_per_round

The loop is transformers' assisted decoding, so that its logits processors, stopping criteria,
streamers, outputs and caches are what they are there; ours is what it verifies, and how much of it.
Tokens are chosen outright and matched against the model's own, so the output law stays the model's.
Written for transformers 5.23, whose `_assisted_decoding` it calls.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from paceline import plugins
from paceline.drafts.base import Draft
from paceline.drafts.create import create_draft, is_model, kinds_of, models_of
from paceline.economics.learned_costs import LearnedCosts
from paceline.economics.survival import MOST
from paceline.engines.tokenizer import Tokenizer
from paceline.engines.tokenizer_only import TokenizerOnly
from paceline.errors import SettingError, unknown_name
from paceline.integrations.served import Server
from paceline.types import Round, Sampling

if TYPE_CHECKING:
    from paceline.integrations.transformers_candidates import DraftCandidates

DRAFTS = ("lookup", "recycle")
"""What drafts unless something else is named."""


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What one call of `generate` came to. The forward that reads the prompt emits the first token
    and is no round.

    rounds           forwards after that
    drafted_rounds   those that verified a drafted token
    proposed         drafted tokens judged
    accepted         drafted tokens emitted; bonus and replacement excluded
    emitted          tokens emitted in rounds; bonus and replacement included
    draft_s          seconds in drafts and policy
    decode_s         seconds of the rounds, `draft_s` included
    """

    rounds: int = 0
    drafted_rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    draft_s: float = 0.0
    decode_s: float = 0.0

    @property
    def tokens_per_round(self) -> float | None:
        """emitted / rounds; None without rounds."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed; None where nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None


def figures_of(rounds: Sequence[Round]) -> DraftFigures:
    return DraftFigures(
        rounds=len(rounds),
        drafted_rounds=sum(round.proposed > 0 for round in rounds),
        proposed=sum(round.proposed for round in rounds),
        accepted=sum(round.accepted for round in rounds),
        emitted=sum(round.emitted for round in rounds),
        draft_s=sum(round.draft_s for round in rounds),
        decode_s=sum(round.draft_s + round.verify_s + round.other_s for round in rounds),
    )


def paceline_drafts(
    draft: str | Sequence[str] = DRAFTS, *, limit: int | None = None, share: bool = False
) -> DraftedGenerate:
    """What `custom_generate=` of transformers' `generate` takes, to decode with our free drafts.

    draft    one or several of the drafts that need no forwards, as `-d` takes them: `lookup`,
             `recycle`, with options. The policy takes the better one of several
    limit    None leaves it to the policy how many tokens are offered each round, none included, by
             how often such matches were right and what forwards of each width took. A number is
             always offered, as far as the first draft that has anything has so much
    share    let the policy begin each call with what it has counted in earlier ones; never text

    What forwards of a model take is learned over all calls. Raises SettingError for an unknown
    draft, one that can't draft here, and a limit out of range.
    """
    return DraftedGenerate(
        free_drafts([draft] if isinstance(draft, str) else draft), limit=limit, share=share
    )


def free_drafts(specs: Sequence[str]) -> dict[str, Draft]:
    """Drafts by their specifications, for a target that another engine runs. Raises SettingError
    for one that is unknown, needs forwards, offers trees, or remembers text between requests."""
    if not specs:
        raise SettingError("No draft is named.", "Name lookup, recycle, or both.")
    nothing = TokenizerOnly("another engine", "", cast(Tokenizer, None), vocabulary_size=0)
    found: dict[str, Draft] = {}
    for spec in specs:
        if is_model(spec):
            raise unknown_name("draft without a model", spec, plugins.names("draft"))
        asked = any(not kind.takes and not kind.foreseeable for kind in kinds_of(spec))
        if models_of(spec) or asked:
            raise _not_free(spec)
        draft = create_draft(spec, nothing)
        if draft.remembers:
            raise SettingError(
                f"The draft {spec!r} remembers text from one request to the next.",
                "Leave that option out: here nothing of a request's text outlives it.",
            )
        if not draft.foreseeable or draft.branches:
            raise _not_free(spec)
        found[spec] = draft
    return found


def _not_free(spec: str) -> SettingError:
    return SettingError(
        f"The draft {spec!r} can't draft for another engine: it needs forwards, offers trees, or "
        "can't be looked at before it is asked.",
        "Use lookup, recycle, or both.",
    )


class DraftedGenerate:
    """A `custom_generate` of transformers; `paceline_drafts` makes it.

    drafts     by name, `Draft.foreseeable` all
    figures    of the last call that ended, failed ones included; None before
    """

    def __init__(self, drafts: dict[str, Draft], *, limit: int | None, share: bool) -> None:
        if limit is not None and not 1 <= limit <= MOST:
            raise SettingError(
                f"limit is {limit}.", f"It must be from 1 to {MOST}, or None for the policy."
            )
        self.drafts, self.limit, self.share = drafts, limit, share
        self.figures: DraftFigures | None = None
        self._costs: WeakKeyDictionary[Any, LearnedCosts] = WeakKeyDictionary()
        self._servers: WeakKeyDictionary[Any, Server] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        inputs_tensor: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by `generate` with everything prepared; gives what `generate` gives.

        Raises SettingError for what assisted decoding can't honour.
        """
        from paceline.integrations.transformers_assisted import assisted_decoding, refuse

        handed = _of_generate()
        streamer = handed.get("streamer") if streamer is None else streamer
        refuse(
            model,
            input_ids,
            generation_config,
            logits_processor,
            model_kwargs,
            assistant_model=handed.get("assistant_model"),
            synced_gpus=bool(synced_gpus or handed.get("synced_gpus")),
        )
        candidates = self.candidates(model, generation_config, stopping_criteria)
        try:
            return assisted_decoding(
                model,
                candidates,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                streamer=streamer,
                inputs_tensor=inputs_tensor,
                **model_kwargs,
            )
        finally:
            candidates.close()
            self.figures = figures_of(candidates.rounds)

    def candidates(
        self, model: Any, generation_config: Any, stopping_criteria: Any = ()
    ) -> DraftCandidates:
        """A `DraftCandidates` for one call of `generate` on a model, for those who hand it over
        themselves. It must be closed."""
        from paceline.integrations.transformers_candidates import DraftCandidates

        ends = generation_config._eos_token_tensor
        temperature = 0.0
        if generation_config.do_sample:
            temperature = min(max(generation_config.temperature or 1.0, 1e-6), 1e6)
        return DraftCandidates(
            self._server(model),
            max_length=generation_config.max_length,
            limit=self.limit,
            end_tokens=() if ends is None else ends.flatten().tolist(),
            vocabulary_size=getattr(model.config.get_text_config(decoder=True), "vocab_size", None),
            stopping_criteria=stopping_criteria,
            sampling=Sampling(temperature=temperature),
            lock=self._lock,
        )

    def _server(self, model: Any) -> Server:
        with self._lock:
            server = self._servers.get(model)
            if server is None:
                costs = self._costs.setdefault(model, LearnedCosts())
                server = Server(self.drafts, limit=MOST, costs=costs)
                if self.share:
                    self._servers[model] = server
            return server


_NOT_HANDED_ON = ("streamer", "assistant_model", "synced_gpus")


def _of_generate() -> dict[str, Any]:
    """What `generate` was called with and, in 5.23, doesn't hand on to a callable. Without the
    streamer whoever listens to it would wait for ever; the others would be dropped unseen."""
    from transformers.generation.utils import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else {name: frame.f_locals.get(name) for name in _NOT_HANDED_ON}
