"""`paceline models`: list the demo models, pull them, find and check their files."""

from __future__ import annotations

import argparse
import json

from paceline import plugins
from paceline.cli.parser import Parser
from paceline.engines.load import resolve
from paceline.errors import ModelError, SettingError
from paceline.models import catalog, pull

EXAMPLES = """\
  paceline models
  paceline models pull smollm2-135m
  paceline models export smollm2-135m
  paceline models export ./model-directory --dtype int4"""


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "models",
        examples=EXAMPLES,
        help="list and pull the demo models",
        description="Demo models that need no account and no hub; they are kept in a cache.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.set_defaults(run=_list)
    actions = parser.add_subparsers(metavar="ACTION", parser_class=Parser)
    for name, run, text in (
        ("pull", _pull, "fetch models into the cache; continues where it was cut off"),
        ("verify", _verify, "read the files whole and compare their checksums"),
        ("path", _path, "print where the files are"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        action.add_argument("names", metavar="NAME", nargs="+", help="a demo model")
        action.set_defaults(run=run)
    _add_export(actions)


def _add_export(actions: argparse._SubParsersAction[Parser]) -> None:
    text = "export models to OpenVINO's form, into the cache, and print where they are"
    action = actions.add_parser(
        "export",
        help=text,
        description="Export models to OpenVINO's form, into the cache, and print where they are. "
        "The engine\nopenvino does it too, when it first needs one. What is there already is read "
        "whole and compared\nwith its checksums. A GGUF file keeps its weights; a model directory "
        "is quantised, which needs\npaceline[openvino-export].",
    )
    action.add_argument(
        "names", metavar="MODEL", nargs="+", help="a demo model, GGUF file or model directory"
    )
    action.add_argument(
        "--dtype",
        metavar="TYPE",
        help="of a directory's weights: int8 (default), int4, bfloat16, float16 or float32",
    )
    action.set_defaults(run=_export)


def _list(args: argparse.Namespace) -> int:
    entries = list(catalog.listing())
    if args.json:
        print(
            json.dumps(
                [
                    {
                        "name": e.model.name,
                        "title": e.model.title,
                        "licence": e.model.licence,
                        "size_bytes": e.model.size,
                        "state": e.state.value,
                        "path": str(e.path),
                        "on_disk_bytes": e.on_disk,
                    }
                    for e in entries
                ]
            )
        )
        return 0
    width = max(len(entry.model.name) for entry in entries)
    for entry in entries:
        model = entry.model
        print(
            f"{model.name.ljust(width)}  {model.size / 1e6:6.0f} MB  {entry.state.value:7}  "
            f"{model.title} ({model.licence})"
        )
    print(f"Cache: {catalog.cache_dir()}")
    return 0


def _pull(args: argparse.Namespace) -> int:
    _refuse_json(args)
    for model in [catalog.find(name) for name in args.names]:
        print(pull.pull(model))
    return 0


def _verify(args: argparse.Namespace) -> int:
    _refuse_json(args)
    for model in [catalog.find(name) for name in args.names]:
        pull.verify(model)
        print(f"{model.name}: as published")
    return 0


def _refuse_json(args: argparse.Namespace) -> None:
    if args.json:
        raise SettingError("--json is for the list of models.", "Leave it out here.")


def _path(args: argparse.Namespace) -> int:
    _refuse_json(args)
    for model in [catalog.find(name) for name in args.names]:
        if not catalog.is_present(model):
            raise ModelError(
                f"The demo model {model.name} is not on this machine.",
                f"Fetch it with `paceline models pull {model.name}`.",
            )
        print(catalog.path_of(model))
    return 0


def _export(args: argparse.Namespace) -> int:
    _refuse_json(args)
    plugins.find("engine", "openvino")  # says what is missing
    from paceline.engines.openvino.source import Kind, find_ir, find_place, find_reader

    places = {name: find_place(resolve(name), args.dtype) for name in args.names}
    for name, place in places.items():
        if place.kind is Kind.DIRECTORY:  # without a tokenizer its export would be of no use
            find_reader(name, place)
    for place in places.values():
        print(find_ir(place, args.dtype, verify=True).xml.parent)
    return 0
