"""What can go wrong through no fault of the program: one sentence of fact, one with a hint.

Every error a user can cause is a `PacelineError`; the command line prints it as one line and
exits with 2. Anything else that escapes is a fault of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PacelineError(Exception):
    """A fault the user can fix: `fact` says what is, with the value; `hint` what to do."""

    def __init__(self, fact: str, hint: str = "") -> None:
        super().__init__(f"{fact} {hint}".strip())
        self.fact = fact
        self.hint = hint


class SettingError(PacelineError):
    """A setting is out of range, unknown, or can't be honoured here."""


class PromptError(PacelineError):
    """A prompt is empty, or longer than the context."""


class ModelError(PacelineError):
    """A model can't be found, read, loaded or run, or its state can't be undone."""


class UnknownModelError(ModelError):
    """An engine's library has no code for this model; another's may have."""


class PairError(PacelineError):
    """A draft doesn't fit its target."""


class DraftError(PacelineError):
    """A draft offered what no draft may offer; its author is to blame, not the user."""


class NumericError(PacelineError):
    """A model gave a row of logits that is no distribution (NaN, or nothing finite)."""


class DataError(PacelineError):
    """A file of prompts or results can't be read or written."""


class ServerError(PacelineError):
    """A server can't be reached, refuses, or answers with something else than was asked for."""


class DownloadError(PacelineError):
    """A model could not be fetched whole."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SettingError:
    """The error for a name that is not known, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names) or 'none'}."
    return SettingError(f"There is no {kind} named {name!r}.", hint)
