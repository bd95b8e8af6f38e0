"""A trimmed byte-level vocabulary: which tokens stay, and that texts are cut as before."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.engines.transformers.tokenizer import ALPHABET
from paceline.errors import DataError, ModelError, SettingError
from paceline.train.derive.vocabulary import (
    CHUNK,
    BytePairs,
    counted,
    kept_tokens,
    named_tokens,
    renumbered,
)

WORDS = [
    "low",
    "lower",
    "lowest",
    "new",
    "newer",
    "newest",
    "wide",
    "wider",
    "widest",
    "naïve",
    "漢字",
    "🙂",
    "the",
    "then",
    "them",
    "other",
]
SPECIAL = ["<s>", "</s>", "<tool>"]


def texts(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=12)) for _ in range(count)]


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    """Byte-level BPE of 300 tokens, with special tokens at its start."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(200), trainer)
    return made


@pytest.fixture
def description(backend: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(backend.to_str())
    return found


def made(description: dict[str, Any], tokens: list[int]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(BytePairs("it", description).trimmed(tokens)))


class TestCutting:
    @pytest.mark.parametrize("size", [264, 270, 285, 299])
    def test_a_text_of_kept_tokens_is_cut_as_by_the_target(
        self, backend: Tokenizer, description: dict[str, Any], size: int
    ) -> None:
        pairs = BytePairs("it", description)
        tokens = kept_tokens(pairs, counted(backend, texts(20)), size, rows=300)
        trimmed, among = made(description, tokens), 0
        assert len(tokens) == size == trimmed.get_vocab_size()
        for text in [*WORDS, *(" " + word for word in WORDS), *texts(300, seed=2)]:
            theirs = backend.encode(text).ids
            ours = [tokens[token] for token in trimmed.encode(text).ids]
            assert backend.decode(ours) == text, "every text can be written"
            if set(theirs) <= set(tokens):
                among += 1
                assert ours == theirs
        assert among >= 3

    def test_merges_of_parts_that_are_gone_are_gone(self, description: dict[str, Any]) -> None:
        """Else a whole text would be cut otherwise: the tokenizer wouldn't even load."""
        pairs = BytePairs("it", description)
        tokens = kept_tokens(pairs, Counter(), 280, rows=300)
        model = pairs.trimmed(tokens)["model"]
        assert 0 < len(model["merges"]) < len(description["model"]["merges"])
        for left, right in model["merges"]:
            assert {left, right, left + right} <= model["vocab"].keys()

    def test_whole_words_of_a_tokenizer_that_looks_before_it_merges(
        self, description: dict[str, Any]
    ) -> None:
        """As Llama 3's: a word that is a token needs no merges."""
        model = description["model"]
        model["ignore_merges"] = True
        model["vocab"]["xyz"] = 300
        whole = Tokenizer.from_str(json.dumps(description))
        assert whole.encode("xyz").ids == [300]
        pairs = BytePairs("it", description)
        assert pairs.parts(300) == {300}
        counts = Counter({300: 9})
        tokens = kept_tokens(pairs, counts, 275, rows=301)
        assert tokens[-1] == 300
        trimmed = made(description, tokens)
        assert [tokens[token] for token in trimmed.encode("xyz").ids] == [300]


class TestChoice:
    def test_special_tokens_and_bytes_always_stay_and_frequent_ones_come_first(
        self, description: dict[str, Any]
    ) -> None:
        pairs = BytePairs("it", description)
        vocabulary = description["model"]["vocab"]
        needed = {0, 1, 2} | {vocabulary[letter] for letter in ALPHABET}
        assert pairs.needed() == needed
        long = max(vocabulary, key=len)
        parts = pairs.parts(vocabulary[long])
        assert len(parts) > 2
        size = len(needed | parts)
        tokens = kept_tokens(pairs, Counter({vocabulary[long]: 3}), size, rows=300)
        assert set(tokens) == needed | parts
        [first] = set(kept_tokens(pairs, Counter(), len(needed) + 1, rows=300)) - needed
        assert first == len(needed), "with nothing counted, what was merged first"

    def test_what_does_not_fit_is_passed_over(self, description: dict[str, Any]) -> None:
        pairs = BytePairs("it", description)
        vocabulary = description["model"]["vocab"]
        long = vocabulary[max(vocabulary, key=len)]
        size = len(pairs.needed()) + 1
        tokens = kept_tokens(pairs, Counter({long: 9}), size, rows=300)
        assert long not in tokens
        assert len(tokens) == size

    @pytest.mark.parametrize("size", [1, 258, 301])
    def test_sizes_that_cannot_be_say_which_can(
        self, description: dict[str, Any], size: int
    ) -> None:
        pairs = BytePairs("it", description)
        with pytest.raises(SettingError, match=f"{size} tokens, .* has 300.*Write 259 to 300"):
            kept_tokens(pairs, Counter(), size, rows=300)

    def test_tokens_that_a_config_names_stay_rows_or_not(self, description: dict[str, Any]) -> None:
        pairs = BytePairs("it", description)
        tokens = kept_tokens(pairs, Counter(), 261, rows=360, also=[290, 355])
        assert tokens[-2:] == [290, 355]
        assert kept_tokens(pairs, Counter(), 260, rows=300, also=[290, 355])[-1] == 290

    def test_an_added_token_without_a_row_has_none_either(
        self, description: dict[str, Any]
    ) -> None:
        description["added_tokens"].append(
            description["added_tokens"][0] | {"id": 400, "content": "<more>"}
        )
        pairs = BytePairs("it", description)
        tokens = kept_tokens(pairs, Counter(), 280, rows=300)
        assert (len(tokens), tokens[-1] < 300) == (280, True)
        assert made(description, tokens).token_to_id("<more>") == 280


class TestOtherTokenizers:
    def test_they_are_refused_by_name(self, description: dict[str, Any]) -> None:
        unigram = json.loads(
            Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)).to_str()
        )
        with pytest.raises(ModelError, match="of it can't be trimmed: its tokenizer is Unigram"):
            BytePairs("it", unigram)
        fallback = copy.deepcopy(description)
        fallback["model"]["byte_fallback"] = True
        with pytest.raises(ModelError, match="BPE with byte fallback, as SentencePiece"):
            BytePairs("it", fallback)
        description["decoder"] = {"type": "BPEDecoder", "suffix": "</w>"}
        with pytest.raises(ModelError, match="BPE that isn't byte-level"):
            BytePairs("it", description)

    def test_what_surrounds_a_text_gets_its_new_numbers(self, description: dict[str, Any]) -> None:
        description["post_processor"] = {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
                {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "lowest", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                    "special_tokens": {
                        "lowest": {"id": "lowest", "ids": [290], "tokens": ["lowest"]}
                    },
                },
            ],
        }
        pairs = BytePairs("it", description)
        tokens = kept_tokens(pairs, Counter(), 262, rows=300, also=[290])
        trimmed = made(description, tokens)
        assert tokens[trimmed.encode("a").ids[0]] == 290


class TestCounting:
    def test_every_token_of_every_text_is_counted(self, backend: Tokenizer) -> None:
        long = "the newest\n" * (CHUNK // 8)
        counts = counted(backend, [long, "", "<s>them"])
        expected = Counter(backend.encode(long).ids) + Counter(backend.encode("<s>them").ids)
        assert counts == expected

    def test_a_corpus_without_tokens_is_refused(self, backend: Tokenizer) -> None:
        with pytest.raises(DataError, match="holds no tokens"):
            counted(backend, ["", ""])


def test_configs_get_the_new_numbers_and_lose_what_is_gone() -> None:
    fields = {
        "bos_token_id": 5,
        "eos_token_id": [6, 9],
        "pad_token_id": -1,
        "forced_bos_token_id": None,
        "suppress_tokens": [5, 8],
        "bad_words_ids": [[5, 6], [5, 8]],
        "sequence_bias": [[[6], 1.5], [[8], 2.0]],
        "vocab_size": 10,
        "temperature": 0.6,
    }
    assert named_tokens(fields) == {5, 6, 9}
    assert renumbered(fields, {5: 0, 6: 1, 9: 2}) == {
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
        "pad_token_id": -1,
        "forced_bos_token_id": None,
        "suppress_tokens": [0],
        "bad_words_ids": [[0, 1]],
        "sequence_bias": [[[1], 1.5]],
        "vocab_size": 10,
        "temperature": 0.6,
    }
