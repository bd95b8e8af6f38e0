"""A bench of a local model, or a run on live servers, as text for a terminal: which was faster,
where it was slowest, then why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.bench.comparison import Comparison
from paceline.bench.local.result import BenchResult
from paceline.bench.local.run import Described, Run
from paceline.bench.server.notes import counter_meanings, notes, rate_words, title, why_none
from paceline.bench.server.result import AGAINST, ServerResult, Spread, clients_words
from paceline.bench.wording import aligned, interval_words, verdict
from paceline.decode.stats import Stats
from paceline.monitor.counters import Counters
from paceline.policy.stats import PolicyStats

_SLOW = 0.9
_MOST_SLOWDOWNS = 5
_WIDEST = 70  # characters of all columns' names
_POSITIONS = 16
_MOST_FAILURES = 5


def bench_summary(result: BenchResult) -> str:
    """The whole summary of a bench, of what was decoded in all configurations."""
    complete, disturbances, result = result.complete, result.disturbances(), result.finished
    comparisons = result.comparisons()
    rated = [(ratio.value, one) for one in comparisons if (ratio := one.ratio()) is not None]
    rated.sort(key=lambda pair: -pair[0])
    lines = [_headline(one, _baseline(one)) for _, one in rated]
    if not lines and disturbances and not result.runs and complete:
        lines = ["Nothing can be said: other programs disturbed every prompt."]
    lines = lines or ["Nothing was measured both with and without drafts."]
    if disturbances:
        count = f"{len(disturbances)} of {len(result.header.prompts) * result.header.repeats}"
        lines.append(
            f"Other programs disturbed {count} prompts, which are left out. Measure them again on "
            "a quiet machine."
        )
    lines += [line for one in comparisons for line in _worst(one)]
    lines += ["", *_categories(result, comparisons)]
    for configuration in result.drafted:
        if result.runs_of(configuration.name):
            lines += ["", *_details(result, configuration)]
    lines += ["", *_machine(result)]
    lines += [f"Left out: {sentence}" for sentence in result.header.workload.get("skipped", ())]
    lines += [f"Left out: {id}: {reason}" for id, reason in result.failed.items()]
    lines += [f"Left out as disturbed: {sentence}." for sentence in disturbances]
    if not complete:
        lines += ["", "Interrupted: these are the prompts measured so far."]
    return "\n".join(lines)


def server_summary(result: ServerResult) -> str:
    """The whole summary of a run on live servers."""
    lines = _about(result)
    for one, n in zip(_compared(result), result.header.concurrency, strict=True):
        measured = [server for server in result.servers if result.of(server, n)]
        if not measured:
            continue
        lines += ["", clients_words(n).capitalize()]
        parts = [] if one is None else _server_comparison(one)
        parts += aligned(_load_rows(result, n, measured))
        parts += [line for server in measured for line in _server_drafts(result, n, server)]
        lines += [f"  {part}" for part in parts]
    lines += ["", *counter_meanings(result), *notes(result)]
    lines += [
        f"Left out at {clients_words(n)}: {id}: {why}." for (n, id), why in result.left_out.items()
    ]
    failed = [one for one in result.asked if one.answer.failure is not None]
    lines += [
        f"Failed: {one.id}, {title(one.server)}: {one.answer.failure}."
        for one in failed[:_MOST_FAILURES]
    ]
    if not result.complete:
        lines.append("Interrupted: these are the requests so far.")
    return "\n".join(lines)


# What both say of a comparison.


def _headline(one: Comparison, beside: str, name: str | None = None) -> str:
    """A sentence: the verdict, and the speedup with its interval."""
    ratio = one.ratio()
    if ratio is None:
        return f"{name or one.title}: nothing was measured on both."
    said = verdict(ratio)
    words = f"{said}, " if said else ""
    return (
        f"{name or one.title}: {words}{ratio.value:.2f} times as fast as {beside} "
        f"({interval_words(ratio)})."
    )


def _worst(one: Comparison) -> list[str]:
    """The worst category, if there are several, and the prompts that were slowed down."""
    categories, prompts, parts = one.worst_first(), one.prompt_ratios(), []
    if len(categories) > 1:
        category, ratio = categories[0]
        parts.append(f"worst in {category}, {ratio.value:.2f}×")
    slow = sorted((ratio.value, id) for id, ratio in prompts.items() if ratio.value < _SLOW)
    if slow:
        named = ", ".join(f"{id} {value:.2f}×" for value, id in slow[:_MOST_SLOWDOWNS])
        more = ", …" if len(slow) > _MOST_SLOWDOWNS else ""
        parts.append(
            f"slower by a tenth or more in {len(slow)} of {len(prompts)} prompts ({named}{more})"
        )
    return [f"{one.title}: {'; '.join(parts)}."] if parts else []


def _by_position(shares: Sequence[float]) -> str:
    shown = " ".join(f"{share:.0%}" for share in shares[:_POSITIONS])
    return f"{shown} …" if len(shares) > _POSITIONS else shown


# A bench.


def _baseline(one: Comparison) -> str:
    return "ordinary decoding" if one.baseline == "baseline" else one.baseline


def _categories(result: BenchResult, comparisons: Sequence[Comparison]) -> list[str]:
    """Milliseconds per token and speedup: a row a category, a column a configuration. Where
    their names are too long for a terminal, columns have numbers, told below."""
    titles = [one.title for one in result.configurations]
    numbered = sum(len(title) + 2 for title in titles) > _WIDEST
    heads = [f"[{number}]" for number in range(1, len(titles) + 1)] if numbered else titles
    rows = [["TPOT in ms (speedup)", *heads]]
    beside = {one.candidate: one for one in comparisons}
    for category in [*result.categories, None]:
        cells = [
            _cell(result.stats(one.name, category), beside.get(one.name), category)
            for one in result.configurations
        ]
        rows.append([category or "all prompts", *cells])
    lines = aligned(rows)
    if numbered:
        lines += [f"  {head} {title}" for head, title in zip(heads, titles, strict=True)]
    return lines


def _cell(pooled: Stats, beside: Comparison | None, category: str | None) -> str:
    if pooled.ms_per_token is None:
        return "-"
    ratio = None if beside is None else beside.ratio(category)
    return f"{pooled.ms_per_token:.1f}" + (f" ({ratio.value:.2f}×)" if ratio else "")


def _details(result: BenchResult, one: Described) -> list[str]:
    pooled, runs = result.stats(one.name), result.runs_of(one.name)
    lines = [one.title, *_lossy(result, one)]
    if pooled.tokens_per_round is not None:
        lines += _figures(pooled)
    policies = [run.policy_stats for run in runs if run.policy_stats is not None]
    if policies:
        lines.append(f"  policy: {sum(policies, PolicyStats()).sentence()} by its costs")
    return lines + [f"  {sentence}" for sentence in _equality(result, one, runs)]


def _lossy(result: BenchResult, one: Described) -> list[str]:
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


def _figures(pooled: Stats) -> Iterator[str]:
    yield (
        f"  mean accepted length (τ) {pooled.tokens_per_round:.2f} tokens per round; "
        f"{rate_words(pooled.accepted, pooled.proposed)}; "
        f"{pooled.drafted_rounds} of {pooled.rounds} rounds drafted"
    )
    if pooled.acceptance:
        yield f"  drafted tokens 1…i all accepted, by i: {_by_position(pooled.acceptance)}"
    whole = pooled.decode_s or 1.0
    yield (
        f"  time: target {pooled.verify_s / whole:.0%}, draft {pooled.draft_s / whole:.1%}, "
        f"outside forwards {pooled.other_s / whole:.1%} "
        f"({pooled.other_ms_per_round:.2f} ms a round)"
    )


def _equality(result: BenchResult, one: Described, runs: Sequence[Run]) -> list[str]:
    if not one.greedy:
        found = result.two_sample(one.name)
        words = found.sentence() if found else "Too few for a test of their distributions"
        return [f"texts are not compared: sampled. {words}"]
    compared = [run for run in runs if run.equal_to_baseline is not None]
    if not compared:
        return ["texts are not compared: interrupted"]
    equal = sum(bool(run.equal_to_baseline) for run in compared)
    return [
        f"text equals the baseline's in {equal} of {len(compared)} runs",
        *(
            f"  {run.id}: {run.first_difference.sentence(exact=not one.lossy)}"
            for run in compared
            if run.first_difference is not None
        ),
    ]


def _machine(result: BenchResult) -> list[str]:
    """What each baseline takes of the machine, and the most memory that any run had."""
    lines = []
    for one in result.configurations:
        if not one.is_baseline or not result.runs_of(one.name):
            continue
        parts = []
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
        lines.append(f"{one.name}: {'; '.join(parts)}")
    return lines


# Servers.


def _compared(result: ServerResult) -> Sequence[Comparison | None]:
    return result.comparisons() or [None] * len(result.header.concurrency)


def _about(result: ServerResult) -> list[str]:
    names = []
    for server in result.servers:
        metadata = result.header.servers[server]
        kind = " ".join(str(metadata[k]) for k in ("server", "version") if metadata.get(k))
        against = "against " if server == AGAINST else ""
        names.append(
            f"{against}{metadata['url']} ({kind or 'server not told'}, {metadata['model']})"
        )
    temperature = result.header.sampling.get("temperature")
    how = "greedy" if result.greedy else f"temperature {temperature}"
    count, name = len(result.header.prompts), result.header.workload.get("name", "")
    return [*names, f"{count} prompts ({name}), {how}, at most {result.header.max_tokens} tokens"]


def _server_comparison(one: Comparison) -> list[str]:
    """Verdict, categories with the worst first, whole answers, texts."""
    if one.ratio() is None:
        return ["Nothing was measured on both servers."]
    lines = [_headline(one, "the other, per token after the first", "Speedup"), *_worst(one)]
    rows = [
        [name, f"{ratio.value:.2f}×", f"({interval_words(ratio)})"]
        for name, ratio in one.worst_first()
    ]
    if len(rows) > 1:
        lines += [f"  {line}" for line in aligned(rows)]
    whole = one.whole_ratio()
    if whole is not None:
        lines.append(
            "Whole answers, waits and reading the prompt included: "
            f"{whole.value:.2f} times as fast ({interval_words(whole)})."
        )
    if one.equal is None:
        return [*lines, "Texts are not compared: sampled."]
    same, pairs = one.equal
    note = "" if same == pairs else "; a difference may be numeric, it isn't judged here"
    return [*lines, f"Text equal on both in {same} of {pairs} prompts{note}."]


def _load_rows(result: ServerResult, concurrency: int, servers: Sequence[str]) -> list[list[str]]:
    """A row a figure, a column a server."""
    loads = [result.load(server, concurrency) for server in servers]
    failures = [", ".join(f"{n} {kind}" for kind, n in load.failures.items()) for load in loads]
    rows = [
        ["", *(title(server) for server in servers)],
        ["answers", *(str(load.requests - load.failed) for load in loads)],
        ["failed", *(found or "0" for found in failures)],
        ["output tokens", *(_number(load.output_tokens, ".0f") for load in loads)],
        ["tokens per second", *(_number(load.tok_per_s, ".1f") for load in loads)],
        ["TTFT in ms, median (95 %)", *(_spread(load.ttft_s, 1e3, ".0f") for load in loads)],
        ["TPOT in ms, median (95 %)", *(_spread(load.s_per_token, 1e3, ".1f") for load in loads)],
        ["s per answer, median (95 %)", *(_spread(load.total_s, 1, ".2f") for load in loads)],
        [
            "tokens per piece of the stream",
            *(_number(load.tokens_per_piece, ".2f") for load in loads),
        ],
    ]
    if any(load.retries for load in loads):
        rows.insert(3, ["tried again", *(str(load.retries) for load in loads)])
    return rows


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _spread(found: Spread | None, scale: float, form: str) -> str:
    return "-" if found is None else f"{scale * found.median:{form}} ({scale * found.p95:{form}})"


def _server_drafts(result: ServerResult, concurrency: int, server: str) -> list[str]:
    """What the server counted of its drafts."""
    counters = result.counters(server, concurrency)
    head = f"drafts, {title(server)}:"
    if counters is not None and counters.has_drafts:
        lines = [f"{head} {'; '.join(_counted(counters)) or 'none in these requests'}"]
        shares = counters.accepted_at
        while shares and not shares[-1]:  # places of a longer draft than was ever accepted
            shares = shares[:-1]
        if shares:
            words = "accepted at position 1, 2 …, of all drafted rounds"
            lines.append(f"  {words}: {_by_position(shares)}")
        return lines
    told = result.told_drafts(server, concurrency)
    if told is not None:
        drafted, accepted = told
        return [f"{head} {rate_words(accepted, drafted)} (told with the answers)"]
    return [f"{head} none counted{why_none(result, server, counters)}"]


def _counted(counters: Counters) -> Iterator[str]:
    if counters.drafted is not None and counters.accepted is not None:
        yield rate_words(counters.accepted, counters.drafted)
    if counters.tokens_per_drafted_round is not None:
        yield (
            f"mean accepted length (τ) {counters.tokens_per_drafted_round:.2f} tokens per drafted "
            f"round ({counters.drafts:.0f} rounds)"
        )
    if counters.drafted and counters.accepted is not None and counters.generated:
        yield f"{counters.accepted / counters.generated:.0%} of all tokens came from drafts"
    if counters.tokens_per_round is not None:
        yield f"{counters.tokens_per_round:.2f} tokens per round"
