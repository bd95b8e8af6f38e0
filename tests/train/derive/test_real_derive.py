"""The real model's tokenizer, trimmed: texts are cut as before."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from paceline.bench.prompts.formats import find_workload
from paceline.train.derive.vocabulary import BytePairs, counted, kept_tokens

pytestmark = pytest.mark.model


def test_real_text_is_cut_as_before(smollm2_path: Path) -> None:
    """Its tokenizer alone: reading the weights out of the file would take half a minute."""
    whole = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    backend = whole.backend_tokenizer
    corpus = [m["content"] for prompt in find_workload("demo").prompts for m in prompt.messages]
    pairs = BytePairs("it", json.loads(backend.to_str()))
    tokens = kept_tokens(pairs, counted(backend, corpus), 8000, rows=len(whole))
    assert len(tokens) == 8000
    trimmed = Tokenizer.from_str(json.dumps(pairs.trimmed(tokens)))
    draw = random.Random(1)
    words = [word for text in corpus for word in text.split(" ")]
    texts = [*corpus, *(" ".join(draw.choices(words, k=30)) for _ in range(200)), "Ünïcödé 漢字 🙂"]
    same = 0
    for text in texts:
        theirs = backend.encode(text, add_special_tokens=False).ids
        ours = [tokens[token] for token in trimmed.encode(text, add_special_tokens=False).ids]
        assert backend.decode(ours, skip_special_tokens=False) == text
        if set(theirs) <= set(tokens):
            same += 1
            assert ours == theirs
    assert same >= len(corpus)
