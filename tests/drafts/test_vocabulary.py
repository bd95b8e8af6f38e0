"""What two vocabularies share, by bytes or by a derived draft's map, and reading across them."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest
from pieces import model

from paceline.drafts.cross_tokenizer.reading import TextReader, encode_after
from paceline.drafts.vocabulary import MAP_FILE, check_pair, overlap, vocabulary_digest
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, PairError


def pairs(target: ToyEngine, draft: ToyEngine) -> list[tuple[int, int]]:
    found = overlap(target, draft)
    return list(zip(found.target.tolist(), found.draft.tolist(), strict=True))


def test_tokens_with_the_same_bytes_are_shared_and_counted() -> None:
    target = model([b"a", b"bc", b"d", b"\xc3", b"", b"<x>", "<x>"])
    draft = model([b"d", b"b", b"a", b"\xc3", b"e", b"<x>"])
    assert pairs(target, draft) == [(0, 2), (2, 0), (3, 3), (5, 5)]
    fit = overlap(target, draft).fit
    assert fit == "4 tokens are shared: 80 % of the target's 5, 67 % of the draft's 6"


def test_end_tokens_are_matched_by_name_or_as_the_only_ones() -> None:
    ours = [b"a", "<end>", "</s>"]
    assert pairs(model(ours), model(["</s>", b"a", "<end>"])) == [(0, 1), (1, 2), (2, 0)]
    assert pairs(model(ours), model(["</s>", b"a", b"b"])) == [(0, 1), (2, 0)]
    assert pairs(model([b"a", "<end>"]), model(["</s>", b"a"])) == [(0, 1), (1, 0)]


def test_an_end_token_is_no_text_and_other_control_tokens_are_not_shared() -> None:
    assert pairs(model([b"a", "</s>"]), model([b"</s>", b"a"])) == [(0, 1)]
    assert pairs(model([b"a", "<tool>"]), model([b"a", "<tool>"])) == [(0, 0)]


def test_of_tokens_with_the_same_bytes_the_byte_s_own_name_comes_last() -> None:
    target, draft = model([b"A", b"b"]), model([b"A", b"A", b"b"])
    draft.tokenizer.control[0] = "<0x41>"
    assert pairs(target, draft) == [(0, 1), (1, 2)]
    assert pairs(draft, draft) == [(0, 0), (1, 1), (2, 2)]


def test_padding_and_rows_that_a_model_lacks_are_not_shared() -> None:
    target, draft = model([b"a", b"b", b"[PAD2]"]), model([b"b", b"[PAD1]", b"[PAD2]", b"a"])
    assert pairs(target, draft) == [(0, 3), (1, 0)]
    draft.vocabulary_size = 3
    assert pairs(target, draft) == [(1, 0)]
    target.vocabulary_size = 1
    with pytest.raises(PairError):
        overlap(target, draft)


def test_next_to_nothing_in_common_is_refused_with_the_other_way() -> None:
    target = model([b"a", b"b"])
    with pytest.raises(PairError, match="shares 0 of its 1 tokens with the target.*text:MODEL"):
        overlap(target, model([b"c"]))
    many = [b"a", *(bytes([200, i]) for i in range(150))]
    with pytest.raises(PairError, match="shares 1 of its 151 tokens"):
        overlap(target, model(many))
    assert pairs(target, model(many[:100])) == [(0, 0)]


def test_another_vocabulary_is_refused_naming_the_ways_that_work() -> None:
    with pytest.raises(PairError, match="-d shared:MODEL.*-d text:MODEL"):
        check_pair(model([b"a", b"b"]), model([b"b", b"a"]))


def derived(place: Path, target: ToyEngine, draft: ToyEngine, **changes) -> ToyEngine:
    """A draft with a map that gives each token the target's next one but one."""
    ids = [1 - i if i < 2 else -1 for i in range(draft.vocabulary_size)]
    document = {
        "kind": "paceline vocabulary map",
        "version": 1,
        "target_tokens": target.tokenizer.size,
        "target_digest": vocabulary_digest(target.tokenizer),
        "ids": ids,
    }
    (place / MAP_FILE).write_text(json.dumps(document | changes))
    draft.place = place
    return draft


def test_a_map_is_used_instead_of_bytes(tmp_path: Path) -> None:
    target, draft = model([b"a", b"b", "</s>"]), model([b"a", b"b", b"c"])
    assert pairs(target, draft) == [(0, 0), (1, 1)]
    assert pairs(target, derived(tmp_path, target, draft)) == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": [0, 1]}, "maps 2 tokens, and the draft has 3"),
        ({"ids": [0, 1, 3]}, "has 3 for token 2; ids run to 2"),
        ({"ids": [0, -2, 1]}, "ids\\[1\\] is -2"),
        ({"ids": [0, 1.5, 2]}, "ids\\[1\\] is 1.5"),
        ({"ids": [0, 1, 0]}, "gives the target's token 0 to two tokens"),
        ({"ids": None}, "ids: expected `array`"),
        ({"target_digest": "0" * 64}, "is for a target of 3 tokens with the digest 000000000000"),
        ({"target_digest": 7}, "target_digest is 7"),
        ({"target_tokens": 2}, "is for a target of 2 tokens"),
        ({"target_tokens": "3"}, "target_tokens is '3'"),
        ({"version": 0}, "has version 0 of the format"),
        ({"kind": "another"}, "is not a paceline vocabulary map file"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_naming_what_differs(
    tmp_path: Path, changes: dict, said: str
) -> None:
    target, draft = model([b"a", b"b", "</s>"]), model([b"a", b"b", b"c"])
    with pytest.raises((PairError, DataError), match=said):
        overlap(target, derived(tmp_path, target, draft, **changes))


def test_a_map_that_is_no_json_is_refused(tmp_path: Path) -> None:
    draft = derived(tmp_path, model([b"a"]), model([b"a"]))
    (tmp_path / MAP_FILE).write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        overlap(model([b"a"]), draft)


def test_the_digest_is_of_the_names_and_knows_no_padding() -> None:
    tokenizer = model([b"ab", "</s>", b"[PAD2]", b""]).tokenizer
    spelled = b"\2\0\0\0ab" + b"\4\0\0\0</s>" + b"\0\0\0\0" * 2
    assert vocabulary_digest(tokenizer) == hashlib.sha256(spelled).hexdigest()
    bare = model([b"ab", "</s>"]).tokenizer
    assert vocabulary_digest(bare, 4) == vocabulary_digest(tokenizer)
    assert vocabulary_digest(bare) == vocabulary_digest(tokenizer, 2)
    assert vocabulary_digest(model([b"a", b"b</s>"]).tokenizer) != vocabulary_digest(bare)
    # Which tokens end an answer is the engine's to say, and no part of the vocabulary.
    told = model([b"ab", b"</s>"]).tokenizer
    assert vocabulary_digest(told) == vocabulary_digest(bare)


def reader(target: ToyEngine, draft: ToyEngine) -> TextReader:
    return TextReader(target.tokenizer, draft.tokenizer)


def test_text_is_read_in_the_draft_s_own_splitting() -> None:
    target = model([b"a", b"b", b"ab", b"c"])
    read = reader(target, model([b"a", b"b", b"c", b"abc", b"bc"]))
    assert read.prompt([0, 1, 3, 3]) == [3, 2]
    assert read.read([2]) == [0, 1], "a token that the draft lacks, by its bytes"
    assert read.read([3]) == [2], "one that it has, as itself"


def test_the_draft_s_own_tokens_are_kept_as_far_as_they_say_what_is_committed() -> None:
    target = model([b"a", b"b", b"c", b"abc", "</s>"])
    read = reader(target, model([b"a", b"b", b"c", b"ab", b"bc", "</s>"]))
    assert read.read([0, 1, 2], drafted=[0, 4]) == [0, 4]
    assert read.read([0, 1, 0], drafted=[0, 4]) == [0, 1, 0]
    assert read.read([0, 1], drafted=[3, 2]) == [3]
    assert read.read([3], drafted=[0, 1]) == [0, 1, 2]
    assert read.read([0, 4, 1, 2], drafted=[0, 5, 1, 2]) == [0, 5, 1, 2]
    for differing in ([0, 1, 2], [0, 3, 1, 2]):
        assert read.read([0, 4, 1, 2], drafted=differing) == [0, 5, 4], "nothing behind that"


def test_control_tokens_are_read_by_name_and_the_beginning_once() -> None:
    target = model(["<s>", "<user>", b"a", "<only here>"])
    draft = model([b"a", "<user>", "<s>"], begin=[2])
    read = reader(target, draft)
    assert read.prompt([0, 1, 2, 3, 2]) == [2, 1, 0, 0]
    assert read.prompt([1, 2]) == [2, 1, 0], "the draft's own beginning"
    assert reader(draft, target).prompt([2, 0]) == [0, 2]
    assert reader(model([b"a"], begin=[]), model([b"a"])).prompt([]) == []


def test_halves_of_characters_are_spelled_and_what_cannot_be_is_left_out(caplog) -> None:
    target = model([b"a", b"\xc3", b"\xbc", b"z", b"\xf0\x9f"])
    read = reader(target, model([b"a", b"\xc3", b"\xbc", "\x00", b"\xc3\xbc", b"\xf0"]))
    assert read.prompt([0, 1, 2, 0]) == [0, 4, 0]
    assert read.read([1]) == [1]
    assert read.read([0, 1]) == [0, 1]
    assert read.read([2, 0]) == [2, 0]
    with caplog.at_level(logging.WARNING, logger="paceline"):
        assert read.read([4]) == [5]
        assert read.read([3, 0]) == [0]
    assert [record.getMessage() for record in caplog.records] == [
        "The draft's vocabulary has no token for the byte b'\\x9f': it reads the text without what "
        "it can't spell."
    ]


def test_a_space_put_before_every_text_is_not_taken_for_text() -> None:
    target = model([b"a", b"b", b" "])
    read = reader(target, model([b" a", b"a", b"b", b" ", b"\n"], space=True))
    assert read.prompt([0, 1]) == [1, 2]
    assert read.prompt([2, 0, 1]) == [0, 2]
    short = model([b" a", b"a", b"b", b" \n", b"ab"], space=True, shortest=True)
    assert reader(target, short).prompt([0, 1, 0, 1]) == [1, 2, 1, 2]


def test_what_is_a_token_of_the_draft_stays_that_whatever_its_tokenizer_says() -> None:
    target, draft = model([b"ab", b"b"]), model([b"a", b"b", b"ab"], shortest=True)
    assert reader(target, draft).read([0]) == [2]
    assert reader(target, draft).read([0, 1]) == [0, 1, 1]
    named = model([b"b", b"b", b"ab"])
    named.tokenizer.control[0] = "<0x62>"
    assert reader(target, named).read([1]) == [1]


def test_a_text_is_encoded_in_its_place() -> None:
    tokenizer = model([b"a", b"b", b"ab", b" ", b" a", "</s>", b"<", b"\xc3\xbc", b"c"]).tokenizer
    assert encode_after(b"b", b"ab", tokenizer) == [2]
    assert encode_after(b"b a", b"b", tokenizer) == [1]
    assert encode_after(b"a", b"b", tokenizer) is None, "one token spans the border"
    assert encode_after(b"a", b"a</s>", tokenizer) is None, "a control token says no text"
    assert encode_after(b"</s>", b"a", tokenizer) == [0]
    assert encode_after(b"a", b"\xc3", tokenizer) is None
    assert encode_after(b"a", b"?", tokenizer) is None
    assert encode_after(b"a", b"", tokenizer) == []
    spaced = model([b"a", b" a", b"b", b" "], space=True).tokenizer
    assert encode_after(b"a", b"b", spaced) == [2]
    assert encode_after(b"", b"a", spaced) is None
