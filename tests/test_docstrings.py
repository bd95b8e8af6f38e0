"""Every public function, class and method says what it does; one that takes arrays gives their
shapes, and one that takes logits says at which stage they are.

Read from the source, so that no engine's library need be installed. Public is what has no
underscore in front, in a module without one. A method that overrides a documented one inherits its
docstring, as `inspect.getdoc` has it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

ARRAY = re.compile(r"\b(Array|NDArray|ndarray|Tensor)\b")
SHAPE = re.compile(r"[Ss]hape|\(([\w…][\w\s+…]*)?,[\w\s+,…]*\)")
STAGE = re.compile(r"\b(raw|before|after|processed|untouched)\b")


def definitions(body: list[ast.stmt], where: str) -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and methods by their full names."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            name = f"{where}.{node.name}"
            yield name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, name)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if not parts[-1].startswith("_"):
            yield ".".join(parts), ast.parse(path.read_text(encoding="utf-8"))


PUBLIC = {name: node for where, tree in modules() for name, node in definitions(tree.body, where)}
# A class name stands in one package (tests/test_layers.py), so a base is found by its name.
CLASSES = {
    node.name: node
    for _, tree in modules()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Paceline's own classes that a class inherits from, the nearest first."""
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name in CLASSES and CLASSES[name] is not node:
            yield CLASSES[name]
            yield from bases(CLASSES[name])


def member(node: ast.ClassDef, name: str) -> Definition | ast.AnnAssign | None:
    """What a class's body calls so."""
    for inner in node.body:
        if isinstance(inner, Definition) and inner.name == name:
            return inner
        if isinstance(inner, ast.AnnAssign) and ast.unparse(inner.target) == name:
            return inner  # documented beside it, as an attribute
    return None


def documentation(name: str, node: Definition) -> str | None:
    """A docstring, its own or inherited."""
    own = ast.get_docstring(node)
    holder = PUBLIC.get(name.rpartition(".")[0])
    if own or not isinstance(holder, ast.ClassDef):
        return own
    for base in bases(holder):
        inherited = member(base, node.name)
        if isinstance(inherited, ast.AnnAssign):
            return ast.unparse(inherited)
        if inherited is not None and ast.get_docstring(inherited):
            return ast.get_docstring(inherited)
    return None


def arguments(node: Definition) -> list[ast.arg]:
    """A function's; of a class, its constructor's."""
    function = member(node, "__init__") if isinstance(node, ast.ClassDef) else node
    if not isinstance(function, Function):
        return []
    listed = function.args
    return [*listed.posonlyargs, *listed.args, *listed.kwonlyargs]


def takes_arrays(node: Definition) -> bool:
    return any(
        one.annotation is not None and ARRAY.search(ast.unparse(one.annotation))
        for one in arguments(node)
    )


def silent(name: str, node: Definition) -> bool:
    """Whether a name that should be documented isn't."""
    overloads = [ast.unparse(one) for one in node.decorator_list]
    passed = any(one.endswith(("overload", ".setter")) for one in overloads)
    return not passed and not documentation(name, node)


def shapeless(name: str, node: Definition) -> bool:
    return takes_arrays(node) and not SHAPE.search(documentation(name, node) or "")


def test_the_public_surface_is_documented() -> None:
    misses = [name for name, node in PUBLIC.items() if silent(name, node)]
    assert not misses


def test_functions_that_take_arrays_give_their_shapes() -> None:
    misses = [name for name, node in PUBLIC.items() if shapeless(name, node)]
    assert not misses


def test_functions_that_take_logits_say_their_stage() -> None:
    """Raw, or after which processing."""
    misses = [
        name
        for name, node in PUBLIC.items()
        if any(one.arg == "logits" for one in arguments(node))
        and not STAGE.search(documentation(name, node) or "")
    ]
    assert misses == []


@pytest.mark.parametrize(
    ("source", "silent_", "shapeless_"),
    [
        ("def f(x: Array): 'Of shape (n,).'", False, False),
        ("def f(x: np.ndarray | None): 'Rows (rows, vocabulary).'", False, False),
        ("def f(x: list[Array]): 'Something.'", False, True),
        ("def f(x: int): ...", True, False),
        ("class A:\n 'A thing.'\n def __init__(self, x: Array): ...", False, True),
    ],
)
def test_the_checks_can_fail(source: str, silent_: bool, shapeless_: bool) -> None:
    [node] = ast.parse(source).body
    assert isinstance(node, Definition)
    assert (silent("m.f", node), shapeless("m.f", node)) == (silent_, shapeless_)
