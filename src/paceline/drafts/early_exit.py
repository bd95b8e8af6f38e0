"""The target's own first layers as the draft, or any of its layers.

The draft shares the target's weights and its key-value cache, so it is never behind: what it writes
for drafted tokens lies after the target's own entries, and the verifying forward writes over it
(Zhang et al. 2024, Draft & Verify; Elhoushi et al. 2024, LayerSkip). Sampling is `ModelDraft`'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from paceline.drafts.base import Context, Contexts
from paceline.drafts.model import EngineDraft, EngineState, ModelDraft
from paceline.engines.base import Engine
from paceline.errors import DataError, PairError, SettingError
from paceline.storage import decode_struct

if TYPE_CHECKING:
    from paceline.engines.transformers.layers import PartialEngine

OPTIONS = ("layers", "skip", "head", "setting")
KIND, VERSION = "paceline early-exit setting", 1
_HINT = "Make a setting with `paceline tune TARGET -o FILE`."


class EarlyExitDraft(ModelDraft):
    """Proposals of a part of the target itself.

    engine    the part; whoever made it keeps the target, which nothing here frees

    Its distribution is whatever the part says, recorded as each token was drawn from it, so that
    decoding is exact however few layers run.
    """

    name = "early-exit"
    summary = "the target's own first layers, or some of them; transformers, layers=N or skip=N-M"

    takes = ""

    engine: PartialEngine

    def __init__(self, engine: PartialEngine) -> None:
        EngineDraft.__init__(self, engine, "the target's own tokens")
        self.usable = engine.vocabulary_size

    @classmethod
    def create(cls, target: Engine, **options: Any) -> EarlyExitDraft:
        """From one of `layers=N` (the first N), `skip=A-B.C` (all but these, numbered from 0),
        `head=FILE` (a fitted head, which names its layers) and `setting=FILE` (from `paceline
        tune`). Raises SettingError, DataError or PairError for what doesn't fit the target."""
        unknown = sorted(options.keys() - {*OPTIONS})
        if unknown:
            raise SettingError(
                f"The draft 'early-exit' has no option {unknown[0]!r}.",
                f"It has: {', '.join(OPTIONS)}.",
            )
        given = [option for option in OPTIONS if option in options]
        if len(given) != 1:
            raise SettingError(
                f"The draft 'early-exit' was given {' and '.join(given) or 'no setting'}.",
                "Give it one of layers=N, skip=A-B, head=FILE and setting=FILE.",
            )
        if target.name != "transformers":
            raise SettingError(
                f"The draft 'early-exit' runs a part of the target's layers, and the engine "
                f"{target.name} only runs all of them.",
                "Load the target with the transformers engine (--engine transformers).",
            )
        from paceline.engines.transformers.head import load_head
        from paceline.engines.transformers.layers import LayerStack, PartialEngine, identity

        kept: AbstractSequence[int]
        head = None
        count = len(LayerStack(target.model, target.module).layers)  # type: ignore[attr-defined]
        if "layers" in options:
            kept = range(_first(str(options["layers"]), count))
        elif "skip" in options:
            kept = _but(str(options["skip"]), count)
        else:
            here = identity(target)  # type: ignore[arg-type]
            file = options.get("head")
            if file is None:
                setting = read_setting(options["setting"], here)
                kept, file = setting.kept, setting.head
            if file is not None:
                found = load_head(file, here, target.module.device)  # type: ignore[attr-defined]
                kept, head = range(found.layers), found.head
        return cls(PartialEngine(target, kept, head))  # type: ignore[arg-type]

    def open(self, context: Context) -> None:
        """Follow the target's own sequence."""
        if context.sequence is None:
            raise SettingError(
                "The draft 'early-exit' needs the target's own sequence, and here it gets none.",
                "Use it as a draft of the target's decoding, not behind another draft.",
            )
        sequence, tokens = self.engine.open(context.sequence), context.history.tokens
        self._states[context] = EngineState(sequence, context.sampling, tokens)

    def prefill(self, contexts: Contexts) -> None:
        """Nothing to read: the target's own entries are the draft's."""

    def pending_tokens(self, context: Context) -> int:  # noqa: ARG002
        return 1

    def _missing(self, state: EngineState, drafted: AbstractSequence[int]) -> list[int]:
        sequence: Any = state.sequence
        if sequence.followed < sequence.base:  # the target has read on since
            sequence.follow()
            state.agreed = sequence.followed
        return super()._missing(state, drafted)


@dataclass(frozen=True, slots=True)
class Setting:
    """What `paceline tune` has found for a target.

    kept        the layers that run, from 0
    head        the file of the head behind them, if there is one
    target      the target's identity
    measured    what was measured, for readers; a draft doesn't look at it
    """

    kept: tuple[int, ...]
    head: Path | None
    target: dict[str, Any]
    measured: dict[str, Any]


class _SettingFile(msgspec.Struct):
    """As the file has it: the head's place is relative to the file's."""

    kept: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    head: str | None
    target: dict[str, Any]
    measured: dict[str, Any]


def write_setting(path: Path, setting: Setting) -> None:
    """Raises DataError if the file can't be written. A head is named from where the file lies."""
    head = None
    if setting.head is not None:
        near = setting.head.absolute().parent == path.absolute().parent
        head = setting.head.name if near else str(setting.head.absolute())
    document = {
        "kind": KIND,
        "version": VERSION,
        "kept": list(setting.kept),
        "head": head,
        "target": setting.target,
        "measured": setting.measured,
    }
    try:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{path} can't be written: {error.strerror}.", "Choose another file with -o."
        ) from None


def read_setting(path: str | Path, target: dict[str, Any]) -> Setting:
    """A setting for a target of this identity. Raises DataError for a file that holds none,
    PairError for one of another target."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.", _HINT) from None
    read = decode_struct(data, _SettingFile, str(path), _HINT, kind=KIND, version=VERSION)
    head = None if read.head is None else path.absolute().parent / read.head
    setting = Setting(read.kept, head, read.target, read.measured)
    for name, value in target.items():
        if setting.target.get(name) != value:
            raise PairError(
                f"The setting in {path} is for a target whose {name} is "
                f"{setting.target.get(name)}; this one's is {value}.",
                "Tune this target with `paceline tune`.",
            )
    return setting


def _first(text: str, count: int) -> int:
    layers = int(text) if text.isdecimal() else 0
    if not 1 <= layers < count:
        raise SettingError(
            f"early-exit:layers is {text}, and the target has {count} layers.",
            f"Exit behind the first 1 to {count - 1} of them.",
        )
    return layers


def _but(text: str, count: int) -> list[int]:
    """All layers but those of `A-B.C`."""
    skipped: set[int] = set()
    for part in text.split("."):
        low, dash, high = part.strip().partition("-")
        if not (low.isdecimal() and (high.isdecimal() or not dash)):
            raise SettingError(
                f"early-exit:skip is {text}, of which {part!r} is no layer.",
                "Write layer numbers and ranges joined by points, as in skip=10-20.25.",
            )
        first, last = int(low), int(high or low)
        if not first <= last < count:
            raise SettingError(
                f"early-exit:skip names layers {part.strip()}, and the target has {count}.",
                f"They are numbered from 0 to {count - 1}.",
            )
        skipped |= {*range(first, last + 1)}
    if len(skipped) == count:
        raise SettingError(
            f"early-exit:skip is {text}, which are all {count} layers of the target.",
            "Leave at least one to run.",
        )
    return [at for at in range(count) if at not in skipped]
