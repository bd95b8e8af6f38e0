"""The layer laws, read back: which room may import which. docs/architecture.md draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent

# A room may import itself, what stands here, and nothing else of Paceline. `types` names a law
# for type checkers only.
ALLOWED = {
    "errors": set(),
    "types": {"errors"},
    "plugins": {"errors"},
    "sampling": {"errors", "types"},
    "models": {"errors"},
    "engines": {"errors", "types", "plugins", "models"},
    "verify": {"errors", "types", "sampling"},
    "drafts": {"errors", "types", "sampling", "engines", "plugins", "models"},
    "derive": {"errors", "models", "engines", "drafts"},
    "decode": {"errors", "types", "sampling", "engines", "drafts", "verify"},
    "economics": {"errors", "types"},
    "monitor": {"errors", "types", "economics"},
    "checkpoints": {"errors"},
    "export": {"errors", "economics", "checkpoints"},
    "integrations": {
        "errors",
        "types",
        "plugins",
        "sampling",
        "engines",
        "drafts",
        "decode",
        "economics",
    },
    "measure": {
        "errors",
        "types",
        "sampling",
        "models",
        "engines",
        "drafts",
        "verify",
        "decode",
        "economics",
        "monitor",
    },
    "report": {"errors", "types", "decode", "economics", "measure"},
    "train": {"errors", "types", "sampling", "engines", "verify", "decode", "measure"},
    "front": {"errors", "types", "engines", "drafts", "verify", "decode", "measure"},
    "testing": {"errors", "types", "sampling", "engines", "verify"},
    "cli": {
        "errors",
        "types",
        "plugins",
        "models",
        "engines",
        "verify",
        "drafts",
        "derive",
        "decode",
        "economics",
        "measure",
        "report",
        "train",
        "monitor",
        "checkpoints",
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


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


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
def test_a_room_imports_only_the_rooms_it_may(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, "a new room: say here and in docs/architecture.md what it may import"
    for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if name == "paceline" or name.startswith("paceline."):
            parts = name.split(".")
            other = parts[1] if len(parts) > 1 else "(top)"
            if other == "(top)" and room in ("cli", "measure", "derive", "report"):
                continue  # for the version
            if room == "cli" and other == "__version__":
                continue
            assert other == room or other in ALLOWED[room], f"{room} may not import {name}"


def test_verifiers_never_see_an_engine_and_nothing_imports_the_command_line() -> None:
    """The two laws a reader relies on most, stated by themselves."""
    assert "engines" not in ALLOWED["verify"]
    assert not any("cli" in allowed for allowed in ALLOWED.values())


def test_economics_never_sees_a_model_and_the_loop_knows_nothing_of_it() -> None:
    assert ALLOWED["economics"] == {"errors", "types"}
    assert "economics" not in ALLOWED["decode"]


def test_the_laws_can_fail() -> None:
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


def test_exported_names_are_sorted_and_exist() -> None:
    assert sorted(paceline.__all__) == paceline.__all__
    assert all(hasattr(paceline, name) for name in paceline.__all__)
