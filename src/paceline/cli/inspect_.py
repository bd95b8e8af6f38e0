"""`paceline inspect`: what a trained draft is, which engines load it, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cli.options import Output
from paceline.cli.settings import Verb, argument, group, option
from paceline.engines.load import resolve
from paceline.inspect.compare import compare
from paceline.inspect.read import read
from paceline.inspect.summary import checkpoint_document, checkpoint_lines

EXAMPLES = """\
  paceline inspect drafts/eagle3 --target models/target
  paceline inspect draft.gguf --json"""

EPILOG = "Exit code: 1 if something is wrong that stops every engine, 2 if it is not a draft."


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectSettings:
    """Look at a draft's files: EAGLE-1 to -3, P-EAGLE, Medusa, DFlash, DSpark, MTP layers,
    speculators directories, draft models, GGUF files, early-exit heads. Only configs, headers,
    vocabulary maps and small weights are read; nothing in them is run."""

    draft: str = argument("a draft's directory, GGUF file, exit head, or demo name", "DIR")
    target: str | None = option(
        "the model it is to draft for: directory, GGUF file or demo name", "DIR_OR_NAME"
    )
    output: Output = group(Output)


def run(settings: InspectSettings) -> int:
    """Print what the draft is, and return the exit code."""
    checkpoint = read(resolve(settings.draft))
    comparison = None
    if settings.target is not None:
        comparison = compare(checkpoint, resolve(settings.target))
        checkpoint = comparison.checkpoint
    settings.output.show(
        lambda: checkpoint_document(checkpoint, comparison),
        lambda: "\n".join(checkpoint_lines(checkpoint, comparison)),
    )
    return 1 if checkpoint.fatal else 0


VERB = Verb(InspectSettings, run, EXAMPLES, epilog=EPILOG)
