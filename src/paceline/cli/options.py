"""Options that several verbs share, and what they stand for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline import plugins
from paceline.bench.profile.measured_policy import measured_policy
from paceline.cli.parser import at_least
from paceline.decode import step
from paceline.decode.generate import fitting_verifier
from paceline.drafts.base import Draft
from paceline.drafts.create import create_draft, engine_name, is_model, models_of
from paceline.engines.base import Engine
from paceline.engines.load import load
from paceline.errors import DataError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.costs import read_costs
from paceline.types import Sampling
from paceline.verify.base import Verifier

DRAFT_HELP = (
    "a draft (paceline list), such as lookup or lookup:min_match=1,reach=4, or a model (GGUF file, "
    "directory, hub or demo name)"
)


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="GGUF file, model directory, hub name (owner/name), or demo name (paceline models)",
    )
    group = parser.add_argument_group("loading")
    group.add_argument("--engine", metavar="NAME", help="force an engine (paceline list)")
    group.add_argument(
        "--context",
        type=at_least(2),
        metavar="TOKENS",
        help="context size (default: the model's, at most 4096)",
    )
    add_place(group)


PLACE = ("threads", "dtype", "device", "precision", "cache_type")
"""Names of `add_place`'s options, as in the arguments that were read."""


def add_place(group: argparse._ArgumentGroup) -> None:
    """Where and in what numbers a model runs; which of them an engine takes, it says itself."""
    group.add_argument("--threads", type=at_least(1), metavar="N", help="CPU threads")
    group.add_argument(
        "--dtype",
        metavar="TYPE",
        help="transformers: float32, bfloat16, float16; openvino, for a model directory that it "
        "exports: these, int8 (default) or int4",
    )
    group.add_argument(
        "--device", metavar="DEVICE", help="transformers: cpu, cuda, cuda:1 …; openvino: CPU"
    )
    group.add_argument(
        "--precision",
        metavar="NAME",
        help="openvino: auto, or strict (float32, activations not rounded to eight bits)",
    )
    group.add_argument(
        "--cache-type",
        metavar="TYPE",
        help="openvino: keys and values in float32, bfloat16 or float16 (default: as it computes)",
    )


def load_target(args: argparse.Namespace, *, max_sequences: int = 1) -> Engine:
    return load(
        args.target,
        engine=args.engine,
        max_sequences=max_sequences,
        context_size=args.context,
        **place_of(args),
    )


def place_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was given of `add_place`'s options."""
    given = {name: getattr(args, name) for name in PLACE}
    return {key: value for key, value in given.items() if value is not None}


def add_draft_loading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("loading a model draft")
    group.add_argument(
        "--draft-engine", metavar="NAME", help="force its engine (default: told from its file)"
    )
    group.add_argument(
        "--draft-context",
        type=at_least(2),
        metavar="TOKENS",
        help="its context size; beyond it the target goes on alone (default: its own, at most "
        "4096)",
    )


def add_verifier(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verifier",
        metavar="NAME",
        help="accept rule (paceline list; default: chain, or tree if a draft offers trees), with "
        "options if it has any: tolerance:budget=0.1",
    )
    parser.add_argument(
        "--allow-chains",
        action="store_true",
        help="where engine or verifier can't take a draft's trees, take the first branch of each",
    )
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="allow a verifier that does not keep the target's distribution",
    )


def add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="decide by these recorded costs and don't correct them: the same choices in every run "
        "(paceline profile -o FILE)",
    )


def labels(specs: Sequence[str]) -> dict[str, str]:
    """A short name for each draft: a path's last part, unless two have the same."""
    for spec in specs:
        if list(specs).count(spec) > 1:
            raise SettingError(f"The draft {spec!r} is named twice.", "Name it once.")
    short = {spec: Path(spec).name if is_model(spec) else spec for spec in specs}
    if len(set(short.values())) < len(short):
        return {spec: spec for spec in specs}
    return short


def load_drafts(
    args: argparse.Namespace,
    specs: Sequence[str] | Mapping[str, str],
    target: Engine,
    stack: ExitStack,
) -> dict[str, Draft]:
    """Drafts by short name; the stack releases them. `none` is no draft.

    specs    with their short names, or `labels` makes these
    """
    found: dict[str, Draft] = {}
    for spec, label in (specs if isinstance(specs, Mapping) else labels(specs)).items():
        if spec != "none":
            draft = load_draft(args, spec, target)
            stack.callback(draft.release)
            found[label] = draft
    return found


def measured(args: argparse.Namespace, target: Engine, drafts: dict[str, Draft]) -> MeasuredPolicy:
    """The default policy, by recorded costs if any were named."""
    if args.costs is None:
        return measured_policy(target, drafts, on_measure=_say)
    return measured_policy(target, drafts, costs=read_costs(args.costs), named=args.costs)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def out_path(given: str, option: str) -> Path:
    """Where a file goes; whether that is possible is asked before anything is measured. Raises
    DataError naming the option."""
    path = Path(given)
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise DataError(f"{path} can't be written.", f"Choose another file with {option}.")
    return path


def load_draft(args: argparse.Namespace, spec: str, target: Engine) -> Draft:
    """The draft, with what was said of it. Threads are the target's; so are dtype, device and the
    like where the draft's engine is the same."""
    said = {"engine": args.draft_engine, "context_size": args.draft_context}
    given = {key: value for key, value in said.items() if value is not None}

    def load_model(model: str) -> Engine:
        name = args.draft_engine or engine_name(model)
        place = place_of(args)
        if name != target.name:  # types and devices have other names and meanings there
            place = {key: value for key, value in place.items() if key == "threads"}
        return load(model, max_sequences=target.capabilities.max_sequences, **given, **place)

    if not models_of(spec):
        return create_draft(spec, target, **given)  # refuses what is said of a model
    return create_draft(spec, target, loader=load_model)


def find_verifier(
    spec: str | None, drafts: Mapping[str, Draft], *, lossy: bool = False
) -> Verifier:
    """The verifier of a specification, NAME or NAME:KEY=VALUE,…; of None, the one that fits the
    drafts.

    lossy    whether one that gives up the target's distribution is allowed; asked for without
             need, it is refused too
    """
    name, _, written = (spec or fitting_verifier(drafts).name).partition(":")
    kind: type[Verifier] = plugins.find("verifier", name)
    if kind.lossy and not lossy:
        raise SettingError(
            f"The verifier {name} is lossy: it gives up {kind.gives_up}.",
            "Take an exact one (paceline list), or allow it with --lossy.",
        )
    if lossy and not kind.lossy:
        raise SettingError(
            f"--lossy is given, and the verifier {name} is exact.",
            "Leave it out, or name a lossy one with --verifier (paceline list).",
        )
    return kind.create(**_options(name, written))


def check_trees(
    args: argparse.Namespace, engine: Engine, drafts: Mapping[str, Draft], verifier: Verifier
) -> None:
    """Refuse at the door drafts whose trees can't be taken, and a leave that nothing needs."""
    if not args.allow_chains:
        step.check_trees(engine, drafts, verifier)
    elif not any(draft.branches for draft in drafts.values()):
        raise SettingError(
            "--allow-chains is given, and no draft here offers trees.", "Leave it out."
        )


def _options(spec: str, written: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in written.split(",") if written else ():
        key, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not key.isidentifier():
            raise SettingError(
                f"The verifier {spec!r} has the option {part!r} without a value.",
                "Write NAME:KEY=VALUE.",
            )
        if key in ("cls", "self"):
            raise SettingError(f"The verifier {spec!r} has no option {key!r}.", "Leave it out.")
        if key in options:
            raise SettingError(f"{key} of the verifier {spec!r} is given twice.", "Give it once.")
        options[key] = value
    return options


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (defaults: greedy)")
    number: dict[str, Any] = {"type": float, "metavar": "X"}
    whole: dict[str, Any] = {"type": int, "metavar": "N"}
    group.add_argument("--temperature", default=0.0, help="0 is greedy", **number)
    group.add_argument("--top-k", default=0, help="keep the N most probable; 0 keeps all", **whole)
    group.add_argument("--top-p", default=1.0, help="keep this mass of the most probable", **number)
    group.add_argument("--min-p", default=0.0, help="keep this share of the best's", **number)
    group.add_argument("--repetition-penalty", default=1.0, **number)
    group.add_argument("--presence-penalty", default=0.0, **number)
    group.add_argument("--frequency-penalty", default=0.0, **number)
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="TOKEN=X",
        help="add X to a token's logit (repeatable)",
    )
    group.add_argument("--ban-token", action="append", type=int, default=[], metavar="TOKEN")
    group.add_argument(
        "--allow-token",
        action="append",
        type=int,
        default=[],
        metavar="TOKEN",
        help="allow only these (repeatable)",
    )
    group.add_argument(
        "--ban-text",
        action="append",
        default=[],
        metavar="TEXT",
        help="ban the token sequence of a text (repeatable)",
    )
    group.add_argument("--min-tokens", default=0, help="no end before N tokens", **whole)
    group.add_argument("--seed", type=int, metavar="N", help="of the random numbers")


def sampling_of(args: argparse.Namespace, target: Engine | None) -> Sampling:
    """The settings that were given; the target makes tokens of texts. Raises SettingError for a
    text without one."""
    return Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(_bias(text) for text in args.logit_bias),
        banned_tokens=tuple(args.ban_token),
        allowed_tokens=tuple(args.allow_token) or None,
        banned_sequences=tuple(_sequence(target, text) for text in args.ban_text),
        min_tokens=args.min_tokens,
        seed=args.seed,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise SettingError(f"--logit-bias is {text!r}.", "Write TOKEN=X, as in 42=-1.5.") from None


def _sequence(target: Engine | None, text: str) -> tuple[int, ...]:
    """The tokens of a text, without the beginning-of-text token a prompt would get."""
    if target is None:
        raise SettingError(
            f"--ban-text is {text!r}, and only a model in this process can make tokens of it.",
            "Leave it out.",
        )
    tokens = target.tokenizer.encode(text)
    empty = target.tokenizer.encode("")
    return tuple(tokens[len(empty) :] if tokens[: len(empty)] == empty else tokens)
