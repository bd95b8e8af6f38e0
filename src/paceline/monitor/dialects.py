"""How each server names its counters, what the numbers mean, and which settings change drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from paceline.monitor.scrape import Metrics

Names = tuple[str, ...]
"""Of one counter: its name, and its names in other versions."""

SUMS = (
    *("drafts", "steps", "drafted", "accepted", "generated", "firsts", "rounds"),
    *("timed_s", "timed_tokens", "engine_steps"),
)
"""What a dialect names, and `Counters` holds."""
BY_POSITION = ("drafted_by_position", "accepted_by_position")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's names, as `tables/dialects.json` has them. An empty tuple: not counted.

    prefixes      how its names begin
    drafts        rounds (of one sequence) that verified a drafted token, and no others
    steps         verified rounds, drafted or not
    drafted       drafted tokens that were verified
    accepted      those of them that were accepted; bonus and replacement excluded
    generated     tokens of all answers
    firsts        answers whose first token came, or that ended: that token is the prompt's
    rounds        rounds of one sequence after its first token, drafted or not
    timed_s       seconds between tokens, of all answers together
    timed_tokens  tokens that came in them; empty: those generated, less the first ones
    engine_steps  forwards of the whole batch
    busy          gauge: mean of sequences in a forward since the start, over `engine_steps`
    running, waiting   gauges: requests at work, and in the queue
    position      the label that holds a position
    recent        gauges of the server's last interval, by our names: no sums, so never subtracted
    at_the_end    whether an answer is counted when it ends: then few scrapes may find any
    says          what these numbers mean, a sentence each
    turn_on       how its counters of drafts are turned on
    turn_off      how drafts are turned off
    lower_limit   the setting of a lower limit `{k}`; None without counts by position
    limit_by_load     the setting that limits drafts by load
    """

    server: str
    prefixes: Names
    says: tuple[str, ...] = ()
    drafts: Names = ()
    steps: Names = ()
    drafted: Names = ()
    accepted: Names = ()
    generated: Names = ()
    firsts: Names = ()
    rounds: Names = ()
    timed_s: Names = ()
    timed_tokens: Names = ()
    engine_steps: Names = ()
    busy: Names = ()
    running: Names = ()
    waiting: Names = ()
    drafted_by_position: Names = ()
    accepted_by_position: Names = ()
    position: str = "position"
    recent: Mapping[str, str] = field(default_factory=dict)
    at_the_end: bool = False
    turn_on: str = ""
    turn_off: str = ""
    lower_limit: str | None = None
    limit_by_load: str | None = None

    @property
    def wanted(self) -> frozenset[str]:
        """Every name that it reads."""
        return self.counters | {*self.busy, *self.running, *self.waiting, *self.recent.values()}

    @property
    def counters(self) -> frozenset[str]:
        """Those of them that never fall while the server runs."""
        return frozenset().union(*(getattr(self, name) for name in (*SUMS, *BY_POSITION)))


_TABLE = Path(__file__).with_name("tables") / "dialects.json"
DIALECTS = msgspec.json.decode(_TABLE.read_bytes(), type=tuple[Dialect, ...])
UNKNOWN_SERVER = Dialect("", ())
STARTED = "process_start_time_seconds"
WANTED = frozenset[str]().union(*(dialect.wanted for dialect in DIALECTS), {STARTED})
"""All names that any dialect reads: what `scrape` should keep of a server's metrics."""


def dialect_of(metrics: Metrics) -> Dialect | None:
    """Whose metrics these are, by their names; None for an unknown server."""
    return next((d for d in DIALECTS if any(n.startswith(d.prefixes) for n in metrics.names)), None)


def dialect_named(server: str | None) -> Dialect:
    """A server's dialect; `UNKNOWN_SERVER` for another name."""
    return next((d for d in DIALECTS if d.server == server), UNKNOWN_SERVER)
