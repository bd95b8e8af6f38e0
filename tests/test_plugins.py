"""Names and entry points: ours, unknown ones, and those of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from paceline import plugins
from paceline.drafts.base import Draft
from paceline.engines.base import Engine
from paceline.errors import SettingError
from paceline.verify.base import Verifier

BASES = {"engine": Engine, "draft": Draft, "verifier": Verifier}


def test_the_built_ins_are_registered_like_any_other() -> None:
    assert plugins.names("engine") == ["ik", "llamacpp", "openvino", "toy", "transformers"]
    models = ["model", "tree", "early-exit", "shared", "text"]
    others = ["none", "lookup", "recycle", "first", "cascade", "mixture"]
    assert plugins.names("draft") == sorted([*models, *others])
    assert plugins.names("verifier") == ["block", "chain", "tolerance", "tree", "typical"]
    for kind, base in BASES.items():
        for name in plugins.names(kind):
            try:
                found = plugins.find(kind, name)
            except SettingError:
                continue  # its library is not installed here
            assert issubclass(found, base)
            assert found.name == name


def test_an_unknown_name_gets_the_nearest_known_one() -> None:
    with pytest.raises(SettingError, match="no verifier named 'blok'. Did you mean 'block'"):
        plugins.find("verifier", "blok")


@pytest.fixture
def another_package(monkeypatch: pytest.MonkeyPatch):
    """Entry points as another package would bring them."""

    def install(*entries: EntryPoint) -> None:
        real = plugins.entry_points
        monkeypatch.setattr(
            plugins,
            "entry_points",
            lambda group: [*real(group=group), *(e for e in entries if e.group == group)],
        )
        plugins._registered.cache_clear()

    yield install
    monkeypatch.undo()
    plugins._registered.cache_clear()


def test_another_package_s_draft_is_found_and_a_built_in_s_name_is_ours(another_package) -> None:
    another_package(
        EntryPoint("echo", "paceline.drafts.base:NoDraft", "paceline.drafts"),
        EntryPoint("lookup", "elsewhere:Lookup", "paceline.drafts"),
    )
    assert "echo" in plugins.names("draft")
    assert plugins.find("draft", "lookup").__module__ == "paceline.drafts.lookup"


def test_a_package_that_cannot_be_imported_says_what_is_missing(another_package) -> None:
    another_package(EntryPoint("broken", "no_such_module_here:Draft", "paceline.drafts"))
    with pytest.raises(SettingError, match="'broken' can't be imported: No module named"):
        plugins.find("draft", "broken")
