"""`paceline derive`: make a draft model from its target."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from paceline.cli.options import MODEL_HELP, Output, notes, say
from paceline.cli.settings import Verb, argument, group, option, whole
from paceline.errors import SettingError
from paceline.train.texts import corpus_texts

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
    texts = corpus_texts(settings.corpus, lambda workload: say(*notes(workload)))
    made = derive(
        settings.target,
        settings.out,
        layers=settings.layers,
        keep=settings.keep,
        vocabulary=settings.vocabulary,
        corpus=list(texts) if settings.corpus else None,
        dtype=settings.dtype,
    )
    settings.output.show(
        lambda: asdict(made) | {"directory": str(made.directory)}, lambda: "\n".join(made.lines())
    )
    return 0


VERB = Verb(Settings, run, EXAMPLES)
