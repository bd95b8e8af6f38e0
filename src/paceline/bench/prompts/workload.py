"""What is measured on: prompts with their categories, where they come from, and how some of them
are drawn."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paceline.engines.base import Engine
from paceline.engines.tokenizer import Message
from paceline.errors import PromptError, SettingError, unknown_name


@dataclass(frozen=True, slots=True)
class WorkloadPrompt:
    """One prompt: a raw text if `raw`, else a chat of one or more messages.

    answer     what a log says was answered, for replay; the target never sees it
    cut        the log says that the answer was cut at its most tokens, so that no end token came
    follows    id of the prompt that this one is asked after: its messages lack that one's answer,
               which `after` puts in
    """

    id: str
    category: str
    messages: tuple[Message, ...]
    raw: bool = False
    answer: str | None = None
    cut: bool = False
    follows: str | None = None

    def tokens(self, engine: Engine) -> tuple[int, ...]:
        """The prompt in the target's tokens, through its chat template unless raw.

        Raises PromptError of a turn whose earlier answer isn't in place.
        """
        if self.follows is not None:
            raise PromptError(
                f"{self.id} is asked after the answer to {self.follows}, which isn't there.",
                "Measure both.",
            )
        if self.raw:
            return tuple(engine.tokenizer.encode(self.messages[0]["content"]))
        return tuple(engine.tokenizer.encode_chat(self.messages))

    def after(self, answer: str) -> WorkloadPrompt:
        """This turn with the answer to the one that it follows in place. To be fair, that is one
        fixed answer for all that are compared."""
        given = {"role": "assistant", "content": answer}
        return replace(self, messages=(*self.messages[:-1], given, self.messages[-1]), follows=None)


@dataclass(frozen=True, slots=True)
class PromptSample:
    """How prompts were drawn: `count` of `of`, a prompt and the turn that follows it being one."""

    count: int
    of: int
    seed: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in order, and what was left out: one sentence a broken line.

    notes      what a reader of the figures must know of these prompts, a sentence each
    sha256     of the bytes that the prompts were read from, all of them
    groups     names for several categories together, for `of_categories`
    """

    name: str
    prompts: tuple[WorkloadPrompt, ...]
    skipped: tuple[str, ...] = ()
    version: str | None = None
    licence: str | None = None
    sha256: str | None = None
    notes: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sample: PromptSample | None = None

    def of_categories(self, wanted: Sequence[str]) -> Workload:
        """Only the prompts of some categories. Raises SettingError for one that has none."""
        known = {prompt.category for prompt in self.prompts}
        groups = {name: some for name, some in self.groups.items() if known.intersection(some)}
        chosen: set[str] = set()
        for category in wanted:
            if category not in known and category not in groups:
                raise unknown_name("category", category, {*known, *groups})
            chosen.update(groups.get(category, (category,)))
        return replace(self, prompts=tuple(p for p in self.prompts if p.category in chosen))

    def sampled(self, count: int, seed: int) -> Workload:
        """`count` prompts drawn by a seed, in their order; a turn stays with the one it follows,
        and both count as one. Each category gets its share of `count`, as near as whole prompts
        go, and a larger sample with the same seed holds the smaller one.

        Raises SettingError if there are fewer.
        """
        leads = {prompt.id: prompt for prompt in self.prompts if prompt.follows is None}
        if not 1 <= count <= len(leads):
            raise SettingError(
                f"The sample is {count}, and there are {len(leads)} prompts in {self.name}.",
                f"Take 1 to {len(leads)}.",
            )
        drawn = set(sorted(leads, key=_places(leads, seed).__getitem__)[:count])
        kept = tuple(p for p in self.prompts if (p.follows or p.id) in drawn)
        return replace(self, prompts=kept, sample=PromptSample(count, len(leads), seed))

    def first_turns(self) -> Workload:
        """For who can't give a fixed answer to the turns before: only prompts that need none."""
        kept = tuple(prompt for prompt in self.prompts if prompt.follows is None)
        left_out = len(self.prompts) - len(kept)
        note = (f"{left_out} later turns are left out: they need an answer to the first.",)
        return replace(self, prompts=kept, notes=self.notes + note) if left_out else self

    def metadata(self) -> dict[str, Any]:
        """What a result says of its prompts, for JSON."""
        categories = Counter(prompt.category for prompt in self.prompts)
        return {
            "name": self.name,
            "version": self.version,
            "licence": self.licence,
            "sha256": self.sha256,
            "prompts_sha256": self.prompts_sha256,
            "raw": sum(prompt.raw for prompt in self.prompts),
            "prompts": len(self.prompts),
            "categories": dict(categories),
            "repeated": self.repeated,
            "sample": self.sample and asdict(self.sample),
            "skipped": list(self.skipped),
            "notes": list(self.notes),
        }

    @property
    def prompts_sha256(self) -> str:
        """Of all that is asked, in order: two workloads with the same one ask the same."""
        asked = [[p.id, p.raw, [dict(m) for m in p.messages], p.follows] for p in self.prompts]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def repeated(self) -> int:
        """Prompts that ask the same as an earlier one."""
        asked = {
            (prompt.raw, tuple((m["role"], m["content"]) for m in prompt.messages))
            for prompt in self.prompts
        }
        return len(self.prompts) - len(asked)


def _places(leads: Mapping[str, WorkloadPrompt], seed: int) -> dict[str, float]:
    """Where each prompt stands between 0 and 1: shuffled in its category, the categories spread
    evenly, so that any first part holds each category's share."""
    rng = random.Random(seed)  # its sequence is the same in every version of Python
    order = sorted(leads, key={name: rng.random() for name in leads}.__getitem__)
    sizes = Counter(prompt.category for prompt in leads.values())
    seen: Counter[str] = Counter()
    places: dict[str, float] = {}
    for name in order:
        category = leads[name].category
        places[name] = (seen[category] + rng.random()) / sizes[category]
        seen[category] += 1
    return places
