"""Read a live server again and again: windows, and what happens between them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from paceline.errors import ServerError, SettingError
from paceline.monitor.dialects import (
    DIALECTS,
    STARTED,
    UNKNOWN_SERVER,
    WANTED,
    dialect_named,
    dialect_of,
)
from paceline.monitor.scrape import CutOff, Metrics, NoMetrics, scrape
from paceline.monitor.spread import LEAST_PARTS
from paceline.monitor.window import Scrape, Window, break_between, scrape_of, window_of

if TYPE_CHECKING:
    import httpx

_METRICS = ("/metrics", "/prometheus/metrics")  # the second: trtllm-serve, whose first is JSON
_TURN_ON = (
    "llama.cpp: --metrics. SGLang: --enable-metrics. TensorRT-LLM: enable_iter_perf_stats and "
    "return_perf_metrics. Dynamo: a worker's DYN_SYSTEM_PORT."
)


@dataclass(frozen=True)
class MetricsSource:
    """Where a deployment's metrics are: a page, or one for each worker. A context manager: one HTTP
    client serves all scrapes.

    headers    of every request, such as an authorisation
    labels     only series with these labels
    """

    pages: tuple[str, ...]
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _ = self._client  # takes a while, which no scrape's time should hold

    def read(self) -> Scrape:
        """Raises ServerError for a page that can't be had, is cut off, or is of no server known,
        and SettingError for one of several models where none was chosen."""
        started = time.monotonic()
        pages = list(self._pool.map(self._metrics, self.pages))
        half = (time.monotonic() - started) / 2
        return scrape_of(pages, started + half, time.time() - half, self.model, self.labels)

    def check(self) -> Scrape:
        """A first scrape. Raises SettingError also for a model or a label that no page has: later
        they may be missing for a while, as after a restart."""
        wanted = dict(self.labels)
        if self.model is not None:
            wanted["model_name"] = self.model
        for url in self.pages:
            metrics = self._metrics(url)
            prefixes = (dialect_of(metrics) or UNKNOWN_SERVER).prefixes
            for label, value in wanted.items():
                values = metrics.values_of(label, prefixes)
                if value not in values:
                    told = ", ".join(sorted(values)) or "on none"
                    raise SettingError(
                        f"{url} has no series with {label}={value}; {label} is {told}.",
                        "Name one that is there.",
                    )
        return self.read()

    def refuse_without_drafts(self, first: Scrape) -> None:
        """A vLLM that can't be drafting is named at once, not after a window."""
        if first.counters.server == "vLLM" and not first.counters.has_drafts:
            raise SettingError(
                f"{self.pages[0]} counts no drafts.",
                f"{dialect_named('vLLM').turn_on} To record it as a baseline: --record FILE.",
            )

    def _metrics(self, url: str) -> Metrics:
        metrics = scrape(
            url,
            headers=self.headers,
            timeout_s=self.timeout_s,
            wanted=WANTED,
            client=self._client,
        )
        if dialect_of(metrics) is None:
            names = ", ".join(sorted(metrics.names - {STARTED})[:3]) or "none"
            known = ", ".join(dialect.server for dialect in DIALECTS)
            raise ServerError(
                f"{url} is the page of no server that Paceline knows; it has {names} and the like.",
                f"Known: {known}, and Dynamo's workers of these (their own port, not the "
                "frontend's).",
            )
        return metrics

    @cached_property
    def _client(self) -> httpx.Client:
        return _new_client()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(len(self.pages))

    def close(self) -> None:
        """Closing twice does nothing."""
        self._client.close()
        self._pool.shutdown()

    def __enter__(self) -> MetricsSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _new_client() -> httpx.Client:
    import httpx

    # No connection is kept: a server would drop it between two scrapes, perhaps just as it is used.
    return httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def refuse_another_model(
    ours: Sequence[str], its: Sequence[str], baseline: str, named: str | None
) -> None:
    """Names are compared where both sides tell them; `named` says what it is called there."""
    wanted = ours if named is None else (named,)
    if ours and its and set(wanted) != set(its):
        raise SettingError(
            f"The baseline {baseline} is of {', '.join(its)}, and this is {', '.join(wanted)}.",
            "Give one of the same model; if it only has another name there: --baseline-model NAME.",
        )


def find_metrics(
    urls: Sequence[str], *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0
) -> tuple[str, ...]:
    """Each server's page of metrics: what was named if that has a path, else where servers have
    it.

    Raises ServerError where nobody answers or nothing there is a page of metrics.
    """
    with _new_client() as client:
        return tuple(_find(url, headers or {}, timeout_s, client) for url in urls)


def _find(url: str, headers: Mapping[str, str], timeout_s: float, client: httpx.Client) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    path = parts.path.rstrip("/")
    root = (parts.scheme, parts.netloc)
    if path not in ("", "/v1"):
        return urlunsplit((*root, path, parts.query, ""))
    fact = ""
    for metrics in (urlunsplit((*root, one, "", "")) for one in _METRICS):
        try:
            scrape(metrics, headers=headers, timeout_s=timeout_s, wanted=WANTED, client=client)
        except NoMetrics as error:
            fact = fact or error.fact
        else:
            return metrics
    raise ServerError(fact, f"Give the page's whole address, or turn it on. {_TURN_ON}")


@dataclass(frozen=True, slots=True)
class WatchedWindow:
    """A whole window, with the control server's of the same time if there is one."""

    window: Window
    control: Window | None = None


Watched = WatchedWindow | str
"""What `watch` gives: a window, or a sentence about what happened."""


def watch(
    source: MetricsSource,
    *,
    control: MetricsSource | None = None,
    window_s: float,
    interval_s: float,
    patience_s: float = math.inf,
    stop: threading.Event | None = None,
) -> Iterator[Watched]:
    """Windows, one after another without a gap, until `stop` is set or patience ends.

    control      the same server without drafts, read at the same moments
    window_s     least seconds of a window
    interval_s   between two scrapes; a window has window_s / interval_s of them, and its spread
                 is seen by them
    patience_s   most seconds without a whole window; after them a sentence says so, and it ends

    A server that doesn't answer for a while, a page cut off, and counters that went backwards are
    told as sentences; after the last of these the window begins anew. The first scrape must
    succeed: raises ServerError or SettingError.
    """
    stop = stop or threading.Event()
    sources = (source,) if control is None else (source, control)
    with ThreadPoolExecutor(len(sources)) as pool:
        opened = _OpenWindow(sources, pool)
        yield from opened.missing()
        due = closed = time.monotonic()
        while True:
            due = max(due + interval_s, time.monotonic())
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            yield from opened.read()
            if opened.seconds >= window_s and opened.parts >= LEAST_PARTS:
                yield opened.close()
                closed = time.monotonic()
            elif (waited := time.monotonic() - closed) > patience_s:
                yield f"No whole window came in {waited:,.0f} s: it is given up."
                return


class _OpenWindow:
    """Scrapes of the window that is open, of a server and perhaps its control."""

    def __init__(self, sources: Sequence[MetricsSource], pool: ThreadPoolExecutor) -> None:
        self.sources, self.pool = sources, pool
        first = list(pool.map(MetricsSource.read, sources))
        self.scrapes = [[one] for one in first]
        self.known = [set(one.series) for one in first]
        self.silent = False

    @property
    def seconds(self) -> float:
        return self.scrapes[0][-1].at_s - self.scrapes[0][0].at_s

    @property
    def parts(self) -> int:
        return len(self.scrapes[0]) - 1

    def missing(self) -> Iterator[str]:
        """What the first page lacks."""
        counters = self.scrapes[0][0].counters
        if not counters.has_drafts:
            turn_on = dialect_named(counters.server).turn_on
            yield f"{self.sources[0].pages[0]} counts no drafts. {turn_on}"

    def read(self) -> Iterator[str]:
        try:
            found = list(self.pool.map(MetricsSource.read, self.sources))
        except CutOff as error:
            yield f"{error.fact} That scrape is left out."
            return
        except ServerError as error:
            if not self.silent:
                yield f"{error.fact} Scrapes are left out until it answers."
            self.silent = True
            return
        if self.silent:
            yield "It answers again."
        self.silent = False
        reasons = [
            break_between(old[-1], new, known)
            for old, new, known in zip(self.scrapes, found, self.known, strict=True)
        ]
        for one, known in zip(found, self.known, strict=True):
            known |= one.series.keys()
        if any(reasons):
            reason = reasons[0] or f"of the baseline, {reasons[1]}"
            yield f"Counts can't be compared: {reason}. The window is dropped."
            self.scrapes = [[one] for one in found]
            return
        for scrapes, one in zip(self.scrapes, found, strict=True):
            scrapes.append(one)

    def close(self) -> WatchedWindow:
        windows = [window_of(scrapes) for scrapes in self.scrapes]
        self.scrapes = [scrapes[-1:] for scrapes in self.scrapes]
        return WatchedWindow(windows[0], windows[1] if len(windows) > 1 else None)
