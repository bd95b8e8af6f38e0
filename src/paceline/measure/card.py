"""A bench as text for a terminal: what paid first, then why."""

from __future__ import annotations

from paceline.decode.figures import Figures, figures
from paceline.economics.account import Account
from paceline.measure.bench import PLAIN, BenchResult, Configuration, Run
from paceline.measure.divergence import Divergence
from paceline.measure.stats import Ratio


def card(result: BenchResult) -> str:
    """The whole card."""
    lines = [*_headlines(result), ""]
    lines += _table(result)
    for configuration in result.configurations:
        if configuration.name != PLAIN and result.runs_of(configuration.name):
            lines += ["", *_details(result, configuration)]
    lines += [f"Left out: {sentence}" for sentence in (*result.workload.skipped, *result.failed)]
    if not result.complete:
        lines += ["", "Interrupted: these are the prompts measured so far."]
    return "\n".join(lines)


def _headlines(result: BenchResult) -> list[str]:
    """One sentence a configuration, the fastest first."""
    drafted = [c for c in result.configurations if c.name != PLAIN]
    rated = [(ratio, c.title) for c in drafted if (ratio := result.ratio(c.name)) is not None]
    if not rated:
        return ["Nothing was measured in both plain and drafted decoding."]
    rated.sort(key=lambda pair: -pair[0].value)
    return [
        f"{title}: {_verdict(ratio)} plain decoding ({_interval(ratio.low, ratio.high)})."
        for ratio, title in rated
    ]


def _verdict(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f} times as fast as"
    if ratio.low > 1:
        return f"it paid, {ratio.value:.2f} times as fast as"
    if ratio.high < 1:
        return f"it did not pay, {ratio.value:.2f} times as fast as"
    return f"no clear difference, {ratio.value:.2f} times as fast as"


def _interval(low: float | None, high: float | None, form: str = ".2f") -> str:
    if low is None or high is None:
        return "one prompt: no interval"
    return f"95 % interval {low:{form}} to {high:{form}}"


def _table(result: BenchResult) -> list[str]:
    """Milliseconds per token and times plain: a row a category, a column a configuration."""
    names = [c.name for c in result.configurations]
    rows = [["ms per token (times plain)", *(c.title for c in result.configurations)]]
    for category in [*result.categories, None]:
        cells = [_cell(result, name, category) for name in names]
        rows.append([category or "all prompts", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_line(row, widths) for row in rows]


def _line(row: list[str], widths: list[int]) -> str:
    first, *rest = (
        cell.ljust(w) if i == 0 else cell.rjust(w)
        for i, (cell, w) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def _cell(result: BenchResult, name: str, category: str | None) -> str:
    pooled = figures(result.rounds_of(name, category))
    if pooled.ms_per_token is None:
        return "-"
    text = f"{pooled.ms_per_token:.1f}"
    ratio = None if name == PLAIN else result.ratio(name, category)
    return text if ratio is None else f"{text} ({ratio.value:.2f})"


def _details(result: BenchResult, configuration: Configuration) -> list[str]:
    name = configuration.name
    pooled = figures(result.rounds_of(name))
    lines = [configuration.title, *_lossy_lines(result, configuration)]
    if pooled.tokens_per_round is not None:
        lines += _figure_lines(pooled)
    accounts = [run.account for run in result.runs_of(name) if run.account is not None]
    if accounts:
        lines.append(f"  policy: {sum(accounts, Account()).sentence()} by its costs")
    exact = not configuration.lossy
    lines += [f"  {sentence}" for sentence in _equality(result.runs_of(name), exact)]
    return lines


def _lossy_lines(result: BenchResult, configuration: Configuration) -> list[str]:
    """What a lossy verifier gives up, and how much of it went."""
    if not configuration.lossy:
        return []
    lines = [f"  LOSSY ({configuration.lossy}): gives up {configuration.gives_up}"]
    far = result.departure(configuration.name)
    if far is None:
        return [*lines, "  how far from the target is not measured: the verifier doesn't tell"]
    kl, moved = far.kl_nats_per_token, far.variation_per_token
    return [
        *lines,
        f"  {kl.value:.3g} nats per token from the target ({_interval(kl.low, kl.high, '.3g')}), "
        f"at most {far.largest_kl_nats:.3g} at a token",
        f"  {moved.value:.1%} of tokens changed ({_interval(moved.low, moved.high, '.1%')})",
    ]


def _figure_lines(pooled: Figures) -> list[str]:
    rate = (
        "none drafted"
        if pooled.acceptance_rate is None
        else (f"{pooled.acceptance_rate:.0%} of {pooled.proposed} drafted tokens accepted")
    )
    lines = [
        f"  {pooled.tokens_per_round:.2f} tokens per round; {rate}; "
        f"{pooled.drafted_rounds} of {pooled.rounds} rounds drafted"
    ]
    if pooled.survival:
        shown = " ".join(f"{share:.0%}" for share in pooled.survival[:16])
        more = " …" if len(pooled.survival) > 16 else ""
        lines.append(f"  drafted tokens 1…i all accepted, by i: {shown}{more}")
    whole = pooled.decode_s or 1.0
    lines.append(
        f"  time: target {pooled.verify_s / whole:.0%}, draft {pooled.draft_s / whole:.1%}, "
        f"outside forwards {pooled.other_s / whole:.1%} "
        f"({pooled.other_ms_per_round:.2f} ms a round)"
    )
    return lines


def _equality(runs: list[Run], exact: bool) -> list[str]:
    compared = [run for run in runs if run.equal_to_plain is not None]
    if not compared:
        return ["texts are not compared: sampled"]
    equal = sum(bool(run.equal_to_plain) for run in compared)
    lines = [f"text equal to plain in {equal} of {len(compared)} runs"]
    for run in compared:
        if run.divergence is not None:
            d = run.divergence
            lines.append(f"  {run.prompt.id}: {describe(d, exact=exact)}")
    return lines


def describe(found: Divergence, *, exact: bool = True) -> str:
    """A divergence in words. Under a lossy verifier what isn't numeric need be no fault."""
    verdict = found.verdict if exact or found.numeric else "not numeric"
    where = f"differs from output token {found.position} on, {verdict}"
    if found.margin is None:
        return f"{where}: plain had ended there"
    return (
        f"{where}: plain's top-2 logit gap there is {found.margin:.3g}, width alone moves gaps by "
        f"up to {found.movement:.3g}"
    )
