"""What one run on live servers adds up to, each figure computed once, for pages and rows."""

from __future__ import annotations

from functools import cached_property

from paceline.bench.server.notes import title
from paceline.bench.server.result import AGAINST, Load, ServerResult, clients_words
from paceline.bench.stats import Ratio


class ServerSummary:
    """A run's figures.

    source    the file's name
    loads     numbers of clients and servers of which there is anything
    """

    def __init__(self, source: str, result: ServerResult) -> None:
        self.source, self.result = source, result
        self.loads = [
            (n, server)
            for n in result.header.concurrency
            for server in result.servers
            if result.of(server, n)
        ]
        self._known: dict[tuple[str, int, str | None], Ratio | None] = {}
        self._loads: dict[tuple[str, int, str | None], Load] = {}

    @property
    def several(self) -> bool:
        """Whether two servers were measured."""
        return AGAINST in self.result.servers

    @cached_property
    def clients(self) -> list[int]:
        return list(dict.fromkeys(n for n, _ in self.loads))

    @cached_property
    def categories(self) -> list[str]:
        return self.result.categories

    @cached_property
    def worst_first(self) -> list[str]:
        """Categories by their least ratio at any number of clients; without one in their order."""
        return sorted(self.categories, key=self._least)

    def _least(self, category: str) -> float:
        ratios = [self.ratio(n, category) for n in self.clients]
        return min((one.value for one in ratios if one is not None), default=float("inf"))

    def ratio(self, clients: int, category: str | None = None) -> Ratio | None:
        """Times as fast as the other, per token after the first."""
        key = ("token", clients, category)
        if key not in self._known:
            self._known[key] = self.result.comparison(clients).ratio(category)
        return self._known[key]

    def whole_ratio(self, clients: int, category: str | None = None) -> Ratio | None:
        """The same of whole answers, waits and reading the prompt included."""
        key = ("answer", clients, category)
        if key not in self._known:
            self._known[key] = self.result.comparison(clients).whole_ratio(category)
        return self._known[key]

    def load(self, clients: int, server: str, category: str | None = None) -> Load:
        key = (server, clients, category)
        if key not in self._loads:
            self._loads[key] = self.result.load(server, clients, category)
        return self._loads[key]

    def name(self, server: str, clients: int | None = None) -> str:
        """As tables and legends have it; with the number of clients where there are several."""
        words = title(server)
        if clients is None or len(self.clients) == 1:
            return words
        return f"{words}, {clients_words(clients)}"

    def about(self, server: str) -> str:
        """Address, what made the server, and model."""
        metadata = self.result.header.servers[server]
        kind = " ".join(str(metadata[key]) for key in ("server", "version") if metadata.get(key))
        return f"{metadata['url']}, {kind or 'server not told'}, model {metadata['model']}"
