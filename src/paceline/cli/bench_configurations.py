"""What `paceline bench` compares: the configurations that its options name, and those of `--also`,
with the engines and drafts that they share."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from paceline.bench.local.bench import Configuration
from paceline.bench.local.run import BASELINE
from paceline.cli import options
from paceline.cli.parser import Parser, limits
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.types import Sampling

_DRAFT = "lookup"  # where none is named
_LOADING = ("target", "engine", "context", *options.PLACE)
_DRAFTED = ("draft", "max_draft_tokens")
_RULES = ("costs", "verifier", "allow_chains", "lossy", "draft_engine", "draft_context")


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Options that `--also` takes too, loading and sampling apart."""
    parser.add_argument(
        "-d",
        "--draft",
        action="append",
        metavar="DRAFT",
        help=f"{options.DRAFT_HELP} (repeatable; default: lookup)",
    )
    parser.add_argument(
        "-n",
        "--max-draft-tokens",
        type=limits,
        default=[None],
        metavar="N[,N…]",
        help="auto: all drafts on offer, asked only when it pays; a number: each draft always, at "
        "most N tokens a round. Several are compared (default: auto)",
    )
    options.add_policy(parser)
    options.add_verifier(parser)


def add_also(parser: Parser) -> None:
    parser.quoting = ("--also",)
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="more configurations, of these options with some changed: drafts, limits, costs, "
        "verifier, loading (with --target MODEL), sampling, as in "
        '"--verifier block --temperature 0.8" (repeatable)',
    )


def also(args: argparse.Namespace, written: str) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options of an `--also`, and which of them it names. Raises SettingError."""
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise SettingError(f"--also is {written!r}: {error}.", "Close the quotation.") from None
    given = vars(_also_parser().parse_args(words))
    if not given:
        raise SettingError("--also changes nothing.", "Write an option into it, as in '-n 7'.")
    return argparse.Namespace(**vars(args) | _unneeded(args, given) | given), given


def _unneeded(args: argparse.Namespace, given: dict[str, Any]) -> dict[str, Any]:
    """What was said for all and says nothing here, so that it isn't inherited: costs without a
    limit that is auto, leave to be lossy for another verifier, leave to cut other drafts' trees."""
    off: dict[str, Any] = {}
    if None not in given.get("max_draft_tokens", args.max_draft_tokens):
        off["costs"] = None
    if "verifier" in given:
        off["lossy"] = False
    if "draft" in given:
        off["allow_chains"] = False
    return off


def _also_parser() -> Parser:
    parser = Parser(prog="paceline bench --also", usage=argparse.SUPPRESS, add_help=False)
    options.add_target(parser)
    options.add_draft_loading(parser)
    options.add_sampling(parser)
    add_configuration(parser)
    parser.as_option("target")
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # what isn't named is as it was
    return parser


class Configurations:
    """Makes them, loading each engine and each draft once; the stack releases them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._engines: dict[tuple[Any, ...], Engine] = {}
        self._drafts: dict[tuple[Any, ...], dict[str, Draft]] = {}
        self._labels: dict[str, str] = {}

    def engine(self, args: argparse.Namespace) -> Engine:
        key = tuple(getattr(args, name) for name in _LOADING)
        if key not in self._engines:
            self._engines[key] = self._stack.enter_context(options.load_target(args))
        return self._engines[key]

    def all(self, args: argparse.Namespace) -> list[Configuration]:
        """Those of the options, then those of each `--also`. All are read before anything is
        loaded."""
        others = [also(args, written) for written in args.also]
        every = [args, *(changed for changed, _ in others)]
        for one in every:
            _check(one)
        specs = [spec for one in every for spec in one.draft or [_DRAFT]]
        self._labels = options.labels(list(dict.fromkeys(specs)))
        found = self._of(args, {})
        for changed, given in others:
            found += self._of(changed, given)
        return found

    def _of(self, args: argparse.Namespace, given: dict[str, Any]) -> list[Configuration]:
        """With `auto`, one configuration with all drafts on offer; with a number, one a draft."""
        engine = self.engine(args)
        drafts = self._load(args, engine)
        verifier = options.find_verifier(args.verifier, drafts, lossy=args.lossy)
        options.check_trees(args, engine, drafts, verifier)
        sampling = options.sampling_of(args, engine)
        words, baseline = _words(given, but=_DRAFTED), _words(given, but=(*_DRAFTED, *_RULES))
        make = _maker(args, engine, sampling, words, f"{BASELINE}{baseline}")
        found = []
        for max_draft_tokens in dict.fromkeys(args.max_draft_tokens):
            if max_draft_tokens is None:
                policy = options.measured(args, engine, drafts)
                found.append(make(f"{' + '.join(drafts)} -n auto", drafts, None, policy))
            else:
                for label, draft in drafts.items():
                    found.append(
                        make(
                            f"{label} -n {max_draft_tokens}", {label: draft}, max_draft_tokens, None
                        )
                    )
        return found

    def _load(self, args: argparse.Namespace, engine: Engine) -> dict[str, Draft]:
        specs = tuple(args.draft or [_DRAFT])
        options.labels(specs)  # refuses one that is named twice
        key = (id(engine), specs, args.draft_engine, args.draft_context)
        if key not in self._drafts:
            names = {spec: self._labels[spec] for spec in specs}
            self._drafts[key] = options.load_drafts(args, names, engine, self._stack)
        return self._drafts[key]


def _maker(
    args: argparse.Namespace, engine: Engine, sampling: Sampling, words: str, baseline: str
) -> Callable[[str, dict[str, Draft], int | None, MeasuredPolicy | None], Configuration]:
    def make(
        name: str,
        drafts: dict[str, Draft],
        max_draft_tokens: int | None,
        policy: MeasuredPolicy | None,
    ) -> Configuration:
        return Configuration(
            f"{name}{words}",
            drafts,
            max_draft_tokens,
            options.find_verifier(args.verifier, drafts, lossy=args.lossy),
            None if policy is None else policy.fresh,
            chains_for_trees=args.allow_chains,
            engine=engine,
            sampling=sampling,
            baseline=baseline,
            warm=args.warm,
            costs=None if policy is None else policy.profiled,
            recorded_costs=policy is not None and args.costs is not None,
        )

    return make


def _check(args: argparse.Namespace) -> None:
    """Refuse what can't be honoured before a model is loaded."""
    if args.costs is not None and None not in args.max_draft_tokens:
        raise SettingError(
            f"--costs is {args.costs}, and no limit is auto.", "Add -n auto, or drop --costs."
        )
    if args.draft is not None and set(args.draft) == {"none"}:
        raise SettingError("There is no draft to bench.", "Name one with -d.")
    options.find_verifier(args.verifier, {}, lossy=args.lossy)


def _words(given: dict[str, Any], *, but: Sequence[str]) -> str:
    """Options as they are written, for a name."""
    return "".join(
        f" --{name.replace('_', '-')}{_value(value)}"
        for name, value in given.items()
        if name not in but
    )


def _value(value: Any) -> str:
    if value is True:
        return ""
    return f" {','.join(map(str, value)) if isinstance(value, list) else value}"
