"""A draft against the target that it is to draft for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from paceline.errors import DataError
from paceline.inspect.checkpoint import Checkpoint, Problem
from paceline.inspect.files import read_config
from paceline.inspect.read import read
from paceline.storage import decode_struct

TOKENIZER = "tokenizer.json"
WHOLE = ("vllm", "sglang", "tensorrt-llm")
"""Engines that draft with a model of just the target's vocabulary."""
LLAMA_SPREAD = 128
"""Tokens by which llama.cpp lets two vocabularies differ (`common/speculative.cpp`); above, its
server logs an error and serves without drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComparison:
    """What a target says of a draft.

    checkpoint         the draft, with what is wrong between the two added to its problems
    target             the target, as `read` has it
    layers             of the target
    share_bytes        of the target's bytes that the draft adds; None where one isn't known
    share_parameters   likewise
    same_tokens        both bring a tokenizer.json, and their tokens are the same (or aren't); None
                       if one has none
    """

    checkpoint: Checkpoint
    target: Checkpoint
    layers: int | None
    share_bytes: float | None
    share_parameters: float | None
    same_tokens: bool | None


def compare(checkpoint: Checkpoint, path: str | Path) -> TargetComparison:
    """Raises DataError where the target can't be read, or is a draft itself."""
    target = read(path)
    if target.kind not in ("model", "mtp"):
        raise DataError(
            f"{path} is not a target but a draft ({target.kind}).",
            "Name the model that is decoded.",
        )
    layers = _layers(target)
    same = _same_tokens(checkpoint.path, target.path)
    found = [
        *_widths(checkpoint, target),
        *_vocabularies(checkpoint, target, same),
        *_aux(checkpoint, layers),
    ]
    problems = sorted((*checkpoint.problems, *found), key=lambda problem: not problem.fatal)
    return TargetComparison(
        checkpoint=replace(
            checkpoint,
            compared_vocabulary_size=target.vocabulary_size,
            problems=tuple(problems),
        ),
        target=target,
        layers=layers,
        share_bytes=_share(checkpoint.bytes, target.bytes),
        share_parameters=_share(checkpoint.parameters, target.parameters),
        same_tokens=same,
    )


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part and whole else None


def _layers(target: Checkpoint) -> int | None:
    if target.kind == "model":
        return target.layers
    if target.format == "gguf":
        return None  # `layers` counts its MTP layers
    config = read_config(target.path)
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    return found if isinstance(found, int) else None


def _other_target(fact: str) -> Problem:
    return Problem(fact, "It was made for another target.", fatal=True)


def _widths(checkpoint: Checkpoint, target: Checkpoint) -> list[Problem]:
    own, its = checkpoint.target_hidden_size, target.hidden_size
    if own is None or its is None or own == its:
        return []
    return [_other_target(f"It reads states of {own:,} entries, and the target's have {its:,}.")]


def _vocabularies(checkpoint: Checkpoint, target: Checkpoint, same: bool | None) -> list[Problem]:
    own, its = checkpoint.vocabulary_size, target.vocabulary_size
    trained = checkpoint.kind != "model"
    apart = 0 if own is None or its is None else abs(own - its)
    known = []
    # transformers pairs tokens where the sizes differ, and takes equal ones for the same.
    stops = (*WHOLE, "llama-server", *(() if apart else ("transformers",)))
    if apart:
        fact = f"It was made for a vocabulary of {own:,}, and the target's has {its:,}."
        known.append((fact, "tokens", stops if apart > LLAMA_SPREAD else WHOLE))
    if same is False:
        fact = f"Its {TOKENIZER} has other tokens than the target's."
        known.append((fact, "tokens by their bytes", stops))
    if trained:
        return [_other_target(fact) for fact, _, _ in known]
    if checkpoint.map is not None:
        return []
    return [
        Problem(fact, f"Draft with it in Paceline, which pairs {what}.", stops=engines)
        for fact, what, engines in known
    ]


def _aux(checkpoint: Checkpoint, layers: int | None) -> list[Problem]:
    """A target of n layers has states 0 (its embedding) to n (behind its last layer)."""
    if layers is None or all(0 <= one <= layers for one in checkpoint.aux_layers):
        return []
    listed = ", ".join(map(str, checkpoint.aux_layers))
    return [_other_target(f"It reads the target's layers {listed}, and the target has {layers}.")]


def _same_tokens(draft: Path, target: Path) -> bool | None:
    one, other = draft / TOKENIZER, target / TOKENIZER
    try:
        if not (one.is_file() and other.is_file()):
            return None
        first, second = one.read_bytes(), other.read_bytes()
    except OSError as error:
        raise DataError(f"A {TOKENIZER} can't be read: {error}.", "Check it.") from None
    return first == second or _tokens(first, one) == _tokens(second, other)


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]  # unigram models list tokens with their scores


class _AddedToken(msgspec.Struct):
    content: str
    id: int


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: list[_AddedToken] | None = None


def _tokens(text: bytes, path: Path) -> dict[str, int]:
    """Ids by token, added ones included."""
    read = decode_struct(text, _TokenizerFile, str(path), "Fetch it again.")
    found = read.model.vocab
    ids = found if isinstance(found, dict) else {one: at for at, (one, _) in enumerate(found)}
    return ids | {added.content: added.id for added in read.added_tokens or ()}
