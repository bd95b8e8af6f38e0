"""Fit a head behind an exit layer to what the whole target says of its own text.

The head learns the target's distributions themselves, not the tokens that were drawn: first by the
forward divergence KL(p‖q), whose slope leads far, then by the distance ½‖p − q‖₁, which is what
rejects (Leviathan et al. 2023, corollary 3.6: the acceptance is one less it). What is kept is
whichever state of both had the best acceptance on text that was held out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from paceline.engines.base import Job
from paceline.engines.transformers.engine import TransformersEngine
from paceline.engines.transformers.head import ExitHead, HeadFile
from paceline.engines.transformers.layers import LayerStack, identity
from paceline.errors import DataError, SettingError
from paceline.train.texts import Text

Tensor = Any
KIND, VERSION = "paceline exit head, being fitted", 1
HOLD_OUT = 5
"""One prompt of so many is held out, or one text of so many where there are fewer prompts."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """layers    the head stands behind so many of the target's first layers
    rank         of its low-rank map
    steps        by divergence; half as many by distance follow
    rows         of a step
    rate         of learning, at the beginning of each of the two; it falls to a tenth
    every        steps between two looks at held-out text, each with a checkpoint
    seed         of which rows a step takes
    """

    layers: int
    rank: int = 64
    steps: int = 200
    rows: int = 128
    rate: float = 3e-3
    every: int = 25
    seed: int = 0

    @property
    def stages(self) -> list[tuple[str, int]]:
        """Loss and steps of each stage."""
        return [("kl", self.steps), ("tv", self.steps // 2)]


@dataclass(frozen=True, slots=True)
class HeadAcceptance:
    """On held-out rows, at temperature 1 and without filters: the mean of Σ min(p, q), which is the
    acceptance of a sampled draft, and the share of rows with the same best token, which is that of
    a greedy one."""

    sampled: float
    greedy: float


@dataclass(slots=True)
class Progress:
    """How far a fit has come; what a checkpoint holds besides its settings and texts."""

    stage: int = 0
    step: int = 0
    head: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_acceptance: float = -1.0
    best_at: str = "start"


class HeadFit:
    """A fit that can be killed and go on.

    texts         of the target; a checkpoint's own are taken instead where it has been begun
    source        what the texts are, in words: a checkpoint is only gone on from with the same
    checkpoint    the file that is written while fitting and removed by `finish`

    Raises SettingError for layers that leave nothing out, DataError for a checkpoint of another
    fit or texts too short to hold any out.
    """

    def __init__(
        self,
        engine: TransformersEngine,
        settings: FitSettings,
        texts: Callable[[], Sequence[Text]],
        checkpoint: Path,
        source: str = "given",
    ) -> None:
        self.settings, self.checkpoint, self.source = settings, checkpoint, source
        self.target = identity(engine)
        self._stack = LayerStack(engine.model, engine.module)
        engine.module.requires_grad_(False)
        if not 1 <= settings.layers < self.target["layers"]:
            raise SettingError(
                f"The head is to stand behind {settings.layers} layers, and {engine.model} has "
                f"{self.target['layers']}.",
                f"Choose 1 to {self.target['layers'] - 1}.",
            )
        self.head = ExitHead(self.target["width"], settings.rank).to(engine.module.device)
        found = self._read()
        self.resumed = found is not None
        self.texts, self._done = found or (list(texts()), Progress())
        self._rows, self._held, self._fitted = _split(self._collect(engine), self.texts)
        self.before = self._acceptance(None)
        if found is None:
            self._write()

    def _collect(self, engine: TransformersEngine) -> list[tuple[Tensor, Tensor]]:
        """Per text the states behind the exit layer and behind the last one, of the rows that its
        output was drawn from: each of shape (output tokens, width)."""
        states: list[tuple[Tensor, Tensor]] = []
        exit_at, last = self.settings.layers, self.target["layers"]
        for text in self.texts:
            with closing(engine.open()) as sequence, self._stack.noting() as noted:
                engine.score([Job(sequence, [*text.prompt, *text.output[:-1]])])
            first = len(text.prompt) - 1
            # Clones, because tensors of inference mode take part in no gradient.
            behind, whole = (torch.cat(noted[at])[first:].clone() for at in (exit_at, last))
            states.append((behind, whole))
        return states

    def run(self, on_step: Callable[[int, int], None] = lambda *_: None) -> None:
        """Fit from where it stands to the end. `on_step` is told steps done, of how many."""
        done, stages = self._done, self.settings.stages
        total = sum(steps for _, steps in stages)
        if done.head:
            self.head.load_state_dict(done.head)
        while done.stage < len(stages):
            loss, steps = stages[done.stage]
            optimizer = torch.optim.Adam(self.head.parameters(), lr=self.settings.rate)
            if done.step:
                optimizer.load_state_dict(done.optimizer)
            before = sum(count for _, count in stages[: done.stage])
            for step in range(done.step, steps):
                if step % self.settings.every == 0 and step != done.step:
                    self._look(optimizer, step)
                self._step(optimizer, loss, step, steps)
                on_step(before + step + 1, total)
            self._look(optimizer, steps)
            done.stage, done.step, done.optimizer = done.stage + 1, 0, {}
            self._write()

    def _step(self, optimizer: Any, loss: str, step: int, steps: int) -> None:
        # The rows hang on the step alone, so that a fit that goes on takes those it would have.
        seed = self.settings.seed * 1_000_003 + (loss == "tv") * 500_009 + step
        random = torch.Generator().manual_seed(seed)
        exits, lasts = self._rows
        count = min(self.settings.rows, len(exits))
        chosen = torch.randperm(len(exits), generator=random)[:count].to(exits.device)
        for group in optimizer.param_groups:
            group["lr"] = self.settings.rate * (1 - 0.9 * step / steps)
        with torch.no_grad():
            p = torch.log_softmax(self._stack.read_out(lasts[chosen]), -1)
        q = torch.log_softmax(self._stack.read_out(self.head(exits[chosen])), -1)
        apart = p.exp() * (p - q) if loss == "kl" else (p.exp() - q.exp()).abs() / 2
        optimizer.zero_grad()
        apart.sum(-1).mean().backward()
        optimizer.step()

    def _look(self, optimizer: Any, step: int) -> None:
        """Hold the head against held-out text, and write a checkpoint."""
        done = self._done
        done.step = step
        done.head = {name: p.clone() for name, p in self.head.state_dict().items()}
        done.optimizer = optimizer.state_dict()
        found = self._acceptance(self.head).sampled
        if found > done.best_acceptance:
            done.best_acceptance, done.best = found, done.head
            done.best_at = f"{self.settings.stages[done.stage][0]}, step {step}"
        self._write()

    def _acceptance(self, head: ExitHead | None) -> HeadAcceptance:
        exits, lasts = self._held
        shared = same = 0.0
        with torch.no_grad():
            for begin in range(0, len(exits), self.settings.rows):
                some = slice(begin, begin + self.settings.rows)
                p = torch.softmax(self._stack.read_out(lasts[some]), -1)
                states = exits[some] if head is None else head(exits[some])
                q = torch.softmax(self._stack.read_out(states), -1)
                shared += float(torch.minimum(p, q).sum())
                same += float((p.argmax(-1) == q.argmax(-1)).sum())
        return HeadAcceptance(shared / len(exits), same / len(exits))

    def finish(self) -> HeadFile:
        """The best head, no change at all included, with its report."""
        if self._done.best_acceptance > self.before.sampled:
            self.head.load_state_dict(self._done.best)
            chosen = self._done.best_at
        else:
            self.head = ExitHead(self.target["width"], self.settings.rank).to(self.head.gain.device)
            chosen = "start"
        self.head.requires_grad_(False)
        after = self._acceptance(self.head)
        report = {
            "settings": asdict(self.settings),
            "text": self.source,
            "chosen_at": chosen,
            "rows": len(self._rows[0]),
            "fitted_prompts": self._fitted,
            "held_out_rows": len(self._held[0]),
            "held_out_acceptance_before": asdict(self.before),
            "held_out_acceptance_after": asdict(after),
        }
        return HeadFile(self.head, self.settings.layers, self.target, report)

    def _write(self) -> None:
        beside = self.checkpoint.with_name(f"{self.checkpoint.name}.{os.getpid()}")
        document = {
            "kind": KIND,
            "fit": self._fit(),
            "texts": msgspec.json.encode(self.texts).decode(),
            "progress": {name: getattr(self._done, name) for name in Progress.__slots__},
        }
        try:
            torch.save(document, beside)
            beside.replace(self.checkpoint)
        except (OSError, RuntimeError) as error:
            beside.unlink(missing_ok=True)
            raise DataError(
                f"{self.checkpoint} can't be written: {error}.", "Make room there."
            ) from None

    def _fit(self) -> dict[str, Any]:
        target = {f"target's {name}": value for name, value in self.target.items()}
        return {"version": VERSION, **asdict(self.settings), **target, "text": self.source}

    def _read(self) -> tuple[list[Text], Progress] | None:
        """The checkpoint of this very fit; None if there is none."""
        if not self.checkpoint.exists():
            return None
        hint = f"Delete it to begin anew, or name another file than {self.checkpoint.stem}."
        try:
            document = torch.load(self.checkpoint, weights_only=True)
            if document["kind"] != KIND:
                raise KeyError("kind")
            texts = msgspec.json.decode(document["texts"], type=list[Text])
            progress, fit = Progress(**document["progress"]), document["fit"]
        except Exception as error:  # torch.load raises what the bytes lead it to
            raise DataError(f"{self.checkpoint} is not a fit's checkpoint.", hint) from error
        for name, value in self._fit().items():
            if fit.get(name) != value:
                raise DataError(
                    f"{self.checkpoint} is of a fit whose {name} is {fit.get(name)}, and this "
                    f"one's is {value}.",
                    hint,
                )
        return texts, progress


States = tuple[Tensor, Tensor]


def _split(states: Sequence[States], texts: Sequence[Text]) -> tuple[States, States, list[str]]:
    """Rows to fit to and rows held out, and whose prompts the first are of. Whole prompts are held
    out where there are enough."""
    names = list(dict.fromkeys(text.prompt_id for text in texts))
    if len(names) >= HOLD_OUT:
        away = {*names[HOLD_OUT - 1 :: HOLD_OUT]}
        held = [text.prompt_id in away for text in texts]
    else:
        held = [number % HOLD_OUT == HOLD_OUT - 1 for number in range(len(texts))]
    fitted = {text.prompt_id for text, out in zip(texts, held, strict=True) if not out}
    if not any(held):
        exits, lasts = _joined(states)
        cut = len(exits) - len(exits) // HOLD_OUT
        fit, out = (exits[:cut], lasts[:cut]), (exits[cut:], lasts[cut:])
    else:
        fit = _joined([s for s, h in zip(states, held, strict=True) if not h])
        out = _joined([s for s, h in zip(states, held, strict=True) if h])
    if not len(out[0]):
        raise DataError(
            f"The target's text has {len(fit[0])} tokens, too few to hold any out.",
            "Give more prompts, or a larger --max-tokens.",
        )
    return fit, out, [name for name in names if name in fitted]


def _joined(states: Sequence[States]) -> States:
    exits, lasts = zip(*states, strict=True)
    return torch.cat(exits), torch.cat(lasts)
