"""What decisions share, whatever their evidence: target, draft, gains, schedule and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.bench.wording import LOSES, PAYS, interval_words, verdict
from paceline.errors import SettingError
from paceline.plan.document import DRAFT_KINDS, TRAINED, Gain, PlannedDraft, Step, Target

WITH_MODEL = ("model", "tree", "shared", "text", *TRAINED)
"""Kinds that have a model of their own."""

_SETTINGS = (
    "min_match",
    "reach",
    "shared_store",
    "branches",
    "kept",
    "lasting",
    "depth",
    "calibrate",
    "weight",
    "layers",
)
"""Options of drafts, among the facts that they tell."""

_IDENTITY = ("model", "path", "vocabulary_size", "vocabulary_hash")


def target_of(metadata: Mapping[str, Any]) -> Target:
    """
    metadata    an engine's, with the model's identity where it is known (`model_metadata`)
    """
    return Target(
        name=str(metadata.get("model") or "unknown"),
        engine=str(metadata.get("engine") or "unknown"),
        path=metadata.get("path"),
        vocabulary_size=metadata.get("vocabulary_size"),
        vocabulary_hash=metadata.get("vocabulary_hash"),
    )


def draft_of(name: str, metadata: Mapping[str, Any]) -> PlannedDraft:
    """
    name     as `-d` has it
    metadata    the draft's, with its model's identity where it is known

    Raises SettingError for a kind that a plan doesn't know, such as a plug-in's.
    """
    kind = str(metadata.get("draft"))
    if kind not in DRAFT_KINDS:
        raise SettingError(
            f"The draft {name!r} is of the kind {kind!r}, which no engine but Paceline knows.",
            "Name a configuration with another draft (--configuration).",
        )
    settings = {
        key: metadata[key]
        for key in _SETTINGS
        if metadata.get(key) is not None and metadata[key] is not False
    }
    if metadata.get("parts"):
        parts = [_part(draft_of(_part_name(one), one)) for one in metadata["parts"]]
        models = [part["model"] for part in parts if part["model"] is not None]
        model = models[0] if len(models) == 1 else None
        return PlannedDraft(
            kind=kind, name=name, model=model, settings={**settings, "parts": parts}
        )
    if kind not in WITH_MODEL:
        return PlannedDraft(kind=kind, name=name, settings=settings)
    return PlannedDraft(
        kind=kind,
        name=name,
        model=_place(metadata),
        settings=settings,
        vocabulary_size=metadata.get("vocabulary_size"),
        vocabulary_hash=metadata.get("vocabulary_hash"),
    )


def strange_kinds(metadata: Mapping[str, Any]) -> list[str]:
    """Kinds that a plan doesn't know, of a draft and what it is made of."""
    kinds = [str(metadata.get("draft"))]
    kinds += [kind for part in metadata.get("parts") or () for kind in strange_kinds(part)]
    return [kind for kind in kinds if kind not in DRAFT_KINDS]


def _place(metadata: Mapping[str, Any]) -> str | None:
    """Where a model lies: its path, or the name by which a hub has it; None where nobody knows."""
    return (metadata["path"] or metadata.get("model")) if "path" in metadata else None


def unplaced(drafts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each draft whose model is known by its name only."""
    return [
        f"Where the model of the draft {name} lies is not known: {metadata['model']} is its "
        f"name only."
        for name, metadata in drafts.items()
        if metadata.get("model") and "path" not in metadata
    ]


def several(drafts: Mapping[str, Mapping[str, Any]]) -> PlannedDraft:
    """Drafts on offer to a policy, as one entry; a single one is itself. Facts by name."""
    found = [draft_of(name, metadata) for name, metadata in drafts.items()]
    if len(found) == 1:
        return found[0]
    models = [one.model for one in found if one.model is not None]
    return PlannedDraft(
        kind="several",
        name=" + ".join(drafts),
        model=models[0] if len(models) == 1 else None,
        settings={"drafts": [_part(one) for one in found]},
    )


def _part(draft: PlannedDraft) -> dict[str, Any]:
    return {
        "kind": draft.kind,
        "name": draft.name,
        "model": draft.model,
        "settings": dict(draft.settings),
    }


def _part_name(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("model") or metadata.get("draft"))


def machine_of(machine: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a machine and of the engine on it, without what the target says already."""
    return {**machine, **{key: engine[key] for key in engine if key not in _IDENTITY}}


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The temperature, and whatever else is set: of `Sampling` as a mapping."""
    off = {
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "allowed_tokens": None,
        "seed": None,
    }
    set_ = {key: value for key, value in values.items() if value and value != off.get(key)}
    return {"temperature": values.get("temperature", 0.0), **set_}


def workload_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """With a count of the lines that were skipped, of which there may be many."""
    return {**metadata, "skipped": len(metadata.get("skipped") or ())}


def skipped_words(metadata: Mapping[str, Any]) -> list[str]:
    skipped = metadata.get("skipped") or ()
    return [f"Lines of the workload that were skipped: {len(skipped)}."] if skipped else []


def gain_of(ratio: Ratio) -> Gain:
    return Gain(value=ratio.value, low=ratio.low, high=ratio.high)


def pays(gain: Gain | None) -> bool:
    """Whether its interval is above 1; without one nobody can tell."""
    return gain is not None and verdict(_ratio(gain)) == PAYS


def times(gain: Gain, *, single: str = "prompt") -> str:
    """
    >>> times(Gain(value=1.5, low=1.2, high=1.8))
    'speedup 1.50 (95 % interval 1.20 to 1.80)'
    """
    return f"speedup {gain.value:.2f} ({interval_words(_ratio(gain), single=single)})"


def _ratio(gain: Gain) -> Ratio:
    return Ratio(gain.value, gain.low, gain.high)


def asked_for(name: str, gain: Gain, *, single: str = "prompt") -> str:
    """What is said of a configuration that was named and doesn't, or mayn't, pay."""
    return f"{name} was asked for, though it isn't known to pay: {times(gain, single=single)}."


def why_baseline(name: str, gain: Gain, *, single: str = "prompt") -> str:
    """Why the best that was measured is not chosen."""
    said = f"the best to choose from, {name}, came to {times(gain, single=single)}"
    if gain.low is None:
        return f"Ordinary decoding, because one {single} is no evidence: {said}."
    if verdict(_ratio(gain)) == LOSES:
        return f"Ordinary decoding, because no draft pays: {said}."
    return f"Ordinary decoding, because the interval reaches 1, which is no evidence: {said}."


def worst_category(gains: Mapping[str, Gain]) -> list[str]:
    """A sentence on the category with the least gain, if there are several."""
    if len(gains) < 2:
        return []
    name = min(gains, key=lambda category: gains[category].value)
    return [f"Worst in {name}: {times(gains[name])}."]


def schedule_of(limits: Mapping[int, int]) -> tuple[Step, ...]:
    """Steps by batch size. A size between two that are known takes the limit of the larger, where
    a draft gains less; none if only one is known. Beyond the largest nothing is known, so that the
    last step ends there, unless drafting has stopped to pay: then it stays off.

    limits    the best limit by batch size, 0 where none pays

    >>> steps = schedule_of({1: 7, 4: 3, 8: 3, 16: 0})
    >>> [(s.from_batch, s.to_batch, s.max_draft_tokens) for s in steps]
    [(1, 1, 7), (2, 8, 3), (9, None, 0)]
    """
    if len(limits) < 2:
        return ()
    steps: list[Step] = []
    begin = 1
    for batch in sorted(limits):
        max_draft_tokens = limits[batch]
        if steps and steps[-1].max_draft_tokens == max_draft_tokens:
            steps[-1] = Step(
                from_batch=steps[-1].from_batch, to_batch=batch, max_draft_tokens=max_draft_tokens
            )
        else:
            steps.append(Step(from_batch=begin, to_batch=batch, max_draft_tokens=max_draft_tokens))
        begin = batch + 1
    last = steps[-1]
    if not last.max_draft_tokens:
        steps[-1] = Step(from_batch=last.from_batch, to_batch=None, max_draft_tokens=0)
    return tuple(steps)


def break_even_of(tokens_per_round: float, drafted_share: float, gain: float) -> float | None:
    """Tokens per drafted round from which drafting pays, where only the whole gain is known: rounds
    without a draft are taken to last as long as plain ones.

    A round lasts tokens_per_round / gain plain ones on the mean, so a drafted one
    (that − (1 − share)) / share. None where nothing was drafted, or where the rest leaves drafted
    rounds no time at all, so that it can't be so.

    >>> break_even_of(2.0, 1.0, 1.6)
    1.25
    >>> round(break_even_of(1.5, 0.5, 1.2), 3)
    1.5
    """
    if not drafted_share:
        return None
    found = (tokens_per_round / gain - (1 - drafted_share)) / drafted_share
    return found if found > 0 else None


def batch_words(batch: int) -> str:
    """What a single batch size says of others."""
    if batch == 1:
        return (
            "It holds for one sequence at a time: a server that decodes many together has less to "
            "gain, and may lose."
        )
    return f"It holds for {batch} sequences at a time: with more there is less to gain."


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "prompt"), counted(2, "prompt")
    ('1 prompt', '2 prompts')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def few_words(count: int, what: str = "prompts") -> list[str]:
    """A sentence where there are too few for their interval."""
    if not 1 < count < FEW_PROMPTS:
        return []
    return [f"{count} {what} are few: intervals of fewer than {FEW_PROMPTS} are too narrow."]


def listed(names: Sequence[str], most: int = 5) -> str:
    """
    >>> listed(["a", "b", "c"], most=2)
    'a, b, …'
    """
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
