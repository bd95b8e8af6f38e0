"""Two vocabularies side by side: whether they are the same, and which tokens they share.

They are the same if their tokens have the same names (`check_pair`). Of others, tokens are shared
that add the same bytes to a text (Timor et al. 2025, Accelerating LLM Inference with Lossless
Speculative Decoding Algorithms for Heterogeneous Vocabularies). End tokens add none: those of the
same name are the same, and so are the only ones of both. Other control tokens are never shared,
because nothing says that they mean the same.

A draft whose vocabulary was cut out of its target's brings a map instead (`vocabulary_map.json` in
its directory), and nothing is matched:

    {"kind": "paceline vocabulary map", "version": 1, "target_tokens": N,
     "target_digest": "…", "ids": [the target's id of each token of the draft, or -1]}

with the digest that `vocabulary_digest` gives for the target's first N tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import numpy as np

from paceline.engines.base import Engine
from paceline.engines.tokenizer import Tokenizer
from paceline.errors import DataError, PairError
from paceline.storage import decode_struct

MAP_FILE = "vocabulary_map.json"
MAP_KIND = "paceline vocabulary map"
MAP_VERSION = 1
_HINT = "Derive the draft again for this target, or use another draft."

LEAST_SHARE = 0.01
"""Of the draft's tokens; with fewer in common its distribution has next to nothing to do with its
text."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The tokens that two vocabularies have in common, one to one.

    target    their ids in the target's vocabulary, rising; int64, shape (n,)
    draft     their ids in the draft's, in the same order; int64, shape (n,)
    fit       how much that is, in one line
    """

    target: np.ndarray
    draft: np.ndarray
    fit: str


def overlap(target: Engine, draft: Engine) -> Overlap:
    """What a target and a draft have in common, by the draft's map if it has one, else by bytes.

    Raises PairError if that is less than `LEAST_SHARE` of the draft's tokens, or if the map is of
    another target or draft.
    """
    place = None if draft.place is None else draft.place / MAP_FILE
    if place is not None and place.is_file():
        pairs = _mapped(place, target, draft)
    else:
        pairs = _matched(target.tokenizer, draft.tokenizer)
    # A tokenizer may know more tokens than its model has rows.
    sizes = target.vocabulary_size, draft.vocabulary_size
    pairs = {
        ours: theirs for ours, theirs in pairs.items() if ours < sizes[0] and theirs < sizes[1]
    }
    totals = _count(target.tokenizer), _count(draft.tokenizer)
    if not pairs or len(pairs) < LEAST_SHARE * totals[1]:
        raise PairError(
            f"The draft {draft.model} shares {len(pairs)} of its {totals[1]:,} tokens with the "
            "target.",
            "Let it draft by its text, with `-d text:MODEL`.",
        )
    ours = np.asarray(sorted(pairs), dtype=np.int64)
    theirs = np.asarray([pairs[token] for token in ours.tolist()], dtype=np.int64)
    return Overlap(ours, theirs, _fit(len(pairs), *totals))


def check_pair(target: Engine, draft: Engine) -> str:
    """Say in one line that the two vocabularies fit. Padding rows (ids without a name) are
    harmless: they have no text, and exactness does not depend on the draft.

    Raises PairError naming the first token that differs.
    """
    ours, theirs = target.tokenizer, draft.tokenizer
    shared = min(ours.size, theirs.size)
    for token in range(max(ours.size, theirs.size)):
        here = ours.piece(token) if token < ours.size else ""
        there = theirs.piece(token) if token < theirs.size else ""
        if here == there or not (matters(here) or matters(there)):
            continue
        raise PairError(
            f"The draft {draft.model} has another vocabulary: token {token} is {here!r} in the "
            f"target and {there!r} in the draft.",
            "Let it draft through what both have, with `-d shared:MODEL`, or by its text, with "
            "`-d text:MODEL`.",
        )
    padding = abs(target.vocabulary_size - draft.vocabulary_size)
    padded = f"; {padding} rows of padding differ" if padding else ""
    return f"same {shared} tokens{padded}"


def matters(piece: str) -> bool:
    """Whether a name stands for a token that can be emitted; GGUF files name padding rows."""
    return bool(piece) and not piece.startswith("[PAD")


def _fit(shared: int, ours: int, theirs: int) -> str:
    return (
        f"{shared:,} tokens are shared: {100 * shared / ours:.0f} % of the target's {ours:,}, "
        f"{100 * shared / theirs:.0f} % of the draft's {theirs:,}"
    )


def _count(tokenizer: Tokenizer) -> int:
    """Tokens that can be emitted in earnest: those with text, and the end tokens."""
    ends = tokenizer.end_tokens
    return sum(token in ends or bool(_text(tokenizer, token)) for token in range(tokenizer.size))


def _matched(ours: Tokenizer, theirs: Tokenizer) -> dict[int, int]:
    """The draft's token for each of the target's that it has too."""
    here, there = by_bytes(ours), by_bytes(theirs)
    pairs: dict[int, int] = {}
    for text in here.keys() & there.keys():
        pairs.update(zip(here[text], there[text], strict=False))
    pairs.update(matched_ends(ours, theirs))
    return pairs


def by_bytes(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """Tokens by their bytes. Of several with the same bytes, one named for a byte ("<0x41>") comes
    last: it is the spelling for what has no other."""
    found: dict[bytes, list[int]] = {}
    for token in range(tokenizer.size):
        text = _text(tokenizer, token)
        if text:
            found.setdefault(text, []).append(token)
    for tokens in found.values():
        if len(tokens) > 1:
            tokens.sort(key=lambda token: tokenizer.piece(token).startswith("<0x"))
    return found


def _text(tokenizer: Tokenizer, token: int) -> bytes:
    """A token's bytes; none for end tokens and for padding that has a name."""
    text = tokenizer.token_bytes(token)
    padding = text.startswith(b"[PAD") and not matters(tokenizer.piece(token))
    return b"" if padding or token in tokenizer.end_tokens else text


def matched_ends(ours: Tokenizer, theirs: Tokenizer) -> dict[int, int]:
    """The draft's end token for each of the target's that means the same."""
    here, there = ours.end_tokens, theirs.end_tokens
    if len(here) == len(there) == 1:
        return {min(here): min(there)}
    named = {theirs.piece(token): token for token in sorted(there, reverse=True)}
    return {token: named[name] for token in here if (name := ours.piece(token)) in named}


def _mapped(place: Path, target: Engine, draft: Engine) -> dict[int, int]:
    """The same from a map, which names the target of each token of the draft."""
    described = read_map(place)
    _check_target(place, described, target)
    ids = described.ids
    counts = {draft.tokenizer.size, draft.vocabulary_size}
    if len(ids) not in counts:
        _refuse(place, f"maps {len(ids):,} tokens, and the draft has {max(counts):,}")
    return {ours: theirs for theirs, ours in enumerate(ids) if ours >= 0}


def _check_target(place: Path, described: VocabularyMapFile, target: Engine) -> None:
    count, wanted = described.target_tokens, described.target_digest
    digest = vocabulary_digest(target.tokenizer, count)
    if digest != wanted:
        _refuse(
            place,
            f"is for a target of {count:,} tokens with the digest {wanted[:12]}, and the first "
            f"{count:,} of {target.model} have {digest[:12]}",
        )


class VocabularyMapFile(msgspec.Struct):
    """The file's content.

    target_tokens    so many of the target's tokens it was made for, and `target_digest` of them
    ids              per token of the draft the target's id, or -1
    """

    target_tokens: Annotated[int, msgspec.Meta(ge=1)]
    target_digest: str
    ids: list[Annotated[int, msgspec.Meta(ge=-1)]]


def read_map(place: Path) -> VocabularyMapFile:
    """A draft's vocabulary map, checked by itself. Raises DataError or PairError naming what is
    wrong."""
    try:
        data = place.read_bytes()
    except OSError as error:
        raise DataError(f"{place} can't be read: {error.strerror}.", _HINT) from None
    found = decode_struct(
        data, VocabularyMapFile, str(place), _HINT, kind=MAP_KIND, version=MAP_VERSION
    )
    seen: set[int] = set()
    for token, mapped in enumerate(found.ids):
        if mapped >= found.target_tokens:
            _refuse(place, f"has {mapped} for token {token}; ids run to {found.target_tokens - 1}")
        if mapped in seen:
            _refuse(place, f"gives the target's token {mapped} to two tokens of the draft")
        if mapped >= 0:
            seen.add(mapped)
    return found


def _refuse(place: Path, what: str) -> NoReturn:
    raise PairError(f"The vocabulary map {place} {what}.", _HINT)


def vocabulary_digest(tokenizer: Tokenizer, count: int | None = None) -> str:
    """SHA-256, in hexadecimal, of the names of tokens 0 … count - 1 (default: all the tokenizer
    has) in UTF-8, each after its length in bytes as four bytes, little endian.

    Names, not bytes, because every engine gives a token the same name, while they differ on which
    tokens end an answer and so have no text. Padding has none, whatever a file calls it.
    """
    digest = hashlib.sha256()
    for token in range(tokenizer.size if count is None else count):
        name = tokenizer.piece(token) if token < tokenizer.size else ""
        data = name.encode() if matters(name) else b""
        digest.update(len(data).to_bytes(4, "little"))
        digest.update(data)
    return digest.hexdigest()
