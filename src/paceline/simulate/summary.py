"""A replay as text for a terminal: what to do first, then the figures, the worst category first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.bench.wording import PAYS, UNCLEAR, aligned, interval_words
from paceline.simulate.result import AUTO, ByCategory, Outcome, Prediction, Price, ReplayDocument

SHOWN = 3
"""Most answers of a kind that are named one by one."""


def replay_summary(replay: ReplayDocument) -> str:
    """The whole text."""
    # A single category is all answers.
    categories = replay.categories if len(replay.categories) > 1 else []
    lines = [*_advice(replay, categories), "", *_what_was_replayed(replay)]
    for name, draft in replay.drafts.items():
        lines += ["", *_table(name, draft.limits, categories)]
    for batch, prediction in replay.predicted.items():
        lines += ["", *_prices(batch, prediction, categories)]
    if not replay.complete:
        lines += ["", "Interrupted: these are the answers replayed so far."]
    return "\n".join(lines)


def _advice(replay: ReplayDocument, categories: Sequence[str]) -> list[str]:
    if not replay.predicted:
        return [
            "How many tokens a round would bring is below; whether that pays depends on what "
            "forwards cost: give --costs."
        ]
    lines = []
    for batch, prediction in replay.predicted.items():
        lines.append(f"Batch {batch}: {_sentence(prediction, None)}.")
        lines += _by_category(prediction, categories)
    return lines


def _by_category(prediction: Prediction, categories: Sequence[str]) -> list[str]:
    """The category that has least to gain first, and those that couldn't be priced in the end."""
    found = {category: prediction.best_of(category) for category in categories}
    gains = {
        category: best[1].speedup.value
        for category, best in found.items()
        if best is not None and best[1].speedup is not None
    }
    lines = [
        f"  {category}: {_sentence(prediction, category)}"
        for category in sorted(gains, key=gains.__getitem__)
    ]
    unpriced: dict[str, list[str]] = {}
    for category in categories:
        if category not in gains:
            unpriced.setdefault(_sentence(prediction, category), []).append(category)
    return [*lines, *(f"  {', '.join(names)}: {why}" for why, names in unpriced.items())]


def _sentence(prediction: Prediction, category: str | None) -> str:
    best = prediction.best_of(category)
    if best is None:
        missing = next(iter(prediction.policies.values()))[category].missing
        return "nothing was decoded" if missing is None else missing.rstrip(".")
    verdict = {True: PAYS, False: "no draft pays", None: UNCLEAR}[best[1].pays]
    said = f"{verdict}: {_gain(*best)}"
    fixed = prediction.best_of(category, fixed=True)
    if best[0] == AUTO and fixed is not None:
        said += f"; of fixed limits {_gain(*fixed)}"
    return said


def _gain(spec: str, price: Price) -> str:
    draft, _, limit = spec.rpartition(":")
    name = "-n auto with all drafts" if spec == AUTO else f"-d {draft} -n {limit}"
    ratio = price.speedup
    assert ratio is not None
    return f"{name}, speedup {ratio.value:.2f} ({interval_words(ratio, single='answer')})"


def _what_was_replayed(replay: ReplayDocument) -> list[str]:
    found = replay.answers
    lines = [
        f"Replayed: {found.tokens:,} tokens, {_answers(found.replayed)} of "
        f"{replay.workload['name']}."
    ]
    if replay.costs is not None:
        lines.append(f"Costs: {replay.costs}. Times are predicted, none was measured.")
    lines += replay.notes
    if found.unanswered:
        lines.append(
            f"Prompts left out, without an answer or with an empty one: {found.unanswered}."
        )
    if found.cut:
        lines.append(f"Cut at their most tokens, so no end token follows: {_answers(found.cut)}.")
    if found.respelled:
        lines.append(
            f"Replayed in this tokenizer's spelling, which differs from the log's: "
            f"{_answers(len(found.respelled))}, such as {', '.join(found.respelled[:SHOWN])}."
        )
    lines += [f"Left out: {sentence}" for sentence in found.failed[:SHOWN]]
    more = len(found.failed) - SHOWN
    return [*lines, f"Left out: {more} more."] if more > 0 else lines


def _answers(count: int) -> str:
    return f"{count} answer{'' if count == 1 else 's'}"


def _columns(categories: Sequence[str]) -> list[tuple[str, str | None]]:
    return [*((name, name) for name in categories), ("all answers", None)]


def _table(
    draft: str, limits: Mapping[int, ByCategory[Outcome]], categories: Sequence[str]
) -> list[str]:
    """Tokens per round by limit, and how far drafted tokens are accepted at the widest one."""
    rows = [[f"{draft}: tokens per round (accepted)", *(f"n={limit}" for limit in limits)]]
    widest = max(limits)
    shares = []
    for name, category in _columns(categories):
        rows.append([name, *(_figures(one[category]) for one in limits.values())])
        at = limits[widest][category].acceptance[:16]
        shares.append((name, " ".join(f"{share:.0%}" for share in at) or "-"))
    width = max(len(name) for name, _ in shares)
    return [
        *aligned(rows),
        "",
        f"{draft}: drafted tokens 1…i all accepted, n={widest}",
        *(f"{name.ljust(width)}  {at}" for name, at in shares),
    ]


def _figures(outcome: Outcome) -> str:
    if outcome.tokens_per_round is None:
        return "-"
    rate = outcome.acceptance_rate
    return f"{outcome.tokens_per_round:.2f} ({'-' if rate is None else f'{rate:.0%}'})"


def _prices(batch: int, prediction: Prediction, categories: Sequence[str]) -> list[str]:
    """A row a policy, a column a category: policies are many, categories few."""
    columns = _columns(categories)
    rows = [[f"predicted speedup, batch {batch}", *(name for name, _ in columns)]]
    missing: dict[str, None] = {}
    for spec, prices in prediction.policies.items():
        found = [prices[category] for _, category in columns]
        rows.append([spec, *(f"{p.speedup.value:.2f}" if p.speedup else "-" for p in found)])
        missing |= dict.fromkeys(p.missing for p in found if p.missing)
    return [*aligned(rows), *missing]
