"""Option groups that several verbs share, and what they stand for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline import plugins
from paceline.bench.profile.measured_policy import measured_policy
from paceline.bench.prompts.formats import find_workload
from paceline.bench.prompts.workload import Workload
from paceline.cli.settings import argument, as_flag, flag, group, option, whole
from paceline.decode import step
from paceline.decode.generate import fitting_verifier
from paceline.drafts.base import Draft
from paceline.drafts.create import create_draft, engine_name, is_model, models_of
from paceline.engines.base import Engine
from paceline.engines.load import load
from paceline.errors import DataError, SettingError
from paceline.policy.adaptive import MeasuredPolicy
from paceline.policy.costs import read_costs, shipped_costs
from paceline.types import Sampling
from paceline.verify.base import Verifier

if TYPE_CHECKING:
    from tqdm import tqdm

MODEL_HELP = "GGUF file, model directory, hub name (owner/name), or demo name (paceline models)"
DRAFT_HELP = (
    "a draft (paceline list), such as lookup or lookup:min_match=1,reach=4, or a model (GGUF file, "
    "directory, hub or demo name)"
)
PROMPTS_HELP = (
    'a JSONL file ("prompt" or chat "messages", request logs, Spec-Bench questions: '
    "docs/workloads.md), or built-in, demo, human-eval"
)
KEY_HELP = "the environment variable that holds the server's API key"
COSTS_HELP = f"costs of `paceline profile -o`, or shipped ones: {', '.join(shipped_costs())}"
SHOWN = 10
"""Most broken lines that are told one by one; all of them are in a result."""


# Option groups.


def draft_option(help: str = DRAFT_HELP, *default: str) -> Any:
    """The field `-d DRAFT`, which can be given several times."""
    return option(help, "DRAFT", short="-d", default=default, repeat=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a verb prints what it found."""

    json: bool = flag("print one JSON document instead of text")

    def show(self, document: Callable[[], object], text: Callable[[], str]) -> None:
        """Print the one or the other; only that one is made."""
        print(json.dumps(document(), ensure_ascii=False) if self.json else text())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Where and in what numbers a model runs; an engine says itself which of them it takes."""

    threads: int | None = whole("number of CPU threads")
    dtype: str | None = option(
        "transformers: float32, bfloat16, float16; openvino, for a model directory that it "
        "exports: these, int8 (default) or int4",
        "TYPE",
    )
    device: str | None = option("transformers: cpu, cuda, cuda:1 …; openvino: CPU", "DEVICE")
    precision: str | None = option(
        "openvino: auto, or strict (float32, activations not rounded to eight bits)", "NAME"
    )
    cache_type: str | None = option(
        "openvino: keys and values in float32, bfloat16 or float16 (default: as it computes)",
        "TYPE",
    )

    def given(self) -> dict[str, Any]:
        """What was given, by name."""
        return _given(asdict(self))


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The target model and how it is loaded."""

    title: ClassVar[str] = "loading"
    target: str = argument(MODEL_HELP, "TARGET")
    engine: str | None = option("force an engine (paceline list)", "NAME")
    context: int | None = whole(
        "context size (default: the model's, at most 4096)", least=2, metavar="TOKENS"
    )
    same_text: bool = flag(
        "engine ik: keep a token's logits from depending on how many share its forward, so that "
        "drafted text is ordinary decoding's to the bit"
    )
    place: PlaceOptions = group(PlaceOptions)

    def load(self, *, max_sequences: int = 1) -> Engine:
        """Load the model with room for so many sequences."""
        return load(
            self.target,
            engine=self.engine,
            max_sequences=max_sequences,
            context_size=self.context,
            same_text=self.same_text or None,
            **self.place.given(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """How a draft's model is loaded."""

    title: ClassVar[str] = "loading a model draft"
    draft_engine: str | None = option("force its engine (default: told from its file)", "NAME")
    draft_context: int | None = whole(
        "its context size; beyond it the target goes on alone (default: its own, at most 4096)",
        least=2,
        metavar="TOKENS",
    )

    def given(self) -> dict[str, Any]:
        """What was given, by the names of the options."""
        said = {"draft_engine": self.draft_engine, "draft_context": self.draft_context}
        return _given(said)

    def load(self, spec: str, target: Engine, place: PlaceOptions, *, own: bool = False) -> Draft:
        """The draft of a specification.

        place    the target's: threads hold for the draft too, dtype, device and the like where its
                 engine is the same
        own      or the draft's own
        """
        given = _given({"engine": self.draft_engine, "context_size": self.draft_context})

        def load_model(model: str) -> Engine:
            name = self.draft_engine or engine_name(model)
            shared = place.given()
            if (
                not own and name != target.name
            ):  # types and devices have other names and meanings there
                shared = {key: value for key, value in shared.items() if key == "threads"}
            room = 1 if own else target.capabilities.max_sequences
            return load(model, max_sequences=room, **given, **shared)

        if not models_of(spec):
            return create_draft(spec, target, **given)  # refuses what is said of a model
        return create_draft(spec, target, loader=load_model)

    def load_all(
        self,
        specs: Sequence[str] | Mapping[str, str],
        target: Engine,
        place: PlaceOptions,
        stack: ExitStack,
        *,
        own: bool = False,
    ) -> dict[str, Draft]:
        """Drafts by short name; the stack releases them. `none` is no draft.

        specs    with their short names, or `labels` makes these
        """
        found: dict[str, Draft] = {}
        for spec, label in (specs if isinstance(specs, Mapping) else labels(specs)).items():
            if spec != "none":
                draft = self.load(spec, target, place, own=own)
                stack.callback(draft.release)
                found[label] = draft
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """By which rules drafts are asked and their tokens accepted."""

    costs: str | None = option(
        "decide by these recorded costs and don't correct them: the same choices in every run "
        "(paceline profile -o FILE)",
        "FILE",
    )
    verifier: str | None = option(
        "accept rule (paceline list; default: chain, or tree if a draft offers trees), with "
        "options if it has any: tolerance:budget=0.1",
        "NAME",
    )
    allow_chains: bool = flag(
        "where engine or verifier can't take a draft's trees, take the first branch of each"
    )
    lossy: bool = flag("allow a verifier that does not keep the target's distribution")

    def policy(self, target: Engine, drafts: dict[str, Draft]) -> MeasuredPolicy:
        """The default policy, by recorded costs if any were named."""
        if self.costs is None:
            return measured_policy(target, drafts, on_measure=say)
        return measured_policy(target, drafts, costs=read_costs(self.costs), named=self.costs)

    def find_verifier(self, drafts: Mapping[str, Draft]) -> Verifier:
        """The verifier that was named, NAME or NAME:KEY=VALUE,…, or the one that fits the drafts.
        Raises SettingError for a lossy one without --lossy, and for --lossy with an exact one."""
        name, _, written = (self.verifier or fitting_verifier(drafts).name).partition(":")
        kind: type[Verifier] = plugins.find("verifier", name)
        if kind.lossy and not self.lossy:
            raise SettingError(
                f"The verifier {name} is lossy: it gives up {kind.gives_up}.",
                "Take an exact one (paceline list), or allow it with --lossy.",
            )
        if self.lossy and not kind.lossy:
            raise SettingError(
                f"--lossy is given, and the verifier {name} is exact.",
                "Leave it out, or name a lossy one with --verifier (paceline list).",
            )
        options, rest = plugins.split_options("verifier", name, written, ("cls", "self"))
        if rest:
            raise plugins.no_value("verifier", name, rest)
        return kind.create(**options)

    def fit_trees(
        self, engine: Engine, drafts: Mapping[str, Draft], verifier: Verifier
    ) -> dict[str, Draft]:
        """The drafts as engine and verifier take them. Refuses drafts whose trees can't be taken,
        and --allow-chains where nothing needs it."""
        if not self.allow_chains:
            step.check_trees(engine, drafts, verifier)
            return dict(drafts)
        if not any(draft.branches for draft in drafts.values()):
            raise SettingError(
                "--allow-chains is given, and no draft here offers trees.", "Leave it out."
            )
        return step.with_chains(engine, drafts, verifier)


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise SettingError(f"--logit-bias is {text!r}.", "Write TOKEN=X, as in 42=-1.5.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn from the target's distribution."""

    title: ClassVar[str] = "sampling (default: greedy)"
    temperature: float = option("higher is more random; 0 is greedy", default=0.0, type=float)
    top_k: int = whole("keep the N most probable tokens; 0 keeps all", 0, least=0)
    top_p: float = option("keep the most probable tokens that sum to X", default=1.0, type=float)
    min_p: float = option(
        "keep tokens with X times the best's probability", default=0.0, type=float
    )
    repetition_penalty: float = option(
        "weaken tokens that prompt or answer hold by this factor", default=1.0, type=float
    )
    presence_penalty: float = option(
        "lower the logits of tokens that the answer holds by X", default=0.0, type=float
    )
    frequency_penalty: float = option(
        "the same for each time they stand there", default=0.0, type=float
    )
    logit_bias: tuple[str, ...] = option("add X to a token's logit", "TOKEN=X", repeat=True)
    ban_token: tuple[int, ...] = option("never sample this token", "TOKEN", repeat=True, type=int)
    allow_token: tuple[int, ...] = option(
        "sample only these tokens", "TOKEN", repeat=True, type=int
    )
    ban_text: tuple[str, ...] = option(
        "never sample the tokens of this text in a row", "TEXT", repeat=True
    )
    min_tokens: int = whole("no end before N tokens", 0, least=0)
    seed: int | None = option("seed of the random numbers", type=int)

    def sampling(self, target: Engine | None) -> Sampling:
        """What the library takes; the target makes tokens of texts. Raises SettingError for a
        text without one."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(_bias(text) for text in self.logit_bias),
            banned_tokens=self.ban_token,
            allowed_tokens=self.allow_token or None,
            banned_sequences=tuple(_sequence(target, text) for text in self.ban_text),
            min_tokens=self.min_tokens,
            seed=self.seed,
        )


def _sequence(target: Engine | None, text: str) -> tuple[int, ...]:
    """The tokens of a text, without the beginning-of-text token a prompt would get."""
    if target is None:
        raise SettingError(
            f"--ban-text is {text!r}, and only a model in this process can make tokens of it.",
            "Leave it out.",
        )
    tokens = target.tokenizer.encode(text)
    empty = target.tokenizer.encode("")
    return tuple(tokens[len(empty) :] if tokens[: len(empty)] == empty else tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """What chooses among prompts, and how they are read."""

    raw: bool = flag("prompts without the chat template")
    categories: str | None = option("only the prompts of these categories", "NAME[,NAME…]")
    sample: int | None = whole(
        "N prompts drawn by a seed, each category by its share (default: all)"
    )
    sample_seed: int | None = whole("seed of --sample (default: 0)", least=0)

    def find(self, prompts: str, *, turns: bool = True) -> Workload:
        """The chosen prompts; what was left out, and what has to be known of them, goes to stderr.

        turns    the verb asks later turns too, behind a fixed answer to the first
        """
        if self.sample_seed is not None and self.sample is None:
            raise SettingError(
                f"--sample-seed is {self.sample_seed} without --sample.", "Add --sample N."
            )
        workload = find_workload(prompts, raw=self.raw)
        if self.categories:
            workload = workload.of_categories(self.categories.split(","))
        if self.sample is not None:
            workload = workload.sampled(self.sample, self.sample_seed or 0)
        if not turns:
            workload = workload.first_turns()
        say(*notes(workload))
        return workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Which prompts are measured."""

    prompts: str = option(PROMPTS_HELP, "SPEC", default="demo")
    choice: ChoiceOptions = group(ChoiceOptions)

    def workload(self, *, turns: bool = True) -> Workload:
        """The prompts that were asked for; see `ChoiceOptions.find`."""
        return self.choice.find(self.prompts, turns=turns)


def notes(workload: Workload) -> list[str]:
    """One line for each thing that was left out or has to be known."""
    lines = [f"{workload.name}: {sentence} Left out." for sentence in workload.skipped[:SHOWN]]
    if len(workload.skipped) > SHOWN:
        more = len(workload.skipped) - SHOWN
        lines.append(f"{workload.name}: {more} more lines are left out.")
    if workload.repeated:
        lines.append(
            f"{workload.name}: Prompts that repeat an earlier one: {workload.repeated}. They count "
            "again, and flatter a draft that remembers."
        )
    return lines + [f"{workload.name}: {sentence}" for sentence in workload.notes]


def labels(specs: Sequence[str]) -> dict[str, str]:
    """A short name for each draft: a path's last part, unless two have the same."""
    for spec in specs:
        if list(specs).count(spec) > 1:
            raise SettingError(f"The draft {spec!r} is named twice.", "Name it once.")
    short = {spec: Path(spec).name if is_model(spec) else spec for spec in specs}
    if len(set(short.values())) < len(short):
        return {spec: spec for spec in specs}
    return short


def refuse_given(values: Mapping[str, object], why: str, hint: str = "Leave it out.") -> None:
    """Raises SettingError for an option that was given, and would have no effect."""
    for name, value in values.items():
        if value not in (None, ()):
            raise SettingError(f"{as_flag(name)} is {value}, and {why}.", hint)


def read_key(variable: str | None, name: str) -> str | None:
    """The API key in the environment variable that the option `name` names. Raises SettingError."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingError(
            f"{as_flag(name)} names {variable}, which is not set.", f"Set it: export {variable}=…"
        )
    if not key.isascii() or not key.isprintable():
        raise SettingError(
            f"{as_flag(name)} names {variable}, which holds more than printable ASCII.",
            "Set it to the key alone, in one line.",
        )
    return key


# What verbs print and write.


def say(*lines: str) -> None:
    """Tell progress and warnings on stderr."""
    for line in lines:
        print(line, file=sys.stderr)


def progress_bar(total: float, unit: str, **how: Any) -> tqdm[Any]:
    """A bar on stderr."""
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, file=sys.stderr, dynamic_ncols=True, **how)


@contextmanager
def percent_bar(title: str) -> Iterator[tuple[tqdm[Any], Callable[[float], None]]]:
    """A bar of percents, and what moves it to a share."""
    with progress_bar(100, "%", desc=title) as bar:

        def show(share: float) -> None:
            bar.update(int(100 * share) - bar.n)

        yield bar, show


def write_text(path: Path, text: str, name: str = "-o") -> None:
    """Write a file that an option names. Raises DataError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{path} can't be written: {error.strerror}.", f"Choose another file with {name}."
        ) from None


def out_path(given: str, option: str) -> Path:
    """Where a file goes. Raises DataError naming the option if it can't be written."""
    path = Path(given)
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise DataError(f"{path} can't be written.", f"Choose another file with {option}.")
    return path


def new_path(given: str, option: str) -> Path:
    """The same, never over another file. Raises DataError."""
    path = out_path(given, option)
    if path.exists():
        raise DataError(
            f"{path} is there already.", f"Choose another file with {option}, or remove it."
        )
    return path


def dated_path(given: str | None, name: str) -> Path:
    """Where -o goes: a file named by the time unless one was given."""
    return out_path(given or f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl", "-o")
