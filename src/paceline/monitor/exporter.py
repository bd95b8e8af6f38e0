"""The verdict as a page that Prometheus scrapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.errors import SettingError
from paceline.monitor.verdict import STATES, Verdict
from paceline.monitor.window import Window

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

GAUGES = {
    "speedup": "Time per token without drafts over that with them; above 1 they pay",
    "speedup_low": "Lower end of its 95 % interval",
    "speedup_high": "Upper end of its 95 % interval",
    "tokens_per_round": "Tokens per round over all rounds, bonus included",
    "tokens_per_drafted_round": "The same over rounds with a draft",
    "acceptance_rate": "Accepted over drafted tokens",
    "seconds_per_token": "Seconds between tokens of an answer, over those tokens",
    "baseline_seconds_per_token": "The same without drafts, where a baseline tells it",
    "load": "Sequences decoded together",
    "window_end_timestamp_seconds": "When the last window ended, Unix time",
    "window_seconds": "How long it was",
}
"""Names, behind `paceline_watch_`, and what they are. What isn't known has no series."""


class Exporter:
    """Serves the last window's verdict until it is closed; a context manager.

    labels    on every series, such as the server's address
    """

    def __init__(self, host: str, port: int, labels: dict[str, str]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._labels = labels
        self._last: tuple[Window, Verdict] | None = None
        self._lock = threading.Lock()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise SettingError(
                f"--export can't listen on {host}:{port}: {error.strerror}.", "Choose another port."
            ) from None

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def show(self, window: Window, verdict: Verdict) -> None:
        with self._lock:
            self._last = window, verdict

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What prometheus_client asks for at each scrape."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            last = self._last
        if last is None:
            return
        window, verdict = last
        names, values = list(self._labels), list(self._labels.values())
        state = GaugeMetricFamily(
            "paceline_watch_verdict", "1 for the last window's verdict", labels=[*names, "state"]
        )
        for one in STATES:
            state.add_metric([*values, one], float(one == verdict.state))
        yield state
        places = GaugeMetricFamily(
            "paceline_watch_accepted_share",
            "Share of drafted rounds whose token at a position was accepted; from 1 on",
            labels=[*names, "position"],
        )
        for place, share in enumerate(window.total.accepted_at, 1):
            places.add_metric([*values, str(place)], share)
        yield places
        for name, value in figures(window, verdict).items():
            if value is not None:
                gauge = GaugeMetricFamily(f"paceline_watch_{name}", GAUGES[name], labels=names)
                gauge.add_metric(values, value)
                yield gauge

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def figures(window: Window, verdict: Verdict) -> dict[str, float | None]:
    """By the names of `GAUGES`."""
    times, total = verdict.speedup, window.total
    return {
        "speedup": None if times is None else times.value,
        "speedup_low": None if times is None else times.low,
        "speedup_high": None if times is None else times.high,
        "tokens_per_round": window.tokens_per_round,
        "tokens_per_drafted_round": total.tokens_per_drafted_round,
        "acceptance_rate": total.acceptance_rate,
        "seconds_per_token": total.s_per_token,
        "baseline_seconds_per_token": verdict.baseline_s,
        "load": window.load,
        "window_end_timestamp_seconds": window.started + window.seconds,
        "window_seconds": window.seconds,
    }
