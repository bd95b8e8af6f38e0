"""`paceline generate`: decode one prompt and stream its text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from paceline.cli.options import (
    DRAFT_HELP,
    DraftOptions,
    Output,
    RuleOptions,
    SamplingOptions,
    TargetOptions,
    draft_option,
    say,
)
from paceline.cli.settings import Verb, flag, group, max_draft_tokens, option, whole
from paceline.decode.generate import Generation, Prompt, generate
from paceline.decode.round import Policy, fixed
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import PromptError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.stats import PolicyStats
from paceline.types import StopConditions

EXAMPLES = """\
  paceline generate smollm2-135m -d lookup -p "Write a haiku about rivers."
  paceline generate model.gguf -d draft.gguf -n 5 --temperature 0.8 --seed 1 < question.txt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Decode one prompt. Text goes to stdout, statistics to stderr."""

    target: TargetOptions = group(TargetOptions)
    prompt: str = option("the prompt; - reads it from stdin", "TEXT", short="-p", default="-")
    raw: bool = flag("continue the prompt as it stands, without the chat template")
    system: str | None = option("a system message for the chat template", "TEXT")
    draft: tuple[str, ...] = draft_option(
        f"{DRAFT_HELP}; the policy chooses among several (default: none)"
    )
    max_draft_tokens: int | None = option(
        "always draft, at most N tokens a round; auto (default): only when it is faster",
        "N",
        short="-n",
        type=max_draft_tokens,
    )
    rules: RuleOptions = group(RuleOptions)
    max_tokens: int = whole("most tokens of the answer", 256)
    stop: tuple[str, ...] = option("end before this text", "TEXT", repeat=True)
    stop_token: tuple[int, ...] = option("end with this token", "TOKEN", repeat=True, type=int)
    ignore_end: bool = flag("go on past the model's end tokens")
    logprobs: bool = flag("with --json: the target's log-probability of each token")
    output: Output = group(Output)
    loading: DraftOptions = group(DraftOptions)
    sampling: SamplingOptions = group(SamplingOptions)


def run(settings: Settings) -> int:
    """Decode the prompt, print text and statistics, and return the exit code."""
    _check(settings)
    text = _prompt_text(settings.prompt)
    settings.rules.find_verifier({})  # refused before anything is loaded
    with ExitStack() as stack:
        engine = stack.enter_context(settings.target.load())
        place = settings.target.place
        drafts = settings.loading.load_all(settings.draft, engine, place, stack)
        verifier = settings.rules.find_verifier(drafts)
        drafts = settings.rules.fit_trees(engine, drafts, verifier)
        policy = _policy(settings, engine, drafts)
        generation = generate(
            engine,
            _prompt(settings, text),
            draft=drafts,
            policy=policy,
            verifier=verifier,
            sampling=settings.sampling.sampling(engine),
            stop=StopConditions(
                max_tokens=settings.max_tokens,
                strings=settings.stop,
                tokens=settings.stop_token,
                ignore_end=settings.ignore_end,
            ),
            logprobs=settings.logprobs,
            on_text=None if settings.output.json else _write,
        )
        policy_stats = _policy_stats(policy)
        document = _document(generation, engine, drafts, policy_stats, settings)
        document["verifier"] = settings.rules.verifier or verifier.name
        settings.output.show(lambda: document, lambda: "")  # its text has been written
        if not settings.output.json:
            more = "" if policy_stats is None else f" · {policy_stats.sentence()}"
            say(f"{generation.summary}{more}")
    return 0


def _policy(settings: Settings, engine: Engine, drafts: dict[str, Draft]) -> Policy:
    if not drafts:
        return fixed(None, 0)
    if settings.max_draft_tokens is None:
        return settings.rules.policy(engine, drafts)
    return fixed(next(iter(drafts)), settings.max_draft_tokens)


def _policy_stats(policy: Policy) -> PolicyStats | None:
    """What the measured policy did; a fixed one has nothing to tell."""
    if not isinstance(policy, MeasuredPolicy):
        return None
    policy.learn_from_rounds()
    return policy.policy_stats


def _check(settings: Settings) -> None:
    """Refuse options that would have no effect."""
    limit, costs, drafts = settings.max_draft_tokens, settings.rules.costs, settings.draft
    if settings.logprobs and not settings.output.json:
        raise SettingError("--logprobs has no place in plain text.", "Add --json.")
    if drafts in ((), ("none",)) and (limit or costs):
        given = f"-n is {limit}" if limit else f"--costs is {costs}"
        raise SettingError(f"{given} and there is no draft.", "Name one with -d.")
    if limit is not None and costs is not None:
        raise SettingError(
            f"-n is {limit}, so --costs {costs} would decide nothing.", "Drop one of them."
        )
    if limit is not None and len(drafts) > 1:
        raise SettingError(
            f"-n is {limit} and {len(drafts)} drafts are named.",
            "Name one, or leave the limit to the policy (-n auto).",
        )


def _prompt_text(given: str) -> str:
    try:
        text = sys.stdin.read() if given == "-" else given
    except UnicodeDecodeError as error:
        raise PromptError(f"The prompt is not UTF-8: {error}.", "Give it as UTF-8.") from None
    if not text.strip():
        raise PromptError("The prompt is empty.", "Give one with -p or on stdin.")
    return text


def _prompt(settings: Settings, text: str) -> Prompt:
    if settings.raw:
        if settings.system is not None:
            raise PromptError(
                "--system needs the chat template, and --raw leaves it out.", "Drop one of them."
            )
        return text
    system = [] if settings.system is None else [{"role": "system", "content": settings.system}]
    return [*system, {"role": "user", "content": text}]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _document(
    generation: Generation,
    engine: Engine,
    drafts: dict[str, Draft],
    policy_stats: PolicyStats | None,
    settings: Settings,
) -> dict[str, Any]:
    limit = settings.max_draft_tokens
    document: dict[str, Any] = {
        "text": generation.text,
        "tokens": list(generation.tokens),
        "finish_reason": generation.finish_reason and generation.finish_reason.value,
        "prompt_tokens": generation.prompt_tokens,
        "stats": generation.stats.as_json(),
        "target": engine.metadata(),
        "drafts": {name: draft.metadata() for name, draft in drafts.items()},
        "max_draft_tokens": "auto" if limit is None else limit,
        "policy": policy_stats and policy_stats.as_json(),
        "exact": generation.exact,
        "gives_up": generation.gives_up or None,
        "divergence": generation.divergence and generation.divergence.as_json(),
    }
    if settings.logprobs:
        document["log_probs"] = list(generation.log_probs)
    return document


VERB = Verb(Settings, run, EXAMPLES)
