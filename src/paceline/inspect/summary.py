"""What a draft's files are and what is wrong with them, as text and as a document."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from paceline.inspect.checkpoint import FORMATS, KINDS, Checkpoint
from paceline.inspect.compare import TargetComparison
from paceline.inspect.loaders import ENGINES, Loads, loads

WIDTH = 80


def checkpoint_document(
    checkpoint: Checkpoint, comparison: TargetComparison | None
) -> dict[str, Any]:
    """A draft's files as one JSON document, beside a target if there is one."""
    document = asdict(checkpoint) | {"path": str(checkpoint.path)}
    document["loads"] = {
        engine: {version or "any": asdict(answer) for version, answer in answers}
        for engine, answers in _answers(checkpoint)
    }
    document["target"] = None
    if comparison is not None:
        target = comparison.target
        names = ("architecture", "hidden_size", "vocabulary_size", "bytes", "parameters")
        told = ("layers", "share_bytes", "share_parameters", "same_tokens")
        document["target"] = {
            "path": str(target.path),
            **{name: getattr(target, name) for name in names},
            **{name: getattr(comparison, name) for name in told},
        }
    return document


def _answers(checkpoint: Checkpoint) -> Iterator[tuple[str, list[tuple[str | None, Loads]]]]:
    for engine, table in ENGINES.items():
        known: tuple[str | None, ...] = table.versions or (None,)
        yield engine, [(version, loads(checkpoint, engine, version)) for version in known]


def checkpoint_lines(checkpoint: Checkpoint, comparison: TargetComparison | None) -> Iterator[str]:
    """The same as text."""
    yield f"{checkpoint.path}: {KINDS[checkpoint.kind]}, {FORMATS[checkpoint.format]}"
    yield from _columns(_metadata(checkpoint))
    if comparison is not None:
        yield ""
        yield f"Beside {comparison.target.path}"
        yield from _columns(_beside(comparison))
    yield ""
    if checkpoint.fatal:
        yield "Loads in no engine as it is"
    else:
        yield "Loads in"
        yield from _columns(_loading(checkpoint))
    yield ""
    if not checkpoint.problems:
        yield "Nothing is wrong."
    for problem in checkpoint.problems:
        weight = "Wrong" if problem.fatal else "Mind"
        yield from _wrapped(f"{weight}: ", f"{problem.fact} {problem.hint}")


def _columns(entries: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Names in a column, what they are beside it."""
    listed = list(entries)
    width = max((len(name) for name, _ in listed), default=0)
    for name, text in listed:
        yield from _wrapped(f"  {name.ljust(width)}  ", text)


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _metadata(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    if checkpoint.architecture:
        yield "architecture", checkpoint.architecture
    yield "size", _size(checkpoint)
    if checkpoint.target_hidden_size is not None:
        yield "reads", _taken(checkpoint)
    if checkpoint.vocabulary_size is not None:
        yield "vocabulary", _vocabulary(checkpoint)
    parts = {"own": "its own", "target": "the target's", "tied": "its own embedding"}
    for name in ("embedding", "head"):
        part = getattr(checkpoint, name)
        if part != "none":
            yield name, parts[part]
    if checkpoint.proposal_tokens is not None:
        yield "proposes", f"{_many(checkpoint.proposal_tokens, 'token')} a round, by its config"
    if checkpoint.verifier:
        yield "made for", checkpoint.verifier


def _size(checkpoint: Checkpoint) -> str:
    named = {"medusa": "head", "mtp": "MTP layer"}.get(checkpoint.kind, "layer")
    parts = [] if checkpoint.layers is None else [_many(checkpoint.layers, named)]
    if checkpoint.hidden_size is not None:
        parts.append(f"hidden size {checkpoint.hidden_size:,}")
    if checkpoint.parameters is not None:
        parts.append(f"{_count(checkpoint.parameters)} parameters")
    parts.append(f"{_bytes(checkpoint.bytes)} in {checkpoint.dtype or 'files'}")
    return ", ".join(parts)


def _taken(checkpoint: Checkpoint) -> str:
    states = _many(checkpoint.aux_count or 1, "state")
    text = f"{states} of {checkpoint.target_hidden_size:,} entries of the target"
    if checkpoint.aux_layers:
        named = "layer" if len(checkpoint.aux_layers) == 1 else "layers"
        text += f", {named} {', '.join(map(str, checkpoint.aux_layers))}"
    return text


def _vocabulary(checkpoint: Checkpoint) -> str:
    whole, own, found = checkpoint.vocabulary_size, checkpoint.draft_vocabulary_size, checkpoint.map
    if found is None:
        return f"{whole:,} tokens" if own == whole else f"{own:,} of {whole:,} tokens, no map"
    form = "offsets" if found.form == "offset" else "ids"
    text = f"{own:,} of {whole:,} tokens; map {found.name} of {form} to ids {found.lowest:,} to "
    text += f"{found.highest:,}"
    if found.distinct:
        text += ", rising" if found.rising else ", each once"
    if found.agrees is not None:
        text += f", {'agrees' if found.agrees else 'disagrees'} with t2d"
    return text


def _beside(comparison: TargetComparison) -> Iterator[tuple[str, str]]:
    target = comparison.target
    sizes = [] if comparison.layers is None else [_many(comparison.layers, "layer")]
    if target.hidden_size is not None:
        sizes.append(f"hidden size {target.hidden_size:,}")
    if target.vocabulary_size is not None:
        sizes.append(f"{target.vocabulary_size:,} tokens")
    yield "target", f"{target.architecture or 'unnamed'}: {', '.join(sizes)}"
    shares = []
    if comparison.share_parameters is not None:
        shares.append(f"{comparison.share_parameters:.1%} of its parameters")
    if comparison.share_bytes is not None:
        shares.append(f"{comparison.share_bytes:.1%} of its bytes ({_bytes(target.bytes)})")
    if shares:
        yield "the draft is", ", ".join(shares)
    tokens = {
        None: "not compared: no tokenizer.json on both sides",
        True: "the same tokens",
        False: "different tokens",
    }
    yield "tokenizers", tokens[comparison.same_tokens]


def _loading(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Versions that answer alike in one line."""
    below = {problem.fact for problem in checkpoint.problems}
    for engine, answers in _answers(checkpoint):
        for _, group in groupby(answers, key=_unversioned):
            alike = list(group)
            first, last = alike[0][0], alike[-1][0]
            numbers = f" {first}" if first == last else f" {first} to {last}"
            title = ENGINES[engine].title
            yield title if first is None else title + numbers, _answer(alike[-1][1], below)


def _unversioned(answer: tuple[str | None, Loads]) -> tuple[Any, ...]:
    version, loading = answer
    return loading.yes, loading.method, loading.reason.replace(str(version), "")


def _answer(loading: Loads, below: set[str]) -> str:
    if not loading.yes:
        return "no, see below" if loading.reason in below else f"no. {loading.reason}"
    named = {name: json.dumps(value).strip('"') for name, value in loading.settings.items()}
    settings = "".join(f", {name} {value}" for name, value in named.items())
    reason = f". {loading.reason}" if loading.reason else ""
    return f"as {loading.method}{settings}{reason}"


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count:,} {name}s"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
