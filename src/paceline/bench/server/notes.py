"""What a reader of a run on live servers must know beside its figures, a sentence each."""

from __future__ import annotations

from paceline.bench.server.result import AGAINST, FIRST, ServerResult, clients_words
from paceline.monitor.counters import Counters
from paceline.monitor.dialects import dialect_named


def title(server: str) -> str:
    """A server as sentences call it."""
    return {FIRST: "endpoint", AGAINST: "the other"}[server]


def rate_words(accepted: float, drafted: float) -> str:
    """The acceptance rate in words."""
    if not drafted:
        return "none drafted"
    return f"acceptance rate {accepted / drafted:.0%} of {drafted:.0f} drafted tokens"


def counter_meanings(result: ServerResult) -> list[str]:
    """What the servers' counters of drafts are, for each kind of server."""
    kinds = dict.fromkeys(
        counters.server
        for n in result.header.concurrency
        for server in result.servers
        if (counters := result.counters(server, n)) is not None and counters.has_drafts
    )
    return [sentence for kind in kinds for sentence in dialect_named(kind).says]


def why_none(result: ServerResult, server: str, counters: Counters | None) -> str:
    """Why a server counted no drafts, to follow "none counted"."""
    if counters is not None:
        return " by this server"
    if any(s.restarted for s in result.segments if s.server == server):
        return ": the server restarted meanwhile"
    reason = result.header.servers[server].get("no_metrics")
    return f": {str(reason).rstrip('.')}" if reason else ""


def notes(result: ServerResult) -> list[str]:
    """What makes figures mean less than they seem to."""
    lines = [line for server in result.servers for line in _server_notes(result, server)]
    if any(one.later_turn for one in result.asked):
        lines.append(
            "Later turns are asked after the endpoint's own answer, of both servers alike; they "
            "are left out of times to the first token, which a cached beginning shortens."
        )
    if len(result.header.concurrency) > 1:
        lines.append(
            "A prompt that a server has seen before may be in its cache: times to the first token "
            "hold for the first number of clients only."
        )
    elif result.header.workload.get("repeated"):
        lines.append("Some prompts are the same: the server's cache shortens their reading.")
    return lines


def _server_notes(result: ServerResult, server: str) -> list[str]:
    lines = []
    asked = [one.answer for one in result.asked if one.server == server and not one.answer.failure]
    title = {FIRST: "endpoint", AGAINST: "other server"}[server]
    if any(not answer.streamed for answer in asked):
        lines.append(f"The {title} does not stream: only whole answers are timed.")
    pieces, arrivals = sum(a.pieces for a in asked), sum(a.arrivals for a in asked)
    if arrivals < pieces / 2:
        lines.append(
            f"The {title}'s pieces came {pieces / arrivals:.1f} at a time: something on the way "
            "bundles them, and times to and after the first token are those of bundles."
        )
    if any(answer.output_tokens is None for answer in asked):
        lines.append(f"The {title} does not count its tokens: no time per token, no tokens/s.")
    again = [answer for answer in asked if answer.retries]
    if again:
        waited_s = sum(answer.waited_s for answer in again)
        lines.append(
            f"The {title} refused {len(again)} of its answered requests at first, which then "
            f"waited {waited_s:.1f} s: that is in the time of whole answers; times to and after "
            "the first token are of the attempt that was answered."
        )
    cached = sum(answer.cached_tokens or 0 for answer in asked)
    if cached:
        lines.append(f"The {title} had {cached} prompt tokens in its cache.")
    for n in result.header.concurrency:
        load = result.load(server, n)
        others = load.other_tokens or 0
        if others > max(0.01 * (load.output_tokens or 0), 1):
            lines.append(
                f"The {title} generated {others:.0f} more tokens than these requests with "
                f"{clients_words(n)}: someone else used it, and its counters hold that too."
            )
    return lines
