"""The sections of one run file, in the order in which a sceptical reader asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.bench.local.run import Described
from paceline.bench.stats import FEW_PROMPTS, Ratio
from paceline.report import round_plots, speed_plots
from paceline.report.document import (
    BEST,
    FAULT,
    SLOWER,
    UNCLEAR,
    Block,
    Cell,
    Paragraph,
    Part,
    Section,
    Table,
    section,
)
from paceline.report.measured import how_measured, resources
from paceline.report.samples import samples
from paceline.report.summary import Group, Summary, is_slower, is_unclear
from paceline.report.texts import same_text
from paceline.report.verdict import slower_sentence, verdicts
from paceline.report.widths import policies, width_cost
from paceline.report.words import (
    count,
    interval,
    name_cell,
    number,
    scope_words,
    short_times,
    times,
)

_INTERVALS = (
    "Times plain are plain milliseconds per token over drafted ones, sums over sums; above 1 the "
    "draft paid. Intervals are 95 % ones, by a paired bootstrap over prompts."
)


def part_of(summary: Summary) -> Part:
    found = [Section("Verdict", tuple(_verdict(summary)))]
    if summary.result.runs:
        several = len(summary.groups) > 1
        for group in summary.groups:
            found += [
                Section(f"{one.title} – against {group.baseline.name}", one.blocks)
                if several
                else one
                for one in _of_group(summary, group)
            ]
        found += [one for one in (resources(summary),) if one is not None]
    return Part(summary.source, (*found, how_measured(summary)))


def _verdict(summary: Summary) -> Iterator[Block]:
    for verdict in verdicts(summary):
        yield Paragraph(verdict.sentence, "lead")
        for doubt in verdict.doubts:
            yield Paragraph(doubt, "warning")


def _of_group(summary: Summary, group: Group) -> list[Section]:
    drawn: list[tuple[str, Sequence[Block | None]]] = [
        ("The worst, first", [_worst(summary, group), _slowdowns(summary, group)]),
        (
            "Which draft for which category",
            [_by_category(summary, group), _few(summary, group)],
        ),
        ("Speed-up", [speed_plots.speed_up(summary, group), _speed_note(summary, group)]),
        ("Is the text the same?", same_text(summary, group)),
        ("Acceptance by position", [round_plots.acceptance(summary, group)]),
        ("Tokens per round", [round_plots.tokens_per_round(summary, group)]),
        ("What width costs", [width_cost(summary, group), *policies(summary, group)]),
        ("Break-even", [speed_plots.break_even(summary, group)]),
        ("Where the time goes", [speed_plots.time_split(summary, group)]),
        ("Sample texts", [samples(summary, group)]),
    ]
    return [one for title, blocks in drawn if (one := section(title, blocks)) is not None]


def _worst(summary: Summary, group: Group) -> Table | None:
    found = [
        (one, worst)
        for one, _ in summary.rated(group)
        if (worst := summary.worst(one.name)) is not None
    ]
    if not found:
        return None
    rows = [
        (
            _name(summary, one),
            category,
            Cell(f"{ratio.value:.2f}×", interval(ratio), _marks(ratio)),
            slower_sentence(summary, one),
        )
        for one, (category, ratio) in sorted(found, key=lambda each: each[1][1].value)
    ]
    head = ("configuration", "worst category", "speedup there", "prompts slower than plain")
    return Table(head, tuple(rows), "Each configuration where it does worst", words=2)


def _name(summary: Summary, one: Described) -> Cell:
    return name_cell(one, *((FAULT,) if summary.faults(one.name) else ()))


def _marks(ratio: Ratio) -> tuple[str, ...]:
    if is_slower(ratio):
        return (SLOWER,)
    return (UNCLEAR,) if is_unclear(ratio) else ()


def _slowdowns(summary: Summary, group: Group) -> Paragraph | None:
    """All categories in which a configuration is clearly slower, the worst first; None where the
    table of the worst says the same."""
    if not summary.rated(group):
        return None
    found = sorted(
        (ratio.value, one.name, category, ratio)
        for one in group.drafted
        for category in summary.categories
        if (ratio := summary.ratio(one.name, category)) is not None and is_slower(ratio)
    )
    if not found:
        return Paragraph("No configuration is clearly slower than plain decoding in any category.")
    if len({name for _, name, _, _ in found}) == len(found):
        return None
    words = [f"{name} in {category} ({short_times(ratio)})" for _, name, category, ratio in found]
    return Paragraph(f"Slower than plain decoding: {'; '.join(words)}.", "warning")


def _by_category(summary: Summary, group: Group) -> Table | None:
    if all(summary.stats(one.name).ms_per_token is None for one in group.every):
        return None
    rows = [
        (
            Cell(scope_words(scope), _prompts(summary, group, scope)),
            *(_cell(summary, group, one, scope) for one in group.every),
        )
        for scope in summary.scopes
    ]
    head: tuple[str | Cell, ...] = ("category", *(_name(summary, one) for one in group.every))
    return Table(head, tuple(rows), "Milliseconds per token, and speedup with its 95 % interval")


def _few(summary: Summary, group: Group) -> Paragraph | None:
    amounts = [_amount(summary, group, category) for category in summary.categories]
    if not group.drafted or not any(1 < amount < FEW_PROMPTS for amount in amounts):
        return None
    return Paragraph(f"Intervals of fewer than {FEW_PROMPTS} prompts are too narrow.")


def _amount(summary: Summary, group: Group, scope: str | None) -> int:
    return len({run.id for run in summary.runs(group.baseline.name, scope)})


def _prompts(summary: Summary, group: Group, scope: str | None) -> str:
    return count(_amount(summary, group, scope), "prompt")


def _cell(summary: Summary, group: Group, one: Described, scope: str | None) -> Cell:
    ms = summary.stats(one.name, scope).ms_per_token
    ratio = None if one.is_baseline else summary.ratio(one.name, scope)
    marks = [BEST] if summary.best(group, scope) == one.name else []
    if ratio is not None:
        marks += _marks(ratio)
    return Cell(number(ms, ".2f", " ms"), "" if ratio is None else times(ratio), tuple(marks))


def _speed_note(summary: Summary, group: Group) -> Paragraph | None:
    return Paragraph(_INTERVALS) if summary.rated(group) else None
