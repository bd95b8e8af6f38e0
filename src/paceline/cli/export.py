"""`paceline export`: a plan as the settings of an engine, or as a deployment."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from paceline.cli import export_manifests
from paceline.cli.options import out_path
from paceline.cli.parser import Parser, at_least
from paceline.errors import DataError, SettingError
from paceline.export.make import make_setup
from paceline.export.manifest import one_line
from paceline.export.options import Options
from paceline.export.setup import Setup
from paceline.export.text import FORMATS, PARALLEL, unwritten, written
from paceline.export.versions import KNOWN, TITLES
from paceline.plan.document import read_plan

EXAMPLES = """\
  paceline export vllm plan.json
  paceline export llama-server plan.json --version b11434 -o serve.sh
  paceline export kubernetes plan.json --engine vllm --target owner/name"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "export",
        examples=EXAMPLES,
        help="write a plan as the settings of an engine, or as a deployment",
        description=(
            "Turn a plan (`paceline plan … -o plan.json`) into what an engine is started with. A "
            "key, a\nflag or a combination that this version of the engine would refuse is an "
            "error here, and a\nrule that changes what is emitted is never turned on."
        ),
    )
    places = parser.add_subparsers(
        dest="place", required=True, metavar="ENGINE", parser_class=Parser
    )
    for engine in KNOWN:
        _add_engine(places, engine)
    kubernetes = _add(places, "kubernetes", "a Deployment with its Service")
    export_manifests.add_kubernetes(kubernetes)
    dynamo = _add(places, "dynamo", "a DynamoGraphDeployment")
    export_manifests.add_dynamo(dynamo)
    for parser in (kubernetes, dynamo):
        _add_ours(parser)
        _add_max_running(parser)


def _add_engine(places: argparse._SubParsersAction[Parser], engine: str) -> None:
    parser = _add(places, engine, f"settings of {TITLES[engine]} {', '.join(KNOWN[engine])}")
    if engine == "vllm":
        _add_ours(parser)
    if engine == "sglang":
        _add_max_running(parser)
    default = FORMATS[engine][0]
    parser.add_argument(
        "--format",
        choices=FORMATS[engine],
        default=default,
        help=f"what is written ({default})",
    )
    parser.set_defaults(engine=engine)


def _add(places: argparse._SubParsersAction[Parser], name: str, summary: str) -> Parser:
    """A parser with the options that all places have."""
    parser = places.add_parser(name, help=summary, description=f"A plan as {summary}.")
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan's file")
    parser.add_argument("--version", help="of the engine (default: the newest known)")
    parser.add_argument(
        "--target", metavar="NAME", help="the target as the engine finds it (default: the plan's)"
    )
    parser.add_argument(
        "--draft-model", metavar="NAME", help="the draft's model likewise (default: the plan's)"
    )
    parser.add_argument(
        "--max-draft-tokens",
        type=at_least(1),
        metavar="N",
        help="drafted tokens in a round (default: the plan's)",
    )
    parser.add_argument(
        "--nearest",
        action="store_true",
        help="where the engine can't express the draft, export what comes nearest",
    )
    parser.add_argument(
        "--tensor-parallel", type=at_least(1), metavar="N", help="of the target (1)"
    )
    parser.add_argument(
        "--draft-tensor-parallel",
        type=at_least(1),
        metavar="N",
        help="of the draft (default: the engine's)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="write it there")
    parser.set_defaults(run=run, ours=False, max_running=None)
    return parser


def _add_ours(parser: Parser) -> None:
    parser.add_argument(
        "--ours",
        action="store_true",
        help="vLLM: Paceline's own drafts and policy in place of vLLM's n-grams",
    )


def _add_max_running(parser: Parser) -> None:
    parser.add_argument(
        "--max-running",
        type=at_least(1),
        metavar="N",
        help="SGLang: sequences decoded together, which drafts would set to 48",
    )


def run(args: argparse.Namespace) -> int:
    plan = read_plan(args.plan)
    out = _out_path(args)
    _check_parallel(args)
    setup = make_setup(args.engine, plan, _options(args))
    text = _text(args, setup)
    if out is None:
        sys.stdout.write(text)
    else:
        _write(out, text)
        print(f"The settings are in {out}.", file=sys.stderr)
    return 0


def _out_path(args: argparse.Namespace) -> Path | None:
    """Where it goes: over no file of Paceline's. Raises DataError."""
    if args.out is None:
        return None
    path = out_path(args.out, "-o")
    if path.exists() and path.samefile(args.plan):
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


def _check_parallel(args: argparse.Namespace) -> None:
    """Raises SettingError where the engine has no such option. Manifests ask for GPUs by it."""
    given = args.tensor_parallel
    if given is not None and args.engine not in PARALLEL and "manifest" not in args:
        raise SettingError(
            f"--tensor-parallel is {given}, and {TITLES[args.engine]} lays its model over all GPUs "
            "that it sees.",
            "Leave it out, and show it that many.",
        )


def _options(args: argparse.Namespace) -> Options:
    version, tensor_parallel = args.version, args.tensor_parallel
    if "manifest" in args:
        version = version or export_manifests.engine_version(args)
        tensor_parallel = export_manifests.tensor_parallel(args)
    return Options(
        version=version,
        target=args.target,
        draft_model=args.draft_model,
        max_draft_tokens=args.max_draft_tokens,
        ours=args.ours,
        nearest=args.nearest,
        tensor_parallel=tensor_parallel,
        draft_tensor_parallel=args.draft_tensor_parallel,
        max_running=args.max_running,
    )


def _text(args: argparse.Namespace, setup: Setup) -> str:
    if "manifest" in args:
        return export_manifests.render(args, setup)
    text = written(setup, args.format, args.out or "THIS_FILE")
    for note in unwritten(setup, args.format):
        print(one_line(note), file=sys.stderr)
    return text


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}.", "Choose another.") from None
