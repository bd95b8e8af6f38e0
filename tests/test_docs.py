"""Pages and examples that must not drift from the program."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paceline.testing

ROOT = Path(__file__).parents[1]


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse words its usage otherwise")
def test_the_command_line_page_is_the_program_s_own_help(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = load(ROOT / "scripts" / "write_help_page.py").page()
    assert (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8") == page, "run make docs"


def test_the_example_draft_is_the_page_s_and_decodes_exactly() -> None:
    source = (ROOT / "examples" / "bigram_draft" / "bigram_draft.py").read_text(encoding="utf-8")
    assert source in (ROOT / "docs" / "drafts.md").read_text(encoding="utf-8")
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    draft = load(ROOT / "examples" / "bigram_draft" / "bigram_draft.py").BigramDraft()
    target = paceline.testing.ToyEngine(6, order=1, seed=2)
    stop = paceline.StopConditions(max_tokens=40)
    drafted = paceline.generate(target, [1, 2], draft=draft, max_draft_tokens=5, stop=stop)
    assert drafted.tokens == paceline.generate(target, [1, 2], stop=stop).tokens
    assert drafted.stats.accepted > 10


def test_a_draft_needs_propose_and_nothing_else() -> None:
    class OnlyThisDraft(paceline.Draft):
        """What a stranger writes."""

        def propose(self, contexts, limits):
            return [
                paceline.Proposal(tuple(context.history.tokens[-2:][:limit]), self.name)
                for context, limit in zip(contexts, limits, strict=True)
            ]

    draft = OnlyThisDraft()
    assert (draft.name, draft.summary) == ("only-this", "What a stranger writes.")
    target = paceline.testing.ToyEngine(6, order=1, seed=2)
    stop = paceline.StopConditions(max_tokens=30)
    drafted = paceline.generate(target, [1, 2], draft=draft, max_draft_tokens=2, stop=stop)
    assert drafted.tokens == paceline.generate(target, [1, 2], stop=stop).tokens
    policy = paceline.measured_policy(target, {draft.name: draft})
    chosen = paceline.generate(target, [1, 2], draft=draft, policy=policy, stop=stop)
    assert chosen.tokens == drafted.tokens


def test_the_example_without_a_model_runs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "without_a_model.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "equal: True" in done.stdout


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    source = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    code = source.split('"""', 2)[2].strip()
    assert code in (ROOT / "README.md").read_text(encoding="utf-8")


def test_doctests() -> None:
    assert doctest.testmod(paceline.testing).failed == 0
    assert doctest.testmod(paceline.testing).attempted > 0


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
