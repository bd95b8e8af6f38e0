"""A model with another tokenizer, drafting among the tokens that both vocabularies have.

Timor et al. 2025 (Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies), token-level intersection: the draft's distribution is restricted to
the common tokens and renormalised, and a token is drawn from exactly that; the rest is speculative
sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

from array_api_compat import array_namespace, device

from paceline.drafts.base import Context, Contexts, Drafted, Limits, draw_on
from paceline.drafts.cross_tokenizer.reading import TranslatedDraft
from paceline.drafts.vocabulary import overlap
from paceline.engines.base import Engine
from paceline.errors import NumericError
from paceline.sampling.distribution import Distribution, checked_maximum
from paceline.sampling.processors import distribution_of, is_plain, process_logits
from paceline.types import Array, Proposal


class SharedDraft(TranslatedDraft):
    """Proposals of tokens that both vocabularies have, each with the distribution it was drawn
    from.

    The draft's logits are restricted before anything else and laid out by the target's ids, so
    that penalties, masks, temperature and filters are the target's own, on the target's history.
    Restricting first is what keeps a filter from leaving nothing; at a bare temperature it is the
    same as restricting the distribution.

    Raises PairError if next to nothing is common, or if the draft's vocabulary map is not for this
    target.
    """

    name = "shared"
    summary = "a model with another tokenizer, among the tokens both have; needs its file or name"

    can_continue = True

    def __init__(self, engine: Engine, target: Engine) -> None:
        self._common = overlap(target, engine)
        super().__init__(engine, target, self._common.fit)
        self._size = target.vocabulary_size
        ours, theirs = self._common.target.tolist(), self._common.draft.tolist()
        self._draft_id = dict(zip(ours, theirs, strict=True))
        self._indices: tuple[Array, Array] | None = None

    def propose(self, contexts: Contexts, limits: Limits) -> list[Proposal]:
        """Tokens sampled from the model's distributions over the common tokens."""
        return draw_on(self, contexts, limits)

    def next_distributions(self, contexts: Contexts, drafted: Drafted) -> list[Distribution | None]:
        """The model's distributions over the target's ids, after temperature."""
        rows = self._rows(contexts, [self._translated(tokens) for tokens in drafted])
        return [
            None if row is None else self._distribution(context, row[0], tokens)
            for context, row, tokens in zip(contexts, rows, drafted, strict=True)
        ]

    def _translated(self, drafted: AbstractSequence[int]) -> list[int]:
        found: list[int] = []
        for token in drafted:
            own = self._draft_id.get(token)
            found += self.reader.read([token]) if own is None else [own]
        return found

    def _distribution(
        self, context: Context, row: Array, drafted: AbstractSequence[int]
    ) -> Distribution | None:
        """The distribution, over the target's ids, of a raw row of the draft, shape (its
        vocabulary_size,). None where the masks leave the draft no token; the target may never come
        there."""
        ours, theirs = self._indices_like(row)
        logits = row[theirs]
        where = f"of the draft after {len(context.history) + len(drafted)} tokens"
        try:
            checked_maximum(logits, where)
        except NumericError as error:
            self._lose(self._states[context], error.fact)
            return None
        if not is_plain(context.sampling):
            xp = array_namespace(row)
            laid_out = xp.full((self._size,), float("-inf"), dtype=row.dtype, device=device(row))
            laid_out[ours] = logits
            logits = process_logits(
                laid_out, context.sampling, context.history, drafted, context.stop_tokens
            )[ours]
            if float(xp.max(logits)) == float("-inf"):
                return None
        distribution = distribution_of(logits, context.sampling, where)
        if distribution.single is not None:
            return Distribution.one_hot(int(self._common.target[distribution.single]))
        return Distribution(
            distribution.probs, ours if distribution.tokens is None else ours[distribution.tokens]
        )

    def _indices_like(self, row: Array) -> tuple[Array, Array]:
        """The common tokens' ids, the target's and the draft's, where the draft's rows are."""
        if self._indices is None:
            xp, place = array_namespace(row), device(row)
            self._indices = (
                xp.asarray(self._common.target, device=place),
                xp.asarray(self._common.draft, device=place),
            )
        return self._indices
