"""`paceline generate`: decode one prompt and stream its text."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from typing import Any

from paceline.cli import options
from paceline.cli.parser import Parser, at_least, max_draft_tokens
from paceline.decode.generate import Generation, Prompt, generate
from paceline.decode.policy import Policy, fixed
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import PromptError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.stats import PolicyStats
from paceline.types import StopConditions

EXAMPLES = """\
  paceline generate smollm2-135m -d lookup -p "Write a haiku about rivers."
  paceline generate model.gguf -d draft.gguf -n 5 --temperature 0.8 --seed 1 < question.txt"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "generate",
        examples=EXAMPLES,
        help="decode a prompt and stream its text",
        description="Decode one prompt. Text goes to stdout, figures to stderr.",
    )
    options.add_target(parser)
    parser.add_argument(
        "-p",
        "--prompt",
        metavar="TEXT",
        default="-",
        help="the prompt; - reads it from stdin (default)",
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it stands, without the chat template",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message for the chat template")
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        metavar="DRAFT",
        help=f"{options.DRAFT_HELP} (repeatable: the policy chooses among them; default: none)",
    )
    parser.add_argument(
        "-n",
        "--max-draft-tokens",
        type=max_draft_tokens,
        metavar="N",
        help="always draft, at most N tokens a round; auto (default): only when it pays",
    )
    options.add_policy(parser)
    options.add_verifier(parser)
    parser.add_argument(
        "--max-tokens",
        type=at_least(1),
        default=256,
        metavar="N",
        help="most tokens of the answer (default: 256)",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text (repeatable)",
    )
    parser.add_argument(
        "--stop-token",
        action="append",
        type=int,
        default=[],
        metavar="TOKEN",
        help="end with this token (repeatable)",
    )
    parser.add_argument(
        "--ignore-end", action="store_true", help="go on past the model's end tokens"
    )
    parser.add_argument(
        "--logprobs",
        action="store_true",
        help="with --json: the target's log-probability of each token",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    options.add_draft_loading(parser)
    options.add_sampling(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    args.draft = args.draft or ["none"]
    _check(args)
    text = _prompt_text(args.prompt)
    options.find_verifier(args.verifier, {}, lossy=args.lossy)  # refused before anything is loaded
    with ExitStack() as stack:
        engine = stack.enter_context(options.load_target(args))
        sampling = options.sampling_of(args, engine)
        drafts = options.load_drafts(args, args.draft, engine, stack)
        verifier = options.find_verifier(args.verifier, drafts, lossy=args.lossy)
        options.check_trees(args, engine, drafts, verifier)
        policy = _policy(args, engine, drafts)
        generation = generate(
            engine,
            _prompt(args, text),
            draft=drafts,
            policy=policy,
            verifier=verifier,
            chains_for_trees=args.allow_chains,
            sampling=sampling,
            stop=StopConditions(
                max_tokens=args.max_tokens,
                strings=tuple(args.stop),
                tokens=tuple(args.stop_token),
                ignore_end=args.ignore_end,
            ),
            logprobs=args.logprobs,
            on_text=None if args.json else _write,
        )
        policy_stats = _policy_stats(policy)
        if args.json:
            document = _document(generation, engine, drafts, policy_stats, args)
            document["verifier"] = args.verifier or verifier.name
            print(json.dumps(document, ensure_ascii=False))
        else:
            _write("\n")
            print(_figures_line(generation, policy_stats), file=sys.stderr)
    return 0


def _policy(args: argparse.Namespace, engine: Engine, drafts: dict[str, Draft]) -> Policy:
    if not drafts:
        return fixed(None, 0)
    if args.max_draft_tokens is None:
        return options.measured(args, engine, drafts)
    return fixed(next(iter(drafts)), args.max_draft_tokens)


def _policy_stats(policy: Policy) -> PolicyStats | None:
    """What the measured policy did; a fixed one has nothing to tell."""
    if not isinstance(policy, MeasuredPolicy):
        return None
    policy.learn_from_rounds()
    return policy.policy_stats


def _figures_line(generation: Generation, policy_stats: PolicyStats | None) -> str:
    if policy_stats is None:
        return generation.summary
    return f"{generation.summary} · {policy_stats.sentence()}"


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    if args.logprobs and not args.json:
        raise SettingError("--logprobs has no place in plain text.", "Add --json.")
    if args.draft == ["none"] and (args.max_draft_tokens or args.costs):
        given = (
            f"-n is {args.max_draft_tokens}"
            if args.max_draft_tokens
            else f"--costs is {args.costs}"
        )
        raise SettingError(f"{given} and there is no draft.", "Name one with -d.")
    if args.max_draft_tokens is not None and args.costs is not None:
        raise SettingError(
            f"-n is {args.max_draft_tokens}, so --costs {args.costs} would decide nothing.",
            "Drop one of them.",
        )
    if args.max_draft_tokens is not None and len(args.draft) > 1:
        raise SettingError(
            f"-n is {args.max_draft_tokens} and {len(args.draft)} drafts are named.",
            "Name one, or leave the limit to the policy (-n auto).",
        )


def _prompt_text(given: str) -> str:
    try:
        text = sys.stdin.read() if given == "-" else given
    except UnicodeDecodeError as error:
        raise PromptError(f"The prompt is no UTF-8: {error}.", "Give it as UTF-8.") from None
    if not text.strip():
        raise PromptError("The prompt is empty.", "Give one with -p or on stdin.")
    return text


def _prompt(args: argparse.Namespace, text: str) -> Prompt:
    if args.raw:
        if args.system is not None:
            raise PromptError(
                "--system needs the chat template, and --raw leaves it out.", "Drop one of them."
            )
        return text
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [*system, {"role": "user", "content": text}]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _document(
    generation: Generation,
    engine: Engine,
    drafts: dict[str, Draft],
    policy_stats: PolicyStats | None,
    args: argparse.Namespace,
) -> dict[str, Any]:
    document = {
        "text": generation.text,
        "tokens": list(generation.tokens),
        "finish_reason": generation.finish_reason and generation.finish_reason.value,
        "prompt_tokens": generation.prompt_tokens,
        "stats": generation.stats.as_json(),
        "target": engine.metadata(),
        "drafts": {name: draft.metadata() for name, draft in drafts.items()},
        "max_draft_tokens": "auto" if args.max_draft_tokens is None else args.max_draft_tokens,
        "policy": policy_stats and policy_stats.as_json(),
        "exact": generation.exact,
        "gives_up": generation.gives_up or None,
        "divergence": generation.divergence and generation.divergence.as_json(),
    }
    if args.logprobs:
        document["log_probs"] = list(generation.log_probs)
    return document
