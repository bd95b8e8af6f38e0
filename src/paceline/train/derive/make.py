"""A draft model made from its target, as a directory that any engine can load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from paceline.drafts.vocabulary import MAP_FILE, MAP_KIND, MAP_VERSION, vocabulary_digest
from paceline.engines.load import resolve
from paceline.engines.transformers.load import (
    DTYPES,
    convert_gguf,
    locate,
    read_weights,
    readable,
    refuse_what_cant_be_undone,
)
from paceline.engines.transformers.tokenizer import TransformersTokenizer
from paceline.errors import ModelError, SettingError, unknown_name
from paceline.train.derive import write
from paceline.train.derive.layers import check_config, chosen_layers, cut, layer_count
from paceline.train.derive.vocabulary import (
    BytePairs,
    counted,
    kept_tokens,
    named_tokens,
    renumbered,
)


@dataclass(frozen=True, slots=True)
class DerivedModel:
    """What was made.

    layers        numbers of the target's layers that stay, of `layers_of`
    tokens        rows of the vocabulary, of `tokens_of`
    parameters    of the draft, `parameters_of` the target
    size_bytes    of the draft's weights
    dtype         of its weights
    covered       share of the corpus's tokens that are among those kept; None without a corpus
    """

    directory: Path
    target: str
    layers: tuple[int, ...]
    layers_of: int
    tokens: int
    tokens_of: int
    parameters: int
    parameters_of: int
    size_bytes: int
    dtype: str
    covered: float | None

    def lines(self) -> Iterator[str]:
        """As text."""
        share = self.parameters / self.parameters_of
        yield (
            f"{self.directory}: {len(self.layers)} of {self.layers_of} layers, {self.tokens} of "
            f"{self.tokens_of} tokens"
        )
        yield (
            f"{self.parameters / 1e6:.1f} million parameters, {share:.0%} of the target's; "
            f"{self.size_bytes / 1e6:.0f} MB in {self.dtype}"
        )
        if self.covered is not None:
            yield f"the kept tokens are {self.covered:.1%} of the corpus"
        yield f"Try it: paceline generate {self.target} -d {self.directory}"


@dataclass(frozen=True, slots=True)
class _Source:
    """A target before its weights are read."""

    target: str
    name: str
    config: Any
    generation: dict[str, Any]
    tokenizer: Any


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What stays of a vocabulary: the target's ids, a tokenizer.json for them, and their share of
    the corpus."""

    tokens: list[int]
    description: dict[str, Any]
    covered: float


def derive(
    target: str,
    directory: str | Path,
    *,
    layers: str | None = None,
    keep: int | None = None,
    vocabulary: int | None = None,
    corpus: Iterable[str] | None = None,
    dtype: str | None = None,
) -> DerivedModel:
    """Make a draft model from a target, and train nothing.

    target        a model directory, hub name, GGUF file (converted first) or demo name
    directory     where the draft goes; it must not exist, or be empty
    layers, keep  which layers stay; see `chosen_layers`
    vocabulary    so many tokens stay, the most frequent ones of the corpus; None keeps all
    corpus        texts, best such as the target writes
    dtype         of the weights; by default as the target's are (bfloat16 for a GGUF file)

    Nothing is left behind unless all of it was written. Raises SettingError, ModelError or
    DataError.
    """
    if (vocabulary is None) != (corpus is None):
        raise SettingError(
            "A number of tokens and a corpus to count them in go together; one is missing.",
            "Give both or neither.",
        )
    if dtype not in (None, "auto", *DTYPES):
        raise unknown_name("dtype", str(dtype), ["auto", *DTYPES])
    dtype = None if dtype == "auto" else dtype
    place = write.free_place(Path(directory))
    source = _opened(target, dtype)
    count = layer_count(target, source.config)
    kept = chosen_layers(count, layers, keep)
    trimmed = None
    if vocabulary is not None and corpus is not None:
        trimmed = _trimmed(source, vocabulary, corpus)
    with readable(target):
        model = read_weights(target, source.name, dtype).eval()
    whole = sum(weights.numel() for weights in model.parameters())
    cut(target, model, kept)
    if trimmed is not None:
        _trim(model, trimmed.tokens)
    check_config(target, model, kept)
    weights = list(model.parameters())
    made = DerivedModel(
        directory=place,
        target=target,
        layers=tuple(kept),
        layers_of=count,
        tokens=model.config.vocab_size,
        tokens_of=source.config.vocab_size,
        parameters=sum(part.numel() for part in weights),
        parameters_of=whole,
        size_bytes=sum(part.numel() * part.element_size() for part in weights),
        dtype=str(model.dtype).removeprefix("torch."),
        covered=None if trimmed is None else trimmed.covered,
    )
    with write.directory(place, made.size_bytes) as fresh:
        _write(fresh, source, model, made, trimmed)
    return made


def _opened(target: str, dtype: str | None) -> _Source:
    with readable(target):
        source = locate(resolve(target))
        if isinstance(source, Path) and source.is_file():
            source = convert_gguf(source, dtype or "bfloat16")
        name = str(source)
        config = AutoConfig.from_pretrained(name)
        refuse_what_cant_be_undone(target, config)
        try:
            generation = GenerationConfig.from_pretrained(name)
        except OSError:  # it has none
            generation = GenerationConfig.from_model_config(config)
        tokenizer = AutoTokenizer.from_pretrained(name)
    return _Source(target, name, config, generation.to_diff_dict(), tokenizer)


def _trimmed(source: _Source, size: int, corpus: Iterable[str]) -> _Vocabulary:
    backend = getattr(source.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"The vocabulary of {source.target} can't be trimmed: its tokenizer is "
            f"{type(source.tokenizer).__name__}, which has no tokenizer.json.",
            "Keep the vocabulary whole.",
        )
    pairs = BytePairs(source.target, json.loads(backend.to_str()))
    backend.no_truncation()
    counts = counted(backend, corpus)
    also = named_tokens(source.config.to_dict()) | named_tokens(source.generation)
    tokens = kept_tokens(pairs, counts, size, rows=source.config.vocab_size, also=also)
    covered = sum(counts[token] for token in tokens) / counts.total()
    return _Vocabulary(tokens, pairs.trimmed(tokens), covered)


def _trim(model: Any, tokens: Sequence[int]) -> None:
    """Leave only some rows in a model's embedding and head, and tell its config."""
    rows = torch.tensor(tokens)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head.weight is embedding.weight
    with torch.no_grad():
        embedding.weight = torch.nn.Parameter(embedding.weight[rows])
        head.weight = embedding.weight if tied else torch.nn.Parameter(head.weight[rows])
        if getattr(head, "bias", None) is not None:
            head.bias = torch.nn.Parameter(head.bias[rows])
    place = {token: at for at, token in enumerate(tokens)}
    fields = renumbered(model.config.to_dict(), place) | {"vocab_size": len(tokens)}
    model.config = type(model.config).from_dict(fields)


def _write(
    fresh: Path, source: _Source, model: Any, made: DerivedModel, trimmed: _Vocabulary | None
) -> None:
    generation, description = source.generation, None
    if trimmed is not None:
        generation = renumbered(generation, {token: at for at, token in enumerate(trimmed.tokens)})
        description, names = trimmed.description, TransformersTokenizer(source.tokenizer)
        vocabulary_map = {
            "kind": MAP_KIND,
            "version": MAP_VERSION,
            "target_tokens": names.size,
            "target_digest": vocabulary_digest(names),
            "ids": [token if token < names.size else -1 for token in trimmed.tokens],
        }
        (fresh / MAP_FILE).write_text(json.dumps(vocabulary_map) + "\n", encoding="utf-8")
    # What a target's file says may not pass the checks that transformers makes on saving.
    model.generation_config = GenerationConfig()
    model.save_pretrained(fresh)
    write.json_file(fresh / "generation_config.json", generation)
    write.tokenizer(fresh, source.tokenizer, description)
    write.model_card(fresh, made, Path(source.name))
