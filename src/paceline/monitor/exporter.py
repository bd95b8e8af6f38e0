"""The verdict as metrics that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.errors import SettingError
from paceline.monitor.text import document
from paceline.monitor.verdict import STATES, WatchVerdict
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
        self._last: tuple[Window, WatchVerdict] | None = None
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
        """Where it listens."""
        return int(self._server.server_port)

    def show(self, window: Window, verdict: WatchVerdict) -> None:
        """Serve this from now on."""
        self._last = window, verdict

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What prometheus_client asks for at each scrape."""
        if self._last is None:
            return
        window, verdict = self._last
        found = document(window, verdict)
        found["window_seconds"] = window.seconds
        found["window_end_timestamp_seconds"] = window.started + window.seconds
        if verdict.speedup is not None:
            found["speedup_low"], found["speedup_high"] = verdict.speedup.low, verdict.speedup.high
        states = [(one, float(one == verdict.state)) for one in STATES]
        yield self._gauge("verdict", "1 for the last window's verdict", states, "state")
        places = [(str(i), share) for i, share in enumerate(window.total.accepted_at, 1)]
        said = "Share of drafted rounds whose token at a position was accepted; from 1 on"
        yield self._gauge("accepted_share", said, places, "position")
        for name, said in GAUGES.items():
            if found.get(name) is not None:
                yield self._gauge(name, said, [("", found[name])])

    def _gauge(
        self, name: str, said: str, values: list[tuple[str, float]], *label: str
    ) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(f"paceline_watch_{name}", said, labels=[*self._labels, *label])
        for place, value in values:
            family.add_metric([*self._labels.values(), *([place] if label else [])], value)
        return family

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
