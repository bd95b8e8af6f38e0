"""A window and its verdict as text of at most 80 columns, and as one JSON document."""

from __future__ import annotations

import textwrap
import time
from typing import Any

from paceline.monitor.verdict import WatchVerdict
from paceline.monitor.window import Window

COLUMNS = 80
_LABEL = 11


def block(window: Window, verdict: WatchVerdict | None) -> str:
    """A few lines. Without a verdict: a window that is recorded as it is."""
    clock = time.strftime("%H:%M:%S", time.localtime(window.started + window.seconds))
    head = f"{clock}  {'recorded' if verdict is None else _title(verdict)}"
    lines = [f"{head:<{COLUMNS - 10}}{window.seconds:>8.0f} s"]
    parts = {
        "load": _load(window),
        "rounds": _rounds(window),
        "accepted": _accepted(window),
        "time": _times(window, verdict),
    }
    if verdict is not None:
        parts |= {"why": " ".join(verdict.why), "change": verdict.change or ""}
        parts["note"] = " ".join(verdict.notes)
    wrapper = textwrap.TextWrapper(COLUMNS, subsequent_indent=" " * _LABEL, break_on_hyphens=False)
    for label, text in parts.items():
        lines += wrapper.wrap(f"{f'  {label}':<{_LABEL}}{text}" if text else "")
    return "\n".join(lines)


def warning(text: str) -> str:
    """What happened between windows."""
    clock = time.strftime("%H:%M:%S", time.localtime())
    return "\n".join(textwrap.wrap(f"{clock}  {text}", COLUMNS, subsequent_indent=" " * 10))


def document(window: Window, verdict: WatchVerdict | None) -> dict[str, Any]:
    """Everything of a window; None is what isn't known."""
    total, drafted = window.total, window.tokens_a_drafted_round
    speedup = verdict and verdict.speedup
    return {
        "event": "window",
        "started": window.started,
        "seconds": window.seconds,
        "server": window.server,
        "load": window.load,
        "running": window.running,
        "waiting": window.waiting,
        "tokens": window.tokens,
        "speedup": speedup and speedup.value,
        "drafted_rounds": total.drafts,
        "rounds": window.rounds,
        "tokens_per_round": window.tokens_per_round,
        "tokens_per_drafted_round": total.tokens_per_drafted_round,
        "tokens_per_drafted_round_95": drafted and [drafted.low, drafted.high],
        "acceptance_rate": total.acceptance_rate,
        "accepted_at": list(total.accepted_at),
        "seconds_per_token": total.s_per_token,
        "baseline_seconds_per_token": verdict and verdict.baseline_s,
        "recent": dict(total.recent),
        "counters": total.as_json(),
        "verdict": verdict and verdict.as_json(),
    }


def _title(verdict: WatchVerdict) -> str:
    one = verdict.speedup
    if one is None:
        return verdict.state
    return f"{verdict.state}: speedup {one.value:.2f}× ({one.low:.2f} to {one.high:.2f})"


def _load(window: Window) -> str:
    if window.tokens == 0:
        return "no tokens were counted."
    parts = []
    if window.load is not None:
        each = "" if window.workers == 1 else f" on each of {window.workers} workers"
        parts.append(f"{window.load:.1f} at once{each}")
    if window.waiting:
        parts.append(f"{window.waiting:.1f} waiting")
    if window.tokens is not None:
        parts.append(f"{window.tokens:,.0f} tokens, {window.tokens / window.seconds:.1f} a second")
    return f"{', '.join(parts) or 'not counted'}."


def _rounds(window: Window) -> str:
    total, rounds, per_round = window.total, window.rounds, window.tokens_per_round
    if not total.has_drafts:
        return "no drafts counted."
    if total.drafts is None:
        counted = "" if total.steps is None else f"{total.steps:,.0f} verified"
        each = "" if per_round is None else f"{per_round:.2f} tokens each"
        return f"{', '.join(part for part in (counted, each) if part)}."
    told = f"{total.drafts:,.0f} with a draft"
    if total.tokens_per_drafted_round is not None:
        told += f", {total.tokens_per_drafted_round:.2f} tokens each"
    if rounds is not None and per_round is not None and rounds > total.drafts:
        told += f"; {rounds:,.0f} in all, {per_round:.2f} tokens each"
    return f"{told}."


def _accepted(window: Window) -> str:
    total = window.total
    if total.acceptance_rate is None:
        recent = total.recent.get("tokens_per_round")
        return f"its gauge of now: {recent:.2f} tokens per round." if recent else ""
    text = f"{total.acceptance_rate:.0%} of {total.drafted:,.0f}"
    if total.accepted_at:
        shown = [f"{100 * share:.0f}" for share in total.accepted_at[:16]]
        more = " …" if len(total.accepted_at) > 16 else ""
        text += f"; by position {' '.join(shown)}{more} %"
    return f"{text}."


def _times(window: Window, verdict: WatchVerdict | None) -> str:
    if window.total.s_per_token is None:
        return ""
    text = f"{1e3 * window.total.s_per_token:.2f} ms a token"
    if verdict is not None and verdict.baseline_s:
        text += f"; {1e3 * verdict.baseline_s:.2f} without drafts"
    return f"{text}."
