"""A server's page of counters in Prometheus' text format: fetch it, read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from paceline.errors import EndpointError

_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Page:
    """A page's samples, in its order."""

    samples: tuple[Sample, ...]

    @cached_property
    def _by_name(self) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        for sample in self.samples:
            found.setdefault(sample.name, []).append(sample)
        return found

    def named(self, name: str, **labels: str) -> list[Sample]:
        """Samples of a name whose labels have these values."""
        return [
            sample
            for sample in self._by_name.get(name, ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over the series of a counter (engines, ranks, reasons); None if there is none."""
        values = [sample.value for sample in self.named(name, **labels)]
        return sum(values) if values else None

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The same, apart for each value of a label."""
        found: dict[str, float] = {}
        for sample in self.named(name, **labels):
            if label in sample.labels:
                key = sample.labels[label]
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def values_of(self, label: str, prefix: str) -> set[str]:
        """The values that a label has on samples whose names begin so."""
        return {
            sample.labels[label]
            for sample in self.samples
            if sample.name.startswith(prefix) and label in sample.labels
        }


def parse_page(text: str) -> Page:
    """Read a page. Raises ValueError where the text is no such page."""
    from prometheus_client.parser import text_string_to_metric_families

    def samples() -> Iterator[Sample]:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield Sample(sample.name, dict(sample.labels), float(sample.value))

    try:
        page = Page(tuple(samples()))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"it isn't in Prometheus' text format ({error})") from None
    if not page.samples and text.strip():
        raise ValueError("it isn't in Prometheus' text format")
    return page


class NoPage(EndpointError):
    """The server answers, and not with a page of counters."""


def scrape(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> Page:
    """Fetch a page and read it.

    headers    sent along, such as an authorisation

    Raises EndpointError if nobody answers there, and NoPage if something else does.
    """
    import httpx

    try:
        answer = httpx.get(url, headers=dict(headers or {}), timeout=timeout_s)
    except httpx.InvalidURL as error:
        raise EndpointError(f"{url} is no address: {error}.", "Write http://HOST:PORT.") from None
    except httpx.HTTPError as error:
        raise EndpointError(
            f"{url} can't be reached: {error or type(error).__name__}.",
            "Check the address, and that the server runs.",
        ) from None
    if answer.status_code != httpx.codes.OK:
        raise NoPage(f"{url} answers {answer.status_code}.", "Name the page with --metrics.")
    if len(answer.content) > _MOST_BYTES:
        raise NoPage(f"{url} is {len(answer.content)} bytes long.", "Name a page of counters.")
    try:
        return parse_page(answer.text)
    except ValueError as error:
        raise NoPage(
            f"{url} is no page of counters: {error}.", "Name one with --metrics."
        ) from None
