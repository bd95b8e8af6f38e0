"""The layer laws, read back: which package may import which. docs/architecture.md draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent

# A package may import itself, what stands here, and nothing else of Paceline. `types` names a
# distribution for type checkers only. A dotted name is one module or sub-package of another.
ALLOWED = {
    "errors": set(),
    "types": {"errors"},
    "plugins": {"errors"},
    "storage": {"errors"},
    "sampling": {"errors", "types"},
    "models": {"errors", "storage"},
    "engines": {"errors", "types", "storage", "plugins", "models"},
    "verify": {"errors", "types", "plugins", "sampling"},
    "drafts": {"errors", "types", "storage", "sampling", "engines", "plugins", "models"},
    "decode": {"errors", "types", "sampling", "engines", "drafts", "verify"},
    "policy": {"errors", "types", "storage", "decode.round"},
    "simulate": {
        "errors",
        "storage",
        "types",
        "sampling",
        "engines",
        "drafts",
        "decode.round",
        "policy",
        "bench.prompts",
        "bench.profile",
        "bench.stats",
        "bench.wording",
    },
    "plan": {
        "errors",
        "storage",
        "types",
        "policy",
        "simulate",
        "bench",
        "monitor",
    },
    "monitor": {"errors", "types", "storage", "plan.document"},
    "inspect": {"errors", "storage"},
    "export": {"errors", "storage", "plan.document", "inspect"},
    "integrations": {
        "errors",
        "types",
        "plugins",
        "sampling",
        "engines",
        "drafts",
        "decode",
        "policy",
    },
    "bench": {
        "errors",
        "types",
        "storage",
        "sampling",
        "models",
        "engines",
        "drafts",
        "verify",
        "decode",
        "policy",
        "monitor",
    },
    "report": {"errors", "types", "decode", "policy", "plan", "bench"},
    "train": {
        "errors",
        "types",
        "storage",
        "sampling",
        "models",
        "engines",
        "drafts",
        "verify",
        "decode",
        "policy",
        "bench",
    },
    "api": {"errors", "types", "engines", "drafts", "verify", "decode", "bench.profile"},
    "testing": {"errors", "types", "sampling", "engines", "verify"},
    "cli": {
        "errors",
        "types",
        "plugins",
        "storage",
        "models",
        "engines",
        "verify",
        "drafts",
        "decode",
        "policy",
        "simulate",
        "bench",
        "plan",
        "report",
        "train",
        "monitor",
        "inspect",
        "export",
    },
}
HEAVY = (
    "torch",
    "transformers",
    "llama_cpp",
    "matplotlib",
    "jinja2",
    "fastapi",
    "gguf",
    "safetensors",
    "httpx",
    "prometheus_client",
    "yaml",
)


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def may_import(package: str, name: str) -> bool:
    parts = name.split(".")[1:]
    ours = parts[0] == package
    return ours or bool(ALLOWED[package] & {parts[0], ".".join(parts[:2])})


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules imported at run time; what stands under TYPE_CHECKING is for type checkers."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_what_it_may(path: Path) -> None:
    package = package_of(path)
    assert package in ALLOWED, "a new package: say what it may import"
    for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if name == "paceline" or name.startswith("paceline."):
            if name == "paceline" or name == "paceline.__version__":
                assert package in ("cli", "bench", "train", "report")  # for the version
                continue
            assert may_import(package, name), f"{package} may not import {name}"


def test_verifiers_never_see_an_engine_and_nothing_imports_the_command_line() -> None:
    """The two laws a reader relies on most, stated by themselves."""
    assert "engines" not in ALLOWED["verify"]
    assert not any("cli" in allowed for allowed in ALLOWED.values())


def test_the_policy_never_sees_a_model_and_the_loop_knows_nothing_of_it() -> None:
    assert ALLOWED["policy"] == {"errors", "types", "storage", "decode.round"}
    assert "policy" not in ALLOWED["decode"]


def test_the_layer_rules_can_fail() -> None:
    tree = ast.parse("from paceline.engines.base import Engine")
    assert list(imports(tree)) == ["paceline.engines.base.Engine"]
    assert "engines" not in ALLOWED["sampling"]


def test_importing_paceline_loads_nothing_heavy() -> None:
    script = (
        "import sys, paceline, paceline.cli.main\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_files_stay_within_one_subject() -> None:
    """Past 500 lines a file has two subjects."""
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path


FULL = {"cli"}
"""A file a verb."""


def test_a_package_holds_at_most_twelve_files() -> None:
    """One that holds no sub-packages."""
    for init in SOURCE.rglob("__init__.py"):
        inner = list(init.parent.glob("*/__init__.py"))
        files = [path for path in init.parent.glob("*.py") if path != init]
        assert inner or init.parent.name in FULL or len(files) <= 12, init.parent


def test_every_package_says_what_it_is_for() -> None:
    for init in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), init


SAME_NAME: dict[str, str] = {}
"""Class names that stand in several packages, each with the reason."""


def test_a_class_name_stands_in_one_package() -> None:
    places: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                package = ".".join(path.relative_to(SOURCE).parent.parts) or package_of(path)
                places.setdefault(node.name, set()).add(package)
    several = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in SAME_NAME} == {}
    assert len(SAME_NAME) <= 10
    assert set(SAME_NAME) <= set(several), "no longer needed"


def test_exported_names_are_sorted_and_exist() -> None:
    assert sorted(paceline.__all__) == paceline.__all__
    assert all(hasattr(paceline, name) for name in paceline.__all__)
