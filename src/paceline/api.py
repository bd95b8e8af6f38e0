"""The library's front: decode a prompt with drafts, which are asked only when that is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.bench.profile.measured_policy import measured_policy
from paceline.decode import generate as decoding
from paceline.decode.generate import Generation, Prompt, by_name, fitting_verifier
from paceline.decode.round import Policy, fixed
from paceline.decode.step import with_chains
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.types import Sampling, StopConditions
from paceline.verify.base import Verifier


def generate(
    engine: Engine,
    prompt: Prompt,
    *,
    draft: Draft | Mapping[str, Draft] | None = None,
    max_draft_tokens: int | None = None,
    policy: Policy | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    stop: StopConditions | None = None,
    logprobs: bool = False,
    chains_for_trees: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Decode one prompt: exactly, unless the verifier is lossy.

    draft       a draft, or several by name; None is ordinary decoding
    max_draft_tokens    always ask the draft, for at most so many tokens; None asks it only when it
                pays, by what forwards cost here (measured once, some seconds, and kept in the
                cache)
    policy      decides instead of `max_draft_tokens`; `measured_policy` and `fixed` make one. Give
                one for many requests: one made here begins with nothing counted and forgets it
                afterwards
    verifier    unless given `ChainVerifier`, or `TreeVerifier` if a draft may offer trees
    chains_for_trees    where engine or verifier can't take a draft's trees, take the first branch
                of each instead of refusing
    on_text     called with each new piece of text as it is certain

    Raises PromptError, SettingError, NumericError or ModelError.
    """
    drafts = by_name(draft)
    if chains_for_trees:
        drafts = with_chains(engine, drafts, verifier or fitting_verifier(drafts))
    if max_draft_tokens and (policy is not None or not drafts):
        why = "a policy decides" if policy is not None else "there is no draft"
        raise SettingError(
            f"max_draft_tokens is {max_draft_tokens} and {why}.", "Leave one of them out."
        )
    return decoding.generate(
        engine,
        prompt,
        draft=drafts,
        policy=policy or _policy(engine, drafts, max_draft_tokens),
        verifier=verifier,
        sampling=sampling,
        stop=stop,
        logprobs=logprobs,
        on_text=on_text,
    )


def _policy(engine: Engine, drafts: dict[str, Draft], max_draft_tokens: int | None) -> Policy:
    if all(draft.name == "none" for draft in drafts.values()):
        return fixed(None, 0)
    if max_draft_tokens is None:
        return measured_policy(engine, drafts)
    if len(drafts) > 1:
        raise SettingError(
            f"max_draft_tokens is {max_draft_tokens} and {len(drafts)} drafts are on offer.",
            "Name one draft, or leave the limit to the policy.",
        )
    return fixed(next(iter(drafts)), max_draft_tokens)
