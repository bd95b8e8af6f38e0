"""A plan exported, and what came of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from paceline.errors import PacelineError
from paceline.export.make import make_setup
from paceline.export.setup import ENGINES as PROFILES
from paceline.export.setup import EngineSetup, ExportOptions
from paceline.plan.document import PlanDocument

GGUF = {"target": "target.gguf", "draft_model": "draft.gguf"}
ENGINES = list(PROFILES)


def exported(engine: str, made: PlanDocument, **options: Any) -> EngineSetup:
    """A plan for llama-server is one of GGUF files, where the test names none itself."""
    if engine == "llama-server":
        if "target" not in options:
            made = replace(made, target=replace(made.target, path=GGUF["target"]))
        if made.draft is not None and made.draft.model is not None and "draft_model" not in options:
            made = replace(made, draft=replace(made.draft, model=GGUF["draft_model"]))
    return make_setup(engine, made, ExportOptions(**options))


def flags(setup: EngineSetup) -> dict[str, str]:
    words = setup.arguments
    return {
        word: after if not after.startswith("--") else ""
        for word, after in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }


def said(setup: EngineSetup) -> str:
    return " ".join(setup.notes)


def refusal(engine: str, made: PlanDocument, **options: Any) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        exported(engine, made, **options)
    assert caught.value.fact.endswith((".", ":"))
    assert caught.value.hint
    return caught.value
