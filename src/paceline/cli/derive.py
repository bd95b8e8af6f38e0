"""`paceline derive`: make a draft model from its target."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.bench.prompts.formats import find_workload
from paceline.cli.parser import Parser, at_least
from paceline.cli.workloads import notes
from paceline.errors import DataError, SettingError

if TYPE_CHECKING:
    from paceline.train.derive.make import DerivedModel

EXAMPLES = """\
  paceline derive smollm2-135m -o draft --keep 10
  paceline derive models/target -o draft --layers 0-7,27 --vocabulary 16000 --corpus texts.txt
  paceline generate models/target -d draft"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "derive",
        examples=EXAMPLES,
        help="make a draft model from its target: fewer layers, fewer tokens",
        description=(
            "Write a smaller model made of a target's own weights, as a directory that engines of "
            "the\nHugging Face format load. Nothing is trained."
        ),
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="model directory, hub name (owner/name), GGUF file, or demo name (paceline models)",
    )
    parser.add_argument(
        "-o", "--out", metavar="DIR", required=True, help="where it goes; not there yet, or empty"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--layers",
        metavar="LIST",
        help="layers that stay, from 0, in the target's order: 0-7,27 (default: the first half)",
    )
    which.add_argument("--keep", type=at_least(1), metavar="N", help="the first N layers stay")
    parser.add_argument(
        "--vocabulary",
        type=at_least(1),
        metavar="N",
        help="N tokens stay: special ones, single bytes, and the most frequent ones of a corpus",
    )
    parser.add_argument(
        "--corpus",
        action="append",
        metavar="FILE",
        help="text, or prompts as .jsonl, to count tokens in (repeatable); best what the target "
        "writes",
    )
    parser.add_argument(
        "--dtype",
        metavar="TYPE",
        help="float32, bfloat16, float16 (default: the target's; bfloat16 for a GGUF file)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.vocabulary is None) != (args.corpus is None):
        given, missing = "--vocabulary", "--corpus"
        if args.vocabulary is None:
            given, missing = missing, given
        raise SettingError(f"{given} is given without {missing}.", "Give both or neither.")
    try:
        from paceline.train.derive.make import derive
    except ImportError as error:
        raise SettingError(
            f"A draft can't be made here: {error}.", "pip install 'paceline[transformers]'"
        ) from error
    made = derive(
        args.target,
        args.out,
        layers=args.layers,
        keep=args.keep,
        vocabulary=args.vocabulary,
        corpus=None if args.corpus is None else list(_texts(args.corpus)),
        dtype=args.dtype,
    )
    if args.json:
        print(json.dumps(asdict(made) | {"directory": str(made.directory)}))
    else:
        print("\n".join(_lines(made)))
    return 0


def _texts(names: list[str]) -> Iterator[str]:
    """The texts of a corpus: a file whole, or each message of its prompts."""
    for name in names:
        if name.endswith(".jsonl"):
            workload = find_workload(name)
            for line in notes(workload):
                print(line, file=sys.stderr)
            for prompt in workload.prompts:
                new = prompt.messages[-1:] if prompt.follows else prompt.messages
                yield from (message["content"] for message in new)
                if prompt.answer is not None:
                    yield prompt.answer
            continue
        try:
            yield Path(name).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{name} can't be read: {error}.", "Give a UTF-8 text or a .jsonl file of prompts."
            ) from error


def _lines(made: DerivedModel) -> Iterator[str]:
    share = made.parameters / made.parameters_of
    yield (
        f"{made.directory}: {len(made.layers)} of {made.layers_of} layers, {made.tokens} of "
        f"{made.tokens_of} tokens"
    )
    yield (
        f"{made.parameters / 1e6:.1f} million parameters, {share:.0%} of the target's; "
        f"{made.size_bytes / 1e6:.0f} MB in {made.dtype}"
    )
    if made.covered is not None:
        yield f"the kept tokens are {made.covered:.1%} of the corpus"
    yield f"Try it: paceline generate {made.target} -d {made.directory}"
