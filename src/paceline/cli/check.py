"""`paceline check`: does the pair fit, what does width cost, and is the bookkeeping exact?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline.bench.local.check import SelfCheck, check_bookkeeping, self_check_lines
from paceline.bench.machine import machine_metadata
from paceline.bench.profile.profile import costs_for
from paceline.bench.profile.summary import shown_widths, width_line
from paceline.cli.options import DRAFT_HELP, DraftOptions, Output, TargetOptions, say
from paceline.cli.settings import Verb, group, option
from paceline.engines.base import Engine
from paceline.errors import PairError, PromptError
from paceline.policy.costs import Costs

EXAMPLES = """\
  paceline check smollm2-135m
  paceline check target.gguf -d draft.gguf"""

TEXT = (
    "the boat left the harbour at dawn and the boat came back at dusk and the people of the "
    "harbour said that the boat came back at dusk because it left the harbour at dawn"
)
"""Lower-case letters and spaces, which the smallest vocabulary has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Say whether a draft model fits its target, what a forward over several rows costs here, and
    whether the target accepts itself as its own draft and survives rejected drafts. The exit code
    is 1 if a fault is found."""

    target: TargetOptions = group(TargetOptions)
    draft: str | None = option(DRAFT_HELP, "DRAFT", short="-d")
    output: Output = group(Output)
    loading: DraftOptions = group(DraftOptions)


def run(settings: Settings) -> int:
    """Check the pair, print what was found, and return the exit code."""
    # Two sequences: the target plays both roles below.
    with settings.target.load(max_sequences=2) as engine:
        tell = (lambda _: None) if settings.output.json else print
        metadata = ", ".join(f"{key} {value}" for key, value in engine.metadata().items() if value)
        tell(f"target    {metadata}")
        pair = _pair(settings, engine)
        if pair is not None:
            tell(f"pair      {pair['sentence']}")
        tokens = _text(engine)
        costs = costs_for(engine, on_measure=say)
        tell(f"width     {width_line(costs)}")
        room = engine.capabilities.context_size - len(tokens)
        itself = check_bookkeeping(engine, tokens, max_tokens=max(1, min(48, room)))
        tell("\n".join(self_check_lines(itself)))
        sound = itself.sound and (pair is None or pair["fits"])
        tell("sound     " + ("yes" if sound else "NO: see above"))
        if settings.output.json:
            document = _document(engine, pair, costs, itself, sound)
            settings.output.show(lambda: document, str)
    return 0 if sound else 1


def _pair(settings: Settings, engine: Engine) -> dict[str, Any] | None:
    if settings.draft is None:
        return None
    try:
        draft = settings.loading.load(settings.draft, engine, settings.target.place)
    except PairError as error:
        return {"fits": False, "sentence": str(error)}
    try:
        fits = _fits(draft.metadata()) or ["nothing to fit: it needs no vocabulary of its own"]
        return {"fits": True, "sentence": f"{settings.draft} fits: {'; '.join(fits)}"}
    finally:
        draft.release()


def _fits(metadata: dict[str, Any]) -> list[str]:
    """How a draft's vocabulary fits, or those of its parts."""
    own = [metadata["fit"]] if "fit" in metadata else []
    return own + [fit for part in metadata.get("parts", ()) for fit in _fits(part)]


def _text(engine: Engine) -> list[int]:
    """A text to measure on, cut to half of a small context."""
    tokens = engine.tokenizer.encode(TEXT)
    tokens = tokens[: engine.capabilities.context_size // 2]
    if not tokens:
        raise PromptError("The context is too small to check anything.", "Give a larger --context.")
    return tokens


def _document(
    engine: Engine,
    pair: dict[str, Any] | None,
    costs: Costs,
    itself: SelfCheck,
    sound: bool,
) -> dict[str, Any]:
    return {
        "kind": "paceline check",
        "machine": machine_metadata(),
        "target": engine.metadata(),
        "pair": pair,
        "width_costs": [
            {"width": width, "forward_s": costs.forward_s(width), "ratio": costs.r(width)}
            for width in shown_widths(costs)
        ],
        "bookkeeping": {**asdict(itself), "sound": itself.sound},
        "sound": sound,
    }


VERB = Verb(Settings, run, EXAMPLES)
