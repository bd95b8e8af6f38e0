"""Our lookup, recycled tokens and policy inside transformers' own `generate`.

    drafts = paceline_drafts()
    model.generate(**inputs, max_new_tokens=200, custom_generate=drafts)
    drafts.stats.tokens_per_round

The loop is transformers' assisted decoding, so that its logits processors, stopping criteria,
streamers, outputs and caches are what they are there; ours is what it verifies, and how much of it.
Tokens are deterministic and matched against the model's own, so the output distribution stays the
model's. Tested with transformers 5.23 and 5.24, whose `_assisted_decoding` it calls.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from paceline.decode.stats import Stats, stats
from paceline.drafts.base import Draft
from paceline.errors import SettingError
from paceline.integrations.served import DraftServer, free_drafts
from paceline.policy.acceptance import MOST
from paceline.policy.live import LearnedCosts
from paceline.types import Sampling

if TYPE_CHECKING:
    from paceline.integrations.assisted import DraftCandidates

DRAFTS = ("lookup", "recycle")
"""What drafts unless something else is named."""


def paceline_drafts(
    draft: str | Sequence[str] = DRAFTS, *, max_draft_tokens: int | None = None, share: bool = False
) -> DraftedGenerate:
    """What `custom_generate=` of transformers' `generate` takes, to decode with our free drafts.

    draft    one or several of the drafts that need no forwards, as `-d` takes them: `lookup`,
             `recycle`, with options. The policy takes the better one of several
    max_draft_tokens    None leaves it to the policy how many tokens are offered each round, none
             included, by how often such matches were right and what forwards of each width took. A
             number is always offered, as far as the first draft that has anything has so much
    share    let the policy begin each call with what it has counted in earlier ones; never text

    What forwards of a model take is learned over all calls. Raises SettingError for an unknown
    draft, one that can't draft here, and a limit out of range.
    """
    return DraftedGenerate(
        free_drafts([draft] if isinstance(draft, str) else draft),
        max_draft_tokens=max_draft_tokens,
        share=share,
    )


class DraftedGenerate:
    """A `custom_generate` of transformers; `paceline_drafts` makes it.

    drafts     by name, `Draft.previewable` all
    stats      of the last call that ended, failed ones included; None before. The forward that
               reads the prompt emits the first token and is no round
    """

    def __init__(
        self, drafts: dict[str, Draft], *, max_draft_tokens: int | None, share: bool
    ) -> None:
        if max_draft_tokens is not None and not 1 <= max_draft_tokens <= MOST:
            raise SettingError(
                f"max_draft_tokens is {max_draft_tokens}.",
                f"It must be from 1 to {MOST}, or None for the policy.",
            )
        self.drafts, self.max_draft_tokens, self.share = drafts, max_draft_tokens, share
        self.stats: Stats | None = None
        self._costs: WeakKeyDictionary[Any, LearnedCosts] = WeakKeyDictionary()
        self._servers: WeakKeyDictionary[Any, DraftServer] = WeakKeyDictionary()
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
        from paceline.integrations.assisted import assisted_decoding, refuse

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
            self.stats = stats(candidates.rounds)

    def candidates(
        self, model: Any, generation_config: Any, stopping_criteria: Any = ()
    ) -> DraftCandidates:
        """A `DraftCandidates` for one call of `generate` on a model, for those who hand it over
        themselves. It must be closed."""
        from paceline.integrations.assisted import DraftCandidates

        ends = generation_config._eos_token_tensor
        temperature = 0.0
        if generation_config.do_sample:
            temperature = min(max(generation_config.temperature or 1.0, 1e-6), 1e6)
        return DraftCandidates(
            self._server(model),
            max_length=generation_config.max_length,
            max_draft_tokens=self.max_draft_tokens,
            end_tokens=() if ends is None else ends.flatten().tolist(),
            vocabulary_size=getattr(model.config.get_text_config(decoder=True), "vocab_size", None),
            stopping_criteria=stopping_criteria,
            sampling=Sampling(temperature=temperature),
            lock=self._lock,
        )

    def _server(self, model: Any) -> DraftServer:
        with self._lock:
            server = self._servers.get(model)
            if server is None:
                costs = self._costs.setdefault(model, LearnedCosts())
                server = DraftServer(self.drafts, max_draft_tokens=MOST, costs=costs)
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
