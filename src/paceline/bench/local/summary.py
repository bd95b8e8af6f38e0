"""A bench as text for a terminal: what paid first, where it cost most, then why."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.comparison import Comparison
from paceline.bench.local.divergence import FirstDifference
from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described, Run
from paceline.bench.stats import Ratio
from paceline.bench.wording import aligned, interval_words, verdict
from paceline.decode.stats import Stats
from paceline.policy.stats import PolicyStats

_SLOW = 0.9
_MOST_SLOWDOWNS = 5
_WIDEST = 70  # characters of all columns' names


def card(result: BenchResult) -> str:
    """The whole card, of what was decoded in all configurations."""
    complete, result = result.complete, result.finished
    lines = [*_headlines(result), *_worst(result), ""]
    lines += _table(result)
    for one in result.drafted:
        if result.runs_of(one.name):
            lines += ["", *_details(result, one)]
    lines += ["", *_machine_lines(result)]
    left_out = [*result.header.workload.get("skipped", ()), *_failed(result)]
    lines += [f"Left out: {sentence}" for sentence in left_out]
    if not complete:
        lines += ["", "Interrupted: these are the prompts measured so far."]
    return "\n".join(lines)


def _failed(result: BenchResult) -> list[str]:
    return [f"{id}: {reason}" for id, reason in result.failed.items()]


def _headlines(result: BenchResult) -> list[str]:
    """One sentence a configuration, the fastest first."""
    rated = [
        (ratio, result.configuration(one.candidate))
        for one in result.comparisons()
        if (ratio := one.ratio()) is not None
    ]
    if not rated:
        return ["Nothing was measured both with and without drafts."]
    rated.sort(key=lambda pair: -pair[0].value)
    return [
        f"{one.title}: {_verdict(ratio)} {_baseline(one)} ({interval_words(ratio, _two_places)})."
        for ratio, one in rated
    ]


def _baseline(one: Described) -> str:
    return "ordinary decoding" if one.baseline == "baseline" else one.baseline


def _verdict(ratio: Ratio) -> str:
    known = verdict(ratio)
    return f"{known + ', ' if known else ''}{ratio.value:.2f} times as fast as"


def _two_places(value: float) -> str:
    return f"{value:.2f}"


def _worst(result: BenchResult) -> list[str]:
    """Each configuration's worst category, if there are several, and the prompts that it slowed
    down."""
    lines = []
    for one in result.comparisons():
        by_category, parts = one.worst_first(), []
        if len(by_category) > 1:
            category, ratio = by_category[0]
            parts.append(f"worst in {category}, {ratio.value:.2f}")
        parts += _slowdowns(one)
        if parts:
            lines.append(f"{one.title}: {'; '.join(parts)}.")
    return lines


def _slowdowns(one: Comparison) -> list[str]:
    ratios = one.prompt_ratios()
    slow = sorted((ratio.value, id) for id, ratio in ratios.items() if ratio.value < _SLOW)
    if not slow:
        return []
    named = ", ".join(f"{id} {value:.2f}" for value, id in slow[:_MOST_SLOWDOWNS])
    more = ", …" if len(slow) > _MOST_SLOWDOWNS else ""
    return [f"slower by a tenth or more in {len(slow)} of {len(ratios)} prompts ({named}{more})"]


def _table(result: BenchResult) -> list[str]:
    """Milliseconds per token and speedup: a row a category, a column a configuration. Where
    their names are too long for a terminal, columns have numbers, told below."""
    titles = [one.title for one in result.configurations]
    numbered = sum(len(title) + 2 for title in titles) > _WIDEST
    heads = [f"[{number}]" for number in range(1, len(titles) + 1)] if numbered else titles
    rows = [["ms per token (speedup)", *heads]]
    beside = {one.candidate: one for one in result.comparisons()}
    for category in [*result.categories, None]:
        cells = [
            _cell(result, one, beside.get(one.name), category) for one in result.configurations
        ]
        rows.append([category or "all prompts", *cells])
    lines = aligned(rows)
    if numbered:
        lines += [f"  {head} {title}" for head, title in zip(heads, titles, strict=True)]
    return lines


def _cell(
    result: BenchResult, one: Described, beside: Comparison | None, category: str | None
) -> str:
    pooled = result.stats(one.name, category)
    if pooled.ms_per_token is None:
        return "-"
    text = f"{pooled.ms_per_token:.1f}"
    ratio = None if beside is None else beside.ratio(category)
    return text if ratio is None else f"{text} ({ratio.value:.2f})"


def _details(result: BenchResult, one: Described) -> list[str]:
    pooled, runs = result.stats(one.name), result.runs_of(one.name)
    lines = [one.title, *_lossy_lines(result, one)]
    if pooled.tokens_per_round is not None:
        lines += _figure_lines(pooled)
    all_policy_stats = [run.policy_stats for run in runs if run.policy_stats is not None]
    if all_policy_stats:
        lines.append(f"  policy: {sum(all_policy_stats, PolicyStats()).sentence()} by its costs")
    return lines + [f"  {sentence}" for sentence in _equality(result, one, runs)]


def _lossy_lines(result: BenchResult, one: Described) -> list[str]:
    """What a lossy verifier gives up, and how much of it went."""
    if not one.lossy:
        return []
    lines = [f"  LOSSY ({one.verifier}): gives up {one.gives_up}"]
    far = result.divergence(one.name)
    if far is None:
        return [*lines, "  how far from the target is not measured: the verifier doesn't tell"]
    kl, moved = far.kl_nats_per_token, far.variation_per_token
    return [
        *lines,
        f"  {kl.value:.3g} nats per token from the target "
        f"({interval_words(kl, lambda x: f'{x:.3g}')}), at most {far.largest_kl_nats:.3g} "
        "at a token",
        f"  {moved.value:.1%} of tokens changed ({interval_words(moved, lambda x: f'{x:.1%}')})",
    ]


def _figure_lines(pooled: Stats) -> list[str]:
    rate = (
        "none drafted"
        if pooled.acceptance_rate is None
        else (f"{pooled.acceptance_rate:.0%} of {pooled.proposed} drafted tokens accepted")
    )
    lines = [
        f"  {pooled.tokens_per_round:.2f} tokens per round; {rate}; "
        f"{pooled.drafted_rounds} of {pooled.rounds} rounds drafted"
    ]
    if pooled.acceptance:
        shown = " ".join(f"{share:.0%}" for share in pooled.acceptance[:16])
        more = " …" if len(pooled.acceptance) > 16 else ""
        lines.append(f"  drafted tokens 1…i all accepted, by i: {shown}{more}")
    whole = pooled.decode_s or 1.0
    lines.append(
        f"  time: target {pooled.verify_s / whole:.0%}, draft {pooled.draft_s / whole:.1%}, "
        f"outside forwards {pooled.other_s / whole:.1%} "
        f"({pooled.other_ms_per_round:.2f} ms a round)"
    )
    return lines


def _equality(result: BenchResult, one: Described, runs: Sequence[Run]) -> list[str]:
    if not one.greedy:
        return [f"texts are not compared: sampled. {_distributions(result, one)}"]
    compared = [run for run in runs if run.equal_to_baseline is not None]
    if not compared:
        return ["texts are not compared: interrupted"]
    equal = sum(bool(run.equal_to_baseline) for run in compared)
    return [
        f"text equals the baseline's in {equal} of {len(compared)} runs",
        *(
            f"  {run.id}: {describe(run.first_difference, exact=not one.lossy)}"
            for run in compared
            if run.first_difference is not None
        ),
    ]


def _distributions(result: BenchResult, one: Described) -> str:
    found = result.two_sample(one.name)
    return "Too few for a test of their distributions" if found is None else found.sentence()


def describe(found: FirstDifference, *, exact: bool = True) -> str:
    """A divergence in words. Under a lossy verifier what isn't numeric need be no fault."""
    verdict = found.verdict if exact or found.numeric else "not numeric"
    where = f"differs from output token {found.position} on, {verdict}"
    if found.margin is None:
        return f"{where}: the baseline had ended there"
    return (
        f"{where}: the baseline's top-2 logit gap there is {found.margin:.3g}, width alone moves "
        f"gaps by up to {found.movement:.3g}"
    )


def _machine_lines(result: BenchResult) -> list[str]:
    """What each baseline takes of the machine, and the most memory that any run had."""
    lines = []
    for one in result.configurations:
        if not one.is_baseline or not result.runs_of(one.name):
            continue
        parts = [one.name]
        speed, bound = result.bytes_per_s(one.name), result.header.bandwidth_bytes_per_s
        if speed is not None:
            share = f", {speed / bound:.0%} of what memory gives" if bound else ""
            parts.append(f"reads {speed / 1e9:.1f} GB of the target a second{share}")
        cpu_s = result.cpu_s(one.name)
        if cpu_s is not None:
            parts.append(f"{cpu_s:.1f} s of processor time")
        peaks = [result.peak_memory_bytes(c.name) for c in result.configurations]
        known = [peak for peak in peaks if peak is not None]
        if known:
            parts.append(f"at most {max(known) / 1e9:.2f} GB of memory in any run")
        lines.append(": ".join([parts[0], "; ".join(parts[1:])]))
    return lines
