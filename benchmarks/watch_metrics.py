"""Milliseconds from the text of a page of counters to a verdict, at 5,000 series and more.

The page is a real one of vLLM 0.32 (data/vllm-0.32-page.txt), its series given to as many engines
as it takes. The same page is read in whole by prometheus_client too, which is what this avoids.

    python benchmarks/watch_metrics.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

from common import HERE, write

from paceline.monitor.counters import Counters
from paceline.monitor.dialects import WANTED
from paceline.monitor.scrape import parse_metrics
from paceline.monitor.text import block
from paceline.monitor.verdict import judge
from paceline.monitor.window import Scrape, scrape_of, window_of
from paceline.plan.document import Expected, Measurement, PlanDocument, PlannedDraft, Target

PAGE = HERE / "data" / "vllm-0.32-page.txt"
PLAN = PlanDocument(
    target=Target(name="t", engine="vllm"),
    draft=PlannedDraft(kind="ngram", name="ngram"),
    max_draft_tokens=4,
    expected=Expected(acceptance_at=(0.9, 0.8, 0.7, 0.6), break_even_tokens=1.6),
    measured=Measurement(source="endpoint"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", default="459,5000,20000")
    parser.add_argument("--times", type=int, default=15)
    args = parser.parse_args()
    result = {}
    for least in map(int, args.series.split(",")):
        text, engines = page_of(least)
        series = sum(not line.startswith("#") for line in text.splitlines())
        earlier = scrapes(text)
        ours = timed(lambda text=text, earlier=earlier: judged(text, earlier), args.times)
        whole = timed(lambda text=text: parse_metrics(text), max(3, args.times // 5))
        result[series] = {
            "engines": engines,
            "bytes": len(text),
            "parsed_and_judged_ms": ours,
            "parsed_in_whole_by_prometheus_client_ms": whole,
        }
        print(series, "series:", result[series])
    write("watch-page", {"metrics": PAGE.name, "series": result})


def page_of(least: int) -> tuple[str, int]:
    """A page of at least so many series, and how many engines it took."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    once = sum(not line.startswith("#") and 'engine="0"' not in line for line in lines)
    each = sum('engine="0"' in line for line in lines)
    engines = max(1, -(-(least - once) // each))
    out = []
    for line in lines:
        out += (
            [line.replace('engine="0"', f'engine="{n}"') for n in range(engines)]
            if 'engine="0"' in line
            else [line]
        )
    return "\n".join(out) + "\n", engines


def scrapes(text: str) -> list[Scrape]:
    """Twelve that went before, each with a twelfth of what the page counts."""
    last = scrape_of([parse_metrics(text, WANTED)], 60.0, 60.0)
    return [
        replace(
            last, at_s=5.0 * n, clock_s=5.0 * n, counters=scaled(last.counters, n / 12), series={}
        )
        for n in range(12)
    ]


def scaled(counters: Counters, share: float) -> Counters:
    return Counters.from_json(
        {
            key: tuple(share * v for v in value)
            if isinstance(value, tuple)
            else share * value
            if isinstance(value, float)
            else value
            for key, value in counters.as_json().items()
        }
    )


def judged(text: str, earlier: list[Scrape]) -> str:
    """What the watch does when the last page of a window arrives."""
    scrape = scrape_of([parse_metrics(text, WANTED)], 60.0, 60.0)
    window = window_of([*earlier, scrape])
    baseline = replace(window, total=replace(window.total, drafted=None, accepted=None))
    return block(window, judge(window, plan=PLAN, baseline=[baseline]))


def timed(what: Callable[[], Any], times: int) -> dict[str, float]:
    what()
    taken = []
    for _ in range(times):
        started = perf_counter()
        what()
        taken.append(1e3 * (perf_counter() - started))
    return {"median": round(median(taken), 2), "worst": round(max(taken), 2)}


if __name__ == "__main__":
    main()
