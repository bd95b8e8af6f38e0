"""A server's metrics in Prometheus' text format: fetch them, read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from paceline.errors import ServerError

if TYPE_CHECKING:
    import httpx

_MOST_BYTES = 16 * 2**20
_HINT = "Give the address of a page of metrics."
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LINE = re.compile(
    rf"[ \t\r]*(?:(?P<name>{_NAME})(?=[ \t{{])"  # a sample
    rf"|(?P<type>\#[ \t]*TYPE[ \t]+(?P<typed>{_NAME})[ \t])"
    r"|\#|\{|\Z)"  # a comment, a name in quotes, nothing
)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """A page's samples, in its order.

    others    names of samples that were on it and weren't read
    """

    samples: tuple[MetricSample, ...]
    others: frozenset[str] = frozenset()

    @cached_property
    def _by_name(self) -> dict[str, list[MetricSample]]:
        found: dict[str, list[MetricSample]] = {}
        for sample in self.samples:
            found.setdefault(sample.name, []).append(sample)
        return found

    @cached_property
    def names(self) -> frozenset[str]:
        """All names on the page, read or not."""
        return self.others | self._by_name.keys()

    def named(self, name: str, **labels: str) -> list[MetricSample]:
        """Samples of a name whose labels have these values."""
        return [
            sample
            for sample in self._by_name.get(name, ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def total(self, name: str) -> float | None:
        """Sum over the series of a counter (engines, ranks, reasons); None if there is none."""
        values = [sample.value for sample in self.named(name)]
        return sum(values) if values else None

    def values_of(self, label: str, prefixes: tuple[str, ...]) -> set[str]:
        """The values that a label has on samples whose names begin so."""
        return {
            sample.labels[label]
            for sample in self.samples
            if sample.name.startswith(prefixes) and label in sample.labels
        }


def parse_metrics(text: str, wanted: Collection[str] | None = None) -> Metrics:
    """Read a page. Raises ValueError where the text is no such page.

    wanted    only samples of these names are read, so that thousands of series take milliseconds
              instead of half a second; None: all
    """
    from prometheus_client.parser import text_string_to_metric_families

    def samples(read: str) -> Iterator[MetricSample]:
        for family in text_string_to_metric_families(read):
            for sample in family.samples:
                yield MetricSample(sample.name, dict(sample.labels), float(sample.value))

    try:
        kept, others = (text, frozenset[str]()) if wanted is None else _kept(text, wanted)
        metrics = Metrics(tuple(samples(kept)), others)
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"it isn't in Prometheus' text format ({error})") from None
    if not metrics.names and text.strip():
        raise ValueError("it isn't in Prometheus' text format")
    return metrics


def _kept(text: str, wanted: Collection[str]) -> tuple[str, frozenset[str]]:
    """The lines of wanted names with their types, and the names of all others. By its type the
    parser adds the `_total` that a counter may be written without."""
    kept, others = [], set()
    for number, line in enumerate(text.split("\n"), 1):
        found = _LINE.match(line)
        if found is None:
            raise ValueError(f"line {number} is {line[:40]!r}")
        name = found["name"]
        if name is not None:
            if name in wanted or f"{name}_total" in wanted:
                kept.append(line)
            else:
                others.add(name)
        elif found["type"] is not None:
            kept.append(line)
    return "\n".join(kept), frozenset(others)


def cut_off(text: str) -> str | None:
    """How it shows that the end of a page is missing; None if it doesn't. The format ends every
    line with a line feed, and a histogram's buckets are followed by its sum and count."""
    if text and not text.endswith("\n"):
        return "its last line doesn't end"
    found = _LINE.match(text.rstrip().rpartition("\n")[2])
    if found and (found["name"] or "").endswith("_bucket"):
        return "it ends within a histogram"
    return None


class NoMetrics(ServerError):
    """The server answers, and not with a page of metrics."""


class CutOff(ServerError):
    """A page of metrics whose end is missing."""


def scrape(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
    wanted: Collection[str] | None = None,
    client: httpx.Client | None = None,
) -> Metrics:
    """Fetch metrics and read them.

    headers    sent along, such as an authorisation
    wanted     as `parse_metrics` takes it
    client     to use again and again: a new one builds a TLS context, which takes some 50 ms

    Raises ServerError if nobody answers there, NoMetrics if something else does, and CutOff for a
    page without its end.
    """
    import httpx

    try:
        get = httpx.get if client is None else client.get
        answer = get(url, headers=dict(headers or {}), timeout=timeout_s)
    except httpx.InvalidURL as error:
        raise ServerError(f"{url} is not an address: {error}.", "Write http://HOST:PORT.") from None
    except (httpx.LocalProtocolError, UnicodeEncodeError):
        # The library repeats a header that can't be sent, and it may be a key.
        raise ServerError(
            f"A header for {url} can't be sent as it is.", "Is the key that was given a whole one?"
        ) from None
    except httpx.RemoteProtocolError as error:
        raise CutOff(f"{url} breaks off: {error}.", "Ask it again.") from None
    except httpx.HTTPError as error:
        raise ServerError(
            f"{url} can't be reached: {error or type(error).__name__}.",
            "Check the address, and that the server runs.",
        ) from None
    if answer.status_code != httpx.codes.OK:
        raise NoMetrics(f"{url} answers {answer.status_code}.", _HINT)
    if len(answer.content) > _MOST_BYTES:
        raise NoMetrics(f"{url} is {len(answer.content)} bytes long.", _HINT)
    text = answer.text
    missing = cut_off(text)
    try:
        metrics = parse_metrics(text if missing is None else text[: text.rfind("\n") + 1], wanted)
    except ValueError as error:
        raise NoMetrics(f"{url} is not a page of metrics: {error}.", _HINT) from None
    if missing is None:
        return metrics
    if not metrics.names:
        raise NoMetrics(f"{url} is not a page of metrics.", _HINT)
    raise CutOff(f"{url} is cut off: {missing}.", "Ask again, without what cuts it.")
