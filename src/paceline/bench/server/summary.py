"""A run on live servers as text for a terminal: what paid first, then each server's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.bench.server.notes import counter_meanings, notes, rate_words, title, why_none
from paceline.bench.server.result import AGAINST, Asked, Load, ServerResult, Spread, clients_words
from paceline.bench.stats import Ratio
from paceline.bench.wording import aligned, interval_words, verdict
from paceline.monitor.counters import Counters

_POSITIONS = 16


def server_summary(result: ServerResult) -> str:
    """The whole card."""
    lines = [_about(result)]
    for concurrency in result.header.concurrency:
        measured = [s for s in result.servers if result.of(s, concurrency)]
        if not measured:
            continue
        lines += ["", clients_words(concurrency).capitalize()]
        if AGAINST in result.servers:
            lines += [f"  {line}" for line in _comparison(result, concurrency)]
        lines += [f"  {line}" for line in _table(result, concurrency, measured)]
        for server in measured:
            lines += [f"  {line}" for line in _drafts(result, concurrency, server)]
    lines += ["", *_notes(result)]
    return "\n".join(lines)


def _about(result: ServerResult) -> str:
    names = []
    for server in result.servers:
        metadata = result.header.servers[server]
        kind = " ".join(str(metadata[k]) for k in ("server", "version") if metadata.get(k))
        names.append(f"{metadata['url']} ({kind or 'server not told'}, {metadata['model']})")
    against = f"{names[0]}\nagainst {names[1]}" if len(names) > 1 else names[0]
    sampling = result.header.sampling
    how = "greedy" if result.greedy else f"temperature {sampling.get('temperature')}"
    count, name = len(result.header.prompts), result.header.workload.get("name", "")
    return f"{against}\n{count} prompts ({name}), {how}, at most {result.header.max_tokens} tokens"


def _comparison(result: ServerResult, concurrency: int) -> list[str]:
    """Verdict, categories with the worst first, whole answers, texts."""
    beside = result.comparison(concurrency)
    ratio = beside.ratio()
    if ratio is None:
        return ["Nothing was measured on both servers."]
    lines = [f"{_verdict(ratio)} per token after the first."]
    by_category = beside.worst_first()
    if len(by_category) > 1:
        rows = [[name, f"{one.value:.2f}", f"({interval_words(one)})"] for name, one in by_category]
        lines += [f"  {line}" for line in aligned(rows)]
    whole = beside.whole_ratio()
    if whole is not None:
        lines.append(f"Whole answers, waits and reading the prompt included: {_times(whole)}.")
    if beside.equal is None:
        lines.append("Texts are not compared: sampled.")
    else:
        same, pairs = beside.equal
        note = "" if same == pairs else "; a difference may be numeric, it isn't judged here"
        lines.append(f"Text equal on both in {same} of {pairs} prompts{note}.")
    return lines


def _verdict(ratio: Ratio) -> str:
    words = f"{ratio.value:.2f} times as fast as the other ({interval_words(ratio)})"
    said = verdict(ratio)
    return words if said is None else f"{said.capitalize()}: {words}"


def _times(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} times as fast ({interval_words(ratio)})"


def _table(result: ServerResult, concurrency: int, servers: Sequence[str]) -> list[str]:
    """A row a figure, a column a server."""
    loads = [result.load(server, concurrency) for server in servers]
    rows = [["", *(title(server) for server in servers)]]
    stats: dict[str, Callable[[Load], str]] = {
        "answers": lambda load: str(load.requests - load.failed),
        "failed": _failures,
        "tried again": lambda load: str(load.retries),
        "output tokens": lambda load: _number(load.output_tokens, ".0f"),
        "tokens/s": lambda load: _number(load.tok_per_s, ".1f"),
        "ms to first token, median (95 %)": lambda load: _ms(load.ttft_s),
        "ms per token after it, median (95 %)": lambda load: _ms(load.s_per_token, ".1f"),
        "s per answer, median (95 %)": lambda load: _seconds(load.total_s),
        "tokens per piece of the stream": lambda load: _number(load.tokens_per_piece, ".2f"),
    }
    for name, figure in stats.items():
        cells = [figure(load) for load in loads]
        if name != "tried again" or any(cell != "0" for cell in cells):
            rows.append([name, *cells])
    return aligned(rows)


def _failures(load: Load) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in load.failures.items())
    return kinds or "0"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _ms(spread: Spread | None, form: str = ".0f") -> str:
    return "-" if spread is None else f"{1e3 * spread.median:{form}} ({1e3 * spread.p95:{form}})"


def _seconds(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.p95:.2f})"


def _drafts(result: ServerResult, concurrency: int, server: str) -> list[str]:
    """What the server counted of its drafts."""
    counters = result.counters(server, concurrency)
    head = f"drafts, {title(server)}:"
    if counters is not None and counters.has_drafts:
        return [f"{head} {_counted(counters)}", *_by_position(counters)]
    told = result.told_drafts(server, concurrency)
    if told is not None:
        drafted, accepted = told
        return [f"{head} {rate_words(accepted, drafted)} (told with the answers)"]
    return [f"{head} none counted{why_none(result, server, counters)}"]


def _counted(counters: Counters) -> str:
    parts = []
    if counters.drafted is not None and counters.accepted is not None:
        parts.append(rate_words(counters.accepted, counters.drafted))
    if counters.tokens_per_drafted_round is not None:
        parts.append(
            f"{counters.tokens_per_drafted_round:.2f} tokens per drafted round "
            f"({counters.drafts:.0f} rounds)"
        )
    if counters.drafted and counters.accepted is not None and counters.generated:
        parts.append(f"{counters.accepted / counters.generated:.0%} of all tokens came from drafts")
    if counters.tokens_per_round is not None:
        parts.append(f"{counters.tokens_per_round:.2f} tokens per round")
    return "; ".join(parts) or "none in these requests"


def _by_position(counters: Counters) -> list[str]:
    shares = counters.accepted_at
    while shares and not shares[-1]:  # places of a longer draft than was ever accepted
        shares = shares[:-1]
    if not shares:
        return []
    shown = " ".join(f"{share:.0%}" for share in shares[:_POSITIONS])
    more = " …" if len(shares) > _POSITIONS else ""
    return [f"  accepted at position 1, 2 …, of all drafted rounds: {shown}{more}"]


def _notes(result: ServerResult) -> list[str]:
    """What a reader must know, each once."""
    lines = [*counter_meanings(result), *notes(result)]
    lines += [
        f"Left out at {clients_words(n)}: {id}: {why}." for (n, id), why in result.left_out.items()
    ]
    lines += [
        f"Failed: {one.id}, {title(one.server)}: {one.answer.failure}." for one in _failed(result)
    ]
    if not result.complete:
        lines.append("Interrupted: these are the requests so far.")
    return lines


def _failed(result: ServerResult, most: int = 5) -> list[Asked]:
    return [one for one in result.asked if one.answer.failure is not None][:most]
