"""A replay as text for a terminal: what to do first, then the figures, the worst category first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.wording import PAYS, UNCLEAR, aligned, interval_words
from paceline.simulate.fixed_limits import Outcome
from paceline.simulate.replay import LoggedAnswer
from paceline.simulate.replay_costs import AUTO, Price, Prices, best_of
from paceline.simulate.replay_result import Outcomes, ReplayResult

SHOWN = 3
"""Most answers of a kind that are named one by one."""


def card(result: ReplayResult) -> str:
    """The whole card."""
    lines = [*_advice(result), "", *_what_was_replayed(result)]
    for draft, outcomes in result.outcomes.items():
        lines += ["", *_table(draft, outcomes, result)]
        lines += ["", *_acceptance(draft, outcomes, result)]
    for batch, prices in result.prices.items():
        lines += ["", *_prices(batch, prices, result)]
    if result.notes:
        lines += ["", *result.notes]
    if not result.complete:
        lines += ["", "Interrupted: these are the answers replayed so far."]
    return "\n".join(lines)


# What to do.


def _advice(result: ReplayResult) -> list[str]:
    if not result.prices:
        return [
            "How many tokens a round would bring is below; whether that pays depends on what "
            "forwards cost: give --costs."
        ]
    lines = []
    for batch, prices in result.prices.items():
        lines.append(f"Batch {batch}: {_sentence(prices, None)}.")
        if len(result.categories) > 1:
            lines += _by_category(prices, result.categories)
    return lines


def _by_category(prices: Prices, categories: Sequence[str]) -> list[str]:
    """The category that has least to gain first, and those that couldn't be priced in the end."""
    found = {category: best_of(prices, category) for category in categories}
    gains = {
        category: best[1].speedup.value
        for category, best in found.items()
        if best is not None and best[1].speedup is not None
    }
    lines = [
        f"  {category}: {_sentence(prices, category)}"
        for category in sorted(gains, key=gains.__getitem__)
    ]
    unpriced: dict[str, list[str]] = {}
    for category in categories:
        if category not in gains:
            unpriced.setdefault(_sentence(prices, category), []).append(category)
    return [*lines, *(f"  {', '.join(names)}: {why}" for why, names in unpriced.items())]


def _sentence(prices: Prices, category: str | None) -> str:
    best = best_of(prices, category)
    if best is None:
        missing = next(iter(prices.values()))[category].missing
        return missing.rstrip(".") or "nothing was decoded"
    verdict = {True: PAYS, False: "no draft pays", None: UNCLEAR}[best[1].pays]
    told = [f"{verdict}: {_told(*best)}"]
    fixed = best_of(prices, category, fixed=True)
    if best[0] == AUTO and fixed is not None:
        told.append(f"of fixed limits {_told(*fixed)}")
    return "; ".join(told)


def _told(spec: str, price: Price) -> str:
    draft, _, max_draft_tokens = spec.rpartition(":")
    name = "-n auto with all drafts" if spec == AUTO else f"-d {draft} -n {max_draft_tokens}"
    ratio = price.speedup
    assert ratio is not None
    interval = interval_words(ratio, single="answer")
    return f"{name}, speedup {ratio.value:.2f} ({interval})"


def _what_was_replayed(result: ReplayResult) -> list[str]:
    found = result.log.answers[: result.replayed]
    tokens = sum(len(answer.output) for answer in found)
    lines = [f"Replayed: {tokens:,} tokens, {_answers(found)} of {result.workload.name}."]
    if result.costs is not None:
        lines.append(f"Costs: {result.costs}. Times are predicted, none was measured.")
        lines += result.whose
    if result.log.unanswered:
        lines.append(
            f"Prompts left out, without an answer or with an empty one: {result.log.unanswered}."
        )
    cut = [answer for answer in found if answer.cut]
    if cut:
        lines.append(f"Cut at their most tokens, so no end token follows: {_answers(cut)}.")
    respelled = [answer for answer in found if answer.respelled]
    if respelled:
        names = ", ".join(answer.id for answer in respelled[:SHOWN])
        lines.append(
            f"Spelled otherwise by this tokenizer, and replayed so: {_answers(respelled)}, such as "
            f"{names}."
        )
    lines += [f"Left out: {sentence}" for sentence in result.log.failed[:SHOWN]]
    more = len(result.log.failed) - SHOWN
    return [*lines, f"Left out: {more} more."] if more > 0 else lines


def _answers(found: Sequence[LoggedAnswer]) -> str:
    return f"{len(found)} answer{'' if len(found) == 1 else 's'}"


# Tables.


def _rows(result: ReplayResult) -> list[tuple[str, str | None]]:
    """Names of rows and their categories; a single category is all answers."""
    categories = result.categories if len(result.categories) > 1 else []
    return [*((name, name) for name in categories), ("all answers", None)]


def _table(draft: str, outcomes: Outcomes, result: ReplayResult) -> list[str]:
    rows = [
        [
            f"{draft}: tokens per round (accepted)",
            *(f"n={max_draft_tokens}" for max_draft_tokens in outcomes),
        ]
    ]
    for name, category in _rows(result):
        rows.append([name, *(_figures(one[category]) for one in outcomes.values())])
    return aligned(rows)


def _figures(outcome: Outcome) -> str:
    if outcome.tokens_per_round is None:
        return "-"
    rate = outcome.acceptance_rate
    return f"{outcome.tokens_per_round:.2f} ({'-' if rate is None else f'{rate:.0%}'})"


def _acceptance(draft: str, outcomes: Outcomes, result: ReplayResult) -> list[str]:
    widest = max(outcomes)
    rows = [[f"{draft}: drafted tokens 1…i all accepted, n={widest}", ""]]
    for name, category in _rows(result):
        shares = outcomes[widest][category].acceptance[:16]
        rows.append([name, " ".join(f"{share:.0%}" for share in shares) or "-"])
    width = max(len(row[0]) for row in rows[1:])
    return [rows[0][0], *(f"{name.ljust(width)}  {shares}" for name, shares in rows[1:])]


def _prices(batch: int, prices: Prices, result: ReplayResult) -> list[str]:
    """A row a policy, a column a category: policies are many, categories few."""
    columns = _rows(result)
    rows = [[f"predicted speedup, batch {batch}", *(name for name, _ in columns)]]
    missing: dict[str, None] = {}
    for spec, by_category in prices.items():
        rows.append([spec, *(_times(by_category[category]) for _, category in columns)])
        missing |= dict.fromkeys(p.missing for p in by_category.values() if p.missing)
    return [*aligned(rows), *missing]


def _times(price: Price) -> str:
    return "-" if price.speedup is None else f"{price.speedup.value:.2f}"
