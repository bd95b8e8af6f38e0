"""`paceline export`: a plan as the settings of an engine, or as a deployment."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from paceline.cli.options import out_path
from paceline.cli.parser import Parser, at_least
from paceline.cli.settings import add_options, argument, flag, option, read_options
from paceline.errors import DataError
from paceline.export.make import make_setup
from paceline.export.setup import ENGINES, EngineSetup, ExportOptions
from paceline.export.text import one_line, unwritten, written
from paceline.plan.document import read_plan

EXAMPLES = """\
  paceline export vllm plan.json
  paceline export llama-server plan.json --version b11434 -o serve.sh
  paceline export kubernetes plan.json --engine vllm --target owner/name"""


def max_running() -> Any:
    """The option of SGLang's, which deployments have too."""
    return option(
        "SGLang: sequences decoded together, which drafts would set to 48",
        type=at_least(1),
        metavar="N",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What every place that a plan is exported to takes."""

    plan: str = argument("a plan's file", metavar="PLAN")
    version: str | None = option("of the engine (default: the newest known)")
    target: str | None = option(
        "the target as the engine finds it (default: the plan's)", metavar="NAME"
    )
    draft_model: str | None = option(
        "the draft's model likewise (default: the plan's)", metavar="NAME"
    )
    max_draft_tokens: int | None = option(
        "drafted tokens in a round (default: the plan's)", type=at_least(1), metavar="N"
    )
    nearest: bool = flag("where the engine can't express the draft, export what comes nearest")
    draft_tensor_parallel: int | None = option(
        "of the draft (default: the engine's)", type=at_least(1), metavar="N"
    )
    out: str | None = option("write it there", "-o", metavar="FILE")

    def options(self, **changes: object) -> ExportOptions:
        """What was given, for `make_setup`."""
        names = ExportOptions.__dataclass_fields__
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return ExportOptions(**{**given, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings(ExportSettings):
    """Also for engines that split a target over as many GPUs as they are told."""

    tensor_parallel: int | None = option("of the target (1)", type=at_least(1), metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(SplitSettings):
    """Also for vLLM, and for deployments, which may be of it."""

    ours: bool = flag("vLLM: Paceline's own drafts and policy in place of vLLM's n-grams")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(SplitSettings):
    """Also for SGLang."""

    max_running: int | None = max_running()


KINDS: dict[str, type[ExportSettings]] = {
    "vllm": VllmSettings,
    "sglang": SglangSettings,
    "tensorrt-llm": SplitSettings,
    "llama-server": ExportSettings,
}

S = TypeVar("S", bound=ExportSettings)


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    """Add the verb `export`."""
    from paceline.cli.export_manifests import add_dynamo, add_kubernetes

    parser = verbs.add_parser(
        "export",
        examples=EXAMPLES,
        description=(
            "Turn a plan (`paceline plan … -o plan.json`) into what an engine is started with. A "
            "key, a\nflag or a combination that this version of the engine would refuse is an "
            "error here, and a\nrule that changes what is emitted is never turned on."
        ),
    )
    places = parser.add_subparsers(
        dest="place", required=True, metavar="ENGINE", parser_class=Parser
    )
    for engine, profile in ENGINES.items():
        summary = f"settings of {profile.title} {', '.join(profile.versions)}"
        one = add_place(places, engine, summary, KINDS[engine], partial(_settings, engine))
        one.add_argument(
            "--format",
            choices=profile.formats,
            default=profile.formats[0],
            help="what is written (%(default)s)",
        )
    add_kubernetes(places)
    add_dynamo(places)


def add_place(
    places: argparse._SubParsersAction[Parser],
    name: str,
    summary: str,
    kind: type[S],
    text: Callable[[S, str | None], str],
) -> Parser:
    """Add a place to export to: its settings, and what makes the text of them and a format."""
    parser = places.add_parser(name, help=summary, description=f"A plan as {summary}.")
    add_options(parser, kind)

    def run(args: argparse.Namespace) -> int:
        settings = read_options(vars(args), kind)
        out = _out_path(settings)
        made = text(settings, vars(args).get("format"))
        if out is None:
            sys.stdout.write(made)
        else:
            _write(out, made)
            print(f"The settings are in {out}.", file=sys.stderr)
        return 0

    parser.set_defaults(run=run)
    return parser


def setup_of(settings: ExportSettings, engine: str, **changes: object) -> EngineSetup:
    """The plan that is named, for an engine; with changes to what was given."""
    return make_setup(engine, read_plan(Path(settings.plan)), settings.options(**changes))


def _settings(engine: str, settings: ExportSettings, form: str | None) -> str:
    setup = setup_of(settings, engine)
    text = written(setup, form, settings.out or "THIS_FILE")
    for note in unwritten(setup, form):
        print(one_line(note), file=sys.stderr)
    return text


def _out_path(settings: ExportSettings) -> Path | None:
    """Where it goes: over no file of Paceline's. Raises DataError."""
    if settings.out is None:
        return None
    path = out_path(settings.out, "-o")
    if path.exists() and Path(settings.plan).exists() and path.samefile(settings.plan):
        raise DataError(f"{path} is the plan itself.", "Choose another file with -o.")
    kind = _kind(path)
    if kind is not None:
        raise DataError(f"{path} is there already, a {kind}.", "Choose another file with -o.")
    return path


_KIND = re.compile(r'"kind"\s*:\s*"(paceline [^"]+)"')


def _kind(path: Path) -> str | None:
    """What a file of Paceline's says it is; None for others."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4096)
    found = _KIND.search(start) if start.lstrip().startswith("{") else None
    return one_line(found[1]) if found else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}.", "Choose another.") from None
