"""A model of which only the tokenizer is loaded: enough to read what it wrote, not to score."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as AbstractSequence
from pathlib import Path
from typing import Any, NoReturn

from paceline.engines.base import Capabilities, Engine, Job
from paceline.engines.tokenizer import Tokenizer


class TokenizerOnly(Engine):
    """Stands for a target that never runs.

    engine             name of the engine that would run the model
    vocabulary_size    what that engine's would be: padding rows included
    free               gives back what the tokenizer holds
    trained_context    most tokens the model was trained for; None if that isn't read
    """

    needs = ""

    def __init__(
        self,
        engine: str,
        model: str,
        tokenizer: Tokenizer,
        vocabulary_size: int,
        place: Path | None = None,
        free: Callable[[], None] | None = None,
        trained_context: int | None = None,
    ) -> None:
        self.engine, self.model, self.place = engine, model, place
        self.tokenizer, self.vocabulary_size = tokenizer, vocabulary_size
        self.capabilities = Capabilities(context_size=0, max_sequences=1)
        self.trained_context = trained_context
        self._free = free

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.engine

    @classmethod
    def load(cls, target: str, **_: Any) -> NoReturn:
        raise TypeError(f"{target} is loaded by its engine's load_tokenizer")

    def open(self) -> NoReturn:
        raise ValueError("only the tokenizer is loaded")

    def _score(self, jobs: AbstractSequence[Job]) -> NoReturn:  # noqa: ARG002
        raise ValueError("only the tokenizer is loaded")

    def metadata(self) -> dict[str, Any]:
        return {"engine": self.engine, "model": self.model, "tokenizer_only": True}

    def close(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            free()
