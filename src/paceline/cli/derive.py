"""`paceline derive`: make a draft model from its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.bench.prompts.formats import find_workload
from paceline.cli.options import MODEL_HELP, Output, notes, say
from paceline.cli.settings import Verb, argument, group, option, whole
from paceline.errors import DataError, SettingError

if TYPE_CHECKING:
    from paceline.train.derive.make import DerivedModel

EXAMPLES = """\
  paceline derive smollm2-135m -o draft --keep 10
  paceline derive models/target -o draft --layers 0-7,27 --vocabulary 16000 --corpus texts.txt
  paceline generate models/target -d draft"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Write a smaller model made of a target's own weights, as a directory that engines of the
    Hugging Face format load. Nothing is trained."""

    target: str = argument(MODEL_HELP, "TARGET")
    out: str = option(
        "where it goes: a directory that is empty or not there yet",
        "DIR",
        short="-o",
        required=True,
    )
    layers: str | None = option(
        "layers that stay, from 0, in the target's order: 0-7,27 (default: the first half)", "LIST"
    )
    keep: int | None = whole("the first N layers stay")
    vocabulary: int | None = whole(
        "N tokens stay: special ones, single bytes, and the most frequent ones of a corpus"
    )
    corpus: tuple[str, ...] = option(
        "text, or prompts as .jsonl, to count tokens in; best what the target writes",
        "FILE",
        repeat=True,
    )
    dtype: str | None = option(
        "float32, bfloat16, float16 (default: the target's; bfloat16 for a GGUF file)", "TYPE"
    )
    output: Output = group(Output)


def run(settings: Settings) -> int:
    """Make the draft, print what it is, and return the exit code."""
    if settings.layers is not None and settings.keep is not None:
        raise SettingError("--layers and --keep are both given.", "Give one of them.")
    if (settings.vocabulary is None) != (not settings.corpus):
        given, missing = "--vocabulary", "--corpus"
        if settings.vocabulary is None:
            given, missing = missing, given
        raise SettingError(f"{given} is given without {missing}.", "Give both or neither.")
    try:
        from paceline.train.derive.make import derive
    except ImportError as error:
        raise SettingError(
            f"A draft can't be made here: {error}.", "pip install 'paceline[transformers]'"
        ) from error
    made = derive(
        settings.target,
        settings.out,
        layers=settings.layers,
        keep=settings.keep,
        vocabulary=settings.vocabulary,
        corpus=list(_texts(settings.corpus)) if settings.corpus else None,
        dtype=settings.dtype,
    )
    settings.output.show(
        lambda: asdict(made) | {"directory": str(made.directory)}, lambda: "\n".join(_lines(made))
    )
    return 0


def _texts(names: Sequence[str]) -> Iterator[str]:
    """The texts of a corpus: a file whole, or each message of its prompts."""
    for name in names:
        if name.endswith(".jsonl"):
            workload = find_workload(name)
            say(*notes(workload))
            for prompt in workload.prompts:
                new = prompt.messages[-1:] if prompt.follows else prompt.messages
                yield from (message["content"] for message in new)
                if prompt.answer is not None:
                    yield prompt.answer
            continue
        try:
            yield Path(name).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{name} can't be read: {error}.", "Give a UTF-8 text or a .jsonl file of prompts."
            ) from error


def _lines(made: DerivedModel) -> Iterator[str]:
    share = made.parameters / made.parameters_of
    yield (
        f"{made.directory}: {len(made.layers)} of {made.layers_of} layers, {made.tokens} of "
        f"{made.tokens_of} tokens"
    )
    yield (
        f"{made.parameters / 1e6:.1f} million parameters, {share:.0%} of the target's; "
        f"{made.size_bytes / 1e6:.0f} MB in {made.dtype}"
    )
    if made.covered is not None:
        yield f"the kept tokens are {made.covered:.1%} of the corpus"
    yield f"Try it: paceline generate {made.target} -d {made.directory}"


VERB = Verb(Settings, run, EXAMPLES)
