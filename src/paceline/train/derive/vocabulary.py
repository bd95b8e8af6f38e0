"""Fewer tokens: which ones, and a tokenizer that knows no others.

The head is a large part of a small model's weights, and most of its rows are hardly ever
used: FR-Spec (Zhao et al. 2025, arXiv:2502.14856) and VocabTrim (Goel et al. 2025,
arXiv:2506.22694) keep the rows that are most frequent in a corpus.

Here embeddings and tokenizer are trimmed with the head. A token is kept together with the parts
that byte pair encoding makes it of. So a text whose target tokens are all kept is cut by the
trimmed tokenizer into exactly those: of the merges that the target's makes in it, none is missing,
and among fewer merges the first one is still the first.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from paceline.engines.transformers.tokenizer import ALPHABET
from paceline.errors import DataError, ModelError, SettingError

CHUNK = 1 << 16
"""Characters of a text that are tokenized at a time."""


def counted(backend: Any, texts: Iterable[str]) -> Counter[int]:
    """How often each token stands in a corpus. Long texts are cut at line ends.

    Raises DataError for a corpus without tokens.
    """
    counts: Counter[int] = Counter()
    for chunk in _chunks(texts):
        counts.update(backend.encode(chunk, add_special_tokens=False).ids)
    if not counts:
        raise DataError("The corpus holds no tokens.", "Give one with text.")
    return counts


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        chunk = ""
        for line in text.splitlines(keepends=True):
            if chunk and len(chunk) + len(line) > CHUNK:
                yield chunk
                chunk = ""
            chunk += line
        yield chunk


class BytePairs:
    """A byte-level BPE vocabulary, from a tokenizer.json.

    Raises ModelError for another kind of tokenizer, by its name.
    """

    def __init__(self, target: str, description: dict[str, Any]) -> None:
        model = description["model"]
        kind = str(model.get("type"))
        levels = {step.get("type") for step in _steps(description.get("decoder"))}
        odd = [name for name in ODD if model.get(name)]
        if kind != "BPE" or "ByteLevel" not in levels or odd:
            named = f"{kind}{' with ' + ODD[odd[0]] if odd else ''}"
            if kind == "BPE" and not odd:
                named = "BPE that isn't byte-level"
            raise ModelError(
                f"The vocabulary of {target} can't be trimmed: its tokenizer is {named}.",
                "Trim models with byte-level BPE only, or keep the vocabulary whole.",
            )
        self.description = description
        self.ids: dict[str, int] = model["vocab"]
        self.added = {entry["id"] for entry in description.get("added_tokens", ())}
        pairs = (m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"])
        self.merges = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self._pieces = {token: piece for piece, token in self.ids.items()}

    def needed(self) -> set[int]:
        """Tokens that a tokenizer can't do without: every byte, and all added ones."""
        letters = {self.ids[letter] for letter in ALPHABET if letter in self.ids}
        unknown = self.description["model"].get("unk_token")
        return letters | self.added | ({self.ids[unknown]} if unknown in self.ids else set())

    def parts(self, token: int) -> set[int]:
        """A token, and those that merging its bytes goes through. Of one that merging can't make,
        only itself."""
        pieces = list(self._pieces[token]) if token in self._pieces else []
        through: set[str] = set()
        while len(pieces) > 1:
            pairs = [(self.merges.get(pair), at) for at, pair in enumerate(pairwise(pieces))]
            known = [(rank, at) for rank, at in pairs if rank is not None]
            if not known:
                return {token}
            _, at = min(known)
            pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
            through.add(pieces[at])
        return {token} | {self.ids[piece] for piece in through if piece in self.ids}

    def trimmed(self, kept: Sequence[int]) -> dict[str, Any]:
        """The tokenizer.json of some tokens, numbered in the order given. Added tokens that the
        target has no row for come behind them: there is none for them here either."""
        place = {token: at for at, token in enumerate(kept)}
        for token in sorted(self.added - place.keys()):
            place[token] = len(place)
        made = copy.deepcopy(self.description)
        made["truncation"] = made["padding"] = None
        model = made["model"]
        model["vocab"] = {p: place[token] for p, token in self.ids.items() if token in place}
        model["merges"] = [
            [left, right]
            for left, right in self.merges
            if {left, right, left + right} <= model["vocab"].keys()
        ]
        made["added_tokens"] = [
            entry | {"id": place[entry["id"]]} for entry in made.get("added_tokens", ())
        ]
        for step in _steps(made.get("post_processor")):
            for entry in (step.get("special_tokens") or {}).values():
                entry["ids"] = [place[token] for token in entry["ids"]]
            for name in ("sep", "cls"):
                if name in step:
                    step[name] = [step[name][0], place[step[name][1]]]
        return made


ODD = {
    "byte_fallback": "byte fallback, as SentencePiece makes it",
    "continuing_subword_prefix": "prefixes for continued words",
    "end_of_word_suffix": "suffixes for words' ends",
}
"""Settings of a BPE model that byte-level ones leave off."""


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """A part of a tokenizer.json and, if it is a sequence, what it is made of."""
    if part:
        yield part
        for name in ("decoders", "processors"):
            for inner in part.get(name, ()):
                yield from _steps(inner)


def kept_tokens(
    pairs: BytePairs, counts: Counter[int], size: int, *, rows: int, also: Iterable[int] = ()
) -> list[int]:
    """The `size` tokens that stay, ascending: what is needed, then the most frequent ones with
    their parts, then those merged first, as frequent where the tokenizer was trained.

    rows    of the target's embedding
    also    tokens that its config names

    Raises SettingError if `size` is more than the target has, or too small for what is needed.
    """
    known = sorted({*pairs.ids.values(), *pairs.added, *also} & {*range(rows)})
    kept = (pairs.needed() | set(also)).intersection(known)
    if not len(kept) <= size <= len(known):
        raise SettingError(
            f"The vocabulary is to have {size} tokens, and the target's has {len(known)}, of which "
            f"{len(kept)} are special tokens and single bytes.",
            f"Write {len(kept)} to {len(known)}.",
        )
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    for token in (*frequent, *known):
        if len(kept) == size:
            break
        more = pairs.parts(token) - kept
        if token < rows and len(more) <= size - len(kept):
            kept |= more
    return sorted(kept)


# Token ids in configs, after a vocabulary was trimmed.


def named_tokens(fields: Mapping[str, Any]) -> set[int]:
    """The tokens that a config names for a purpose: begin, end, padding …"""
    found: set[int] = set()
    for name, value in fields.items():
        if name.endswith(("_token_id", "_token_ids")) and isinstance(value, int | list):
            found.update(value if isinstance(value, list) else [value])
    return {token for token in found if token >= 0}


def renumbered(fields: Mapping[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
    """A config's fields with the new ids. What is said of tokens that are gone goes; an id that no
    token ever had (a padding of -1) stays."""
    made = dict(fields)

    def places(tokens: Sequence[int]) -> list[int]:
        return [place[token] for token in tokens]

    for name, value in fields.items():
        named = name.endswith(("_token_id", "_token_ids"))
        listed = named or name in ("suppress_tokens", "begin_suppress_tokens")
        if listed and isinstance(value, list):
            made[name] = [place[token] for token in value if token in place]
        elif named and isinstance(value, int):
            made[name] = place.get(value, None if value >= 0 else value)
        elif name == "bad_words_ids" and value:
            made[name] = [places(tokens) for tokens in value if place.keys() >= set(tokens)]
        elif name == "sequence_bias" and value:
            made[name] = [
                [places(tokens), bias] for tokens, bias in value if place.keys() >= set(tokens)
            ]
    return made
