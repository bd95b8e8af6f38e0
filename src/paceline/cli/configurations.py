"""What `paceline bench` compares: the configurations that its options name, and those of `--also`,
with the engines and drafts that they share."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

from paceline.bench.local.bench import Configuration
from paceline.bench.local.run import BASELINE
from paceline.cli.options import (
    DRAFT_HELP,
    DraftOptions,
    RuleOptions,
    SamplingOptions,
    TargetOptions,
    draft_option,
    labels,
)
from paceline.cli.settings import (
    Parser,
    add_options,
    as_flag,
    group,
    max_draft_tokens,
    option,
    read_options,
    several,
)
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationOptions:
    """What a configuration is, and what an `--also` may change of it."""

    target: TargetOptions = group(TargetOptions)
    draft: tuple[str, ...] = draft_option(DRAFT_HELP, "lookup")
    max_draft_tokens: tuple[int | None, ...] = option(
        "auto: all drafts on offer, asked only when it is faster; a number: each draft always, at "
        "most N tokens a round. Several are compared (default: auto)",
        "N[,N…]",
        short="-n",
        default=(None,),
        type=several(max_draft_tokens),
    )
    rules: RuleOptions = group(RuleOptions)
    loading: DraftOptions = group(DraftOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def check(self) -> None:
        """Refuse what can't be honoured before a model is loaded. Raises SettingError."""
        if self.rules.costs is not None and None not in self.max_draft_tokens:
            raise SettingError(
                f"--costs is {self.rules.costs}, and no limit is auto.",
                "Add -n auto, or drop --costs.",
            )
        if set(self.draft) == {"none"}:
            raise SettingError("There is no draft to bench.", "Name one with -d.")
        self.rules.find_verifier({})


_DRAFTED = ("draft", "max_draft_tokens")
_RULES = tuple(one.name for kind in (RuleOptions, DraftOptions) for one in fields(kind))


def also(shared: ConfigurationOptions, written: str) -> tuple[ConfigurationOptions, dict[str, Any]]:
    """The options of an `--also`, and which of them it names. Raises SettingError."""
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise SettingError(f"--also is {written!r}: {error}.", "Close the quotation.") from None
    parser = Parser(prog="paceline bench --also", usage=argparse.SUPPRESS, add_help=False)
    add_options(parser, ConfigurationOptions, changes=True)
    given = vars(parser.parse_args(words))
    if not given:
        raise SettingError("--also changes nothing.", "Write an option into it, as in '-n 7'.")
    values = _unneeded(shared, given) | given
    return read_options(values, ConfigurationOptions, shared), given


def _unneeded(shared: ConfigurationOptions, given: dict[str, Any]) -> dict[str, Any]:
    """What was said for all and says nothing here, so that it isn't inherited: costs without a
    limit that is auto, leave to be lossy for another verifier, leave to cut other drafts' trees."""
    off: dict[str, Any] = {}
    if None not in given.get("max_draft_tokens", shared.max_draft_tokens):
        off["costs"] = None
    if "verifier" in given:
        off["lossy"] = False
    if "draft" in given:
        off["allow_chains"] = False
    return off


class Configurations:
    """Makes them, loading each engine and each draft once; the stack releases them.

    warm    drafts may remember earlier prompts
    """

    def __init__(self, stack: ExitStack, *, warm: bool = False) -> None:
        self._stack = stack
        self._warm = warm
        self._engines: dict[TargetOptions, Engine] = {}
        self._drafts: dict[tuple[Any, ...], dict[str, Draft]] = {}
        self._labels: dict[str, str] = {}

    def all(self, shared: ConfigurationOptions, others: Sequence[str]) -> list[Configuration]:
        """Those of the options, then those of each `--also`. All are read before anything is
        loaded."""
        every = [(shared, {}), *(also(shared, written) for written in others)]
        for one, _ in every:
            one.check()
        specs = [spec for one, _ in every for spec in one.draft]
        self._labels = labels(list(dict.fromkeys(specs)))
        return [found for one, given in every for found in self._of(one, given)]

    def _of(self, one: ConfigurationOptions, given: dict[str, Any]) -> Iterator[Configuration]:
        """With `auto`, one configuration with all drafts on offer; with a number, one a draft."""
        if one.target not in self._engines:
            self._engines[one.target] = self._stack.enter_context(one.target.load())
        engine = self._engines[one.target]
        drafts = self._load(one, engine)
        drafts = one.rules.fit_trees(engine, drafts, one.rules.find_verifier(drafts))
        words = _words(given, but=_DRAFTED)
        shared = Configuration(
            BASELINE,
            chains_for_trees=one.rules.allow_chains,
            engine=engine,
            sampling=one.sampling.sampling(engine),
            baseline=BASELINE + _words(given, but=(*_DRAFTED, *_RULES)),
            warm=self._warm,
        )
        for limit in one.max_draft_tokens:
            if limit is None:
                policy = one.rules.policy(engine, drafts)
                yield replace(
                    shared,
                    name=f"{' + '.join(drafts)} -n auto{words}",
                    drafts=drafts,
                    max_draft_tokens=None,
                    verifier=one.rules.find_verifier(drafts),
                    policy=policy.fresh,
                    costs=policy.costs.profiled,
                    recorded_costs=one.rules.costs is not None,
                )
                continue
            for label, draft in drafts.items():
                yield replace(
                    shared,
                    name=f"{label} -n {limit}{words}",
                    drafts={label: draft},
                    max_draft_tokens=limit,
                    verifier=one.rules.find_verifier({label: draft}),
                )

    def _load(self, one: ConfigurationOptions, engine: Engine) -> dict[str, Draft]:
        labels(one.draft)  # refuses one that is named twice
        key = (id(engine), one.draft, one.loading)
        if key not in self._drafts:
            names = {spec: self._labels[spec] for spec in one.draft}
            self._drafts[key] = one.loading.load_all(names, engine, one.target.place, self._stack)
        return self._drafts[key]


def _words(given: dict[str, Any], *, but: Sequence[str]) -> str:
    """Options as they are written, for a name."""
    return "".join(
        f" {as_flag(name)}{_value(value)}" for name, value in given.items() if name not in but
    )


def _value(value: Any) -> str:
    if value is True:
        return ""
    return f" {','.join(map(str, value)) if isinstance(value, list) else value}"
