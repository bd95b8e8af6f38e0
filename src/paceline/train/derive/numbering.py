"""Token ids in configs, after a vocabulary was trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LISTS = ("suppress_tokens", "begin_suppress_tokens")
SEQUENCES = ("bad_words_ids",)


def named_tokens(fields: Mapping[str, Any]) -> set[int]:
    """The tokens that a config names for a purpose: begin, end, padding …"""
    return {token for _, value in _named(fields) for token in _listed(value) if token >= 0}


def renumbered(fields: Mapping[str, Any], place: Mapping[int, int]) -> dict[str, Any]:
    """A config's fields with the new ids. What is said of tokens that are gone goes; an id that no
    token ever had (a padding of -1) stays."""
    made = dict(fields)
    for name, value in _named(fields):
        if isinstance(value, list):
            made[name] = [place[token] for token in value if token in place]
        else:
            made[name] = place.get(value, None if value >= 0 else value)
    for name in LISTS:
        if fields.get(name):
            made[name] = [place[token] for token in fields[name] if token in place]
    for name in SEQUENCES:
        if fields.get(name):
            made[name] = [
                [place[token] for token in sequence]
                for sequence in fields[name]
                if place.keys() >= set(sequence)
            ]
    if fields.get("sequence_bias"):
        made["sequence_bias"] = [
            [[place[token] for token in sequence], bias]
            for sequence, bias in fields["sequence_bias"]
            if place.keys() >= set(sequence)
        ]
    return made


def _named(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        ids = isinstance(value, int) or (isinstance(value, list) and value)
        if name.endswith(("_token_id", "_token_ids")) and ids:
            yield name, value


def _listed(value: int | list[int]) -> list[int]:
    return value if isinstance(value, list) else [value]
