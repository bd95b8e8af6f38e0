"""From a run on two live servers to a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.server.answer import Answer
from paceline.bench.server.result import (
    AGAINST,
    FIRST,
    Asked,
    Segment,
    ServerBenchHeader,
    ServerResult,
)
from paceline.errors import DataError, SettingError
from paceline.monitor.counters import Counters
from paceline.plan.document import PlanDocument, PlannedDraft, Step, decode_plan
from paceline.plan.servers import decide_servers

DRAFT = PlannedDraft(kind="model", name="owner/draft", model="owner/draft")
SERVER = {"url": "http://h:1/v1", "model": "big", "server": "vLLM", "version": "0.32.0"}
CATEGORIES = {"code": 1.2, "chat": 0.8}
TOKENS = 21  # of an answer, the first one included


def answer(seconds: float, **changes: Any) -> Answer:
    return Answer(
        **{
            "text": "x",
            "ttft_s": 0.1,
            "decode_s": seconds,
            "total_s": 0.1 + seconds,
            "output_tokens": TOKENS,
            "finish_reason": "length",
            "pieces": TOKENS,
            "arrivals": TOKENS,
            **changes,
        }
    )


def counted(answers: int, *, drafts: float = 5, accepted: float = 10, k: int = 4) -> Counters:
    """Of so many answers: drafted rounds and accepted tokens an answer, of `k` drafted a round."""
    at = [0.8 * drafts, 0.6 * drafts, 0.4 * drafts, 0.2 * drafts][:k]
    return Counters(
        "vLLM",
        drafts=answers * drafts,
        drafted=answers * drafts * k,
        accepted=answers * accepted,
        generated=float(answers * TOKENS),
        accepted_by_position=tuple(answers * x for x in at),
    )


def live(
    gains: dict[int, float],
    counters: Counters | None = None,
    against: Counters | None = None,
    *,
    spread: float = 0.02,
    servers: dict[str, dict[str, Any]] | None = None,
    each: int = 8,
    **changes: Any,
) -> ServerResult:
    """By number of clients, how many times as fast the endpoint is; of code more, of chat less."""
    prompts = tuple((f"{c}-{i}", c, None) for c in CATEGORIES for i in range(each))
    header = ServerBenchHeader(
        **{
            "started": "2026-03-01T12:00:00+00:00",
            "servers": servers or {FIRST: SERVER, AGAINST: SERVER | {"url": "http://h:2/v1"}},
            "workload": {"name": "mine", "prompts": len(prompts), "skipped": []},
            "prompts": prompts,
            "sampling": {"temperature": 0.0, "top_p": 1.0, "min_p": 0.05, "seed": None},
            "concurrency": tuple(gains),
            "client": {"cpu": "A CPU", "cores": 8},
            **changes,
        }
    )
    result = ServerResult(header)
    for block, n in enumerate(gains):
        for server in header.servers:
            for at, (id, category, _) in enumerate(prompts):
                faster = gains[n] * CATEGORIES[category] * (1 + spread * (-1) ** at)
                seconds = 2.0 / faster if server == FIRST else 2.0
                one = answer(seconds, ttft_s=50.0 if at == 0 else 0.1)
                result.asked.append(Asked(server, n, block, id, category, False, one))
            found = counters if server == FIRST else against
            result.segments.append(
                Segment(
                    server,
                    n,
                    n,
                    block,
                    tuple(CATEGORIES),
                    len(prompts),
                    30.0,
                    TOKENS * len(prompts),
                    found,
                )
            )
    return result


def checked(plan: PlanDocument) -> PlanDocument:
    assert decode_plan(json.dumps(plan.as_json())) == plan
    return plan


def test_what_pays_with_what_the_server_counted() -> None:
    result = live({1: 1.6}, counted(16))
    plan = checked(decide_servers(result, DRAFT, 4, file="run.jsonl"))
    assert (plan.draft, plan.max_draft_tokens) == (DRAFT, 4)
    assert (plan.target.name, plan.target.engine, plan.target.path) == ("big", "vLLM", None)
    expected = plan.expected
    assert expected.acceptance_at == pytest.approx((0.8, 0.6, 0.4, 0.2))
    assert expected.tokens_per_drafted_round == 3.0
    assert expected.acceptance_rate == 10 / 20
    # Of 20 tokens after the first, 10 were accepted: 10 rounds, 5 of them drafted.
    assert expected.tokens_per_round == pytest.approx(2.0)
    assert expected.gain is not None
    ratio = result.comparison(1).ratio()
    assert ratio is not None
    assert expected.gain.value == ratio.value == pytest.approx(1.536, rel=0.01)
    assert expected.break_even_tokens == pytest.approx((2.0 / ratio.value - 0.5) / 0.5)
    assert expected.gain_by_category["code"].value > 1.8
    assert plan.mean_draft_tokens == 4
    assert plan.schedule == ()
    assert (plan.measured.prompts, plan.measured.tokens) == (16, 16 * 20)
    assert plan.measured.machine["server"] == "vLLM"
    assert plan.measured.machine["client"] == {"cpu": "A CPU", "cores": 8}
    assert plan.measured.sampling == {"temperature": 0.0, "min_p": 0.05}
    assert plan.measured.when == "2026-03-01T12:00:00+00:00"
    assert plan.notes[0].startswith("Worst in chat: speedup 1.2")
    assert "What drafted is as the user described it: servers don't tell." in plan.notes
    assert any(said.startswith("It holds for one sequence") for said in plan.notes)
    whole = result.comparison(1).whole_ratio()
    assert whole is not None
    assert any(
        said.startswith(f"Whole answers, prompts and waits included: speedup {whole.value:.2f}")
        for said in plan.notes
    )
    assert not any("Texts were equal" in said for said in plan.notes)


def test_texts_that_differ_are_counted() -> None:
    result = live({1: 1.6}, counted(16))
    one = result.asked[0]
    result.asked[0] = replace(one, answer=replace(one.answer, text="y"))
    assert (
        "Texts were equal on both servers in 15 of 16 prompts; a difference may be numeric, it "
        "isn't judged."
    ) in decide_servers(result, DRAFT, 4).notes


def test_where_the_break_even_is_a_gain_of_one_comes_out() -> None:
    """With as many tokens in a drafted round as it takes plain ones, nothing is gained."""
    plan = decide_servers(live({1: 1.6}, counted(16)), DRAFT, 4)
    least = plan.expected.break_even_tokens
    assert least is not None
    rounds, drafted = 10, 5
    tokens, seconds = drafted * least + (rounds - drafted), drafted * least + (rounds - drafted)
    assert tokens / seconds == 1


def test_numbers_of_clients_make_the_schedule() -> None:
    plan = checked(decide_servers(live({32: 0.9, 1: 1.8, 8: 1.5}, counted(16)), DRAFT, 4))
    assert plan.schedule == (
        Step(from_batch=1, to_batch=8, max_draft_tokens=4),
        Step(from_batch=9, to_batch=None, max_draft_tokens=0),
    )
    assert plan.measured.batch == 1
    assert plan.notes[0].startswith(
        "owner/draft with 32 clients at once isn't known to pay: speedup 0.8"
    )
    everywhere = checked(decide_servers(live({1: 1.8, 8: 1.5}, counted(16)), DRAFT, 4))
    assert everywhere.schedule == (
        Step(from_batch=1, to_batch=8, max_draft_tokens=4),
    )  # and no further


@pytest.mark.parametrize(
    ("gain", "spread", "why"),
    [
        (0.8, 0.02, "Ordinary decoding, because no draft pays: "),
        (1.08, 0.5, "Ordinary decoding, because the interval reaches 1, which is no evidence: "),
    ],
)
def test_what_does_not_clearly_pay_is_baseline_decoding(gain, spread, why) -> None:
    plan = checked(decide_servers(live({1: gain}, counted(16), spread=spread), DRAFT, 4))
    assert (plan.draft, plan.max_draft_tokens, plan.mean_draft_tokens) == (None, 0, None)
    assert plan.expected.acceptance_at == ()
    assert plan.notes[0].startswith(f"{why}the best to choose from is owner/draft with one client")


def test_servers_the_wrong_way_round_are_refused() -> None:
    silent = Counters("vLLM", generated=1.0)
    with pytest.raises(DataError, match="The server without drafts drafted, by its counters"):
        decide_servers(live({1: 1.6}, counted(16), counted(16)), DRAFT, 4)
    with pytest.raises(DataError, match="drafted and the endpoint didn't, by its counters"):
        decide_servers(live({1: 1.6}, silent, counted(16)), DRAFT, 4)
    nothing = replace(counted(16), drafts=0.0, drafted=0.0, accepted=0.0)
    with pytest.raises(DataError, match="The endpoint drafted nothing with one client"):
        decide_servers(live({1: 1.6}, nothing), DRAFT, 4)
    with pytest.raises(DataError, match="on one server, so there is no gain"):
        decide_servers(live({1: 1.6}, servers={FIRST: SERVER}), DRAFT, 4)


@pytest.mark.parametrize(
    ("max_draft_tokens", "changes", "said"),
    [
        (
            3,
            {},
            "--max-draft-tokens is 3, and the endpoint accepted tokens at position 4 of a draft.",
        ),
        (
            3,
            {"accepted_by_position": ()},
            "--max-draft-tokens is 3, and the endpoint drafted 4.00 tokens a",
        ),
        (7, {}, "--max-draft-tokens is 7, and the endpoint counts 4 positions of a draft."),
    ],
)
def test_a_limit_that_the_counters_contradict_is_refused(max_draft_tokens, changes, said) -> None:
    counters = replace(counted(16), **changes)
    with pytest.raises(SettingError) as raised:
        decide_servers(live({1: 1.6}, counters), DRAFT, max_draft_tokens)
    assert str(raised.value).startswith(said)


def test_only_vllm_counts_as_many_positions_as_it_drafts() -> None:
    other = replace(counted(16), server="llama.cpp")
    assert decide_servers(live({1: 1.6}, other), DRAFT, 16).max_draft_tokens == 16


def test_a_server_that_counts_nothing_leaves_figures_unknown() -> None:
    plan = checked(decide_servers(live({1: 1.6}), DRAFT, 4))
    expected = plan.expected
    assert expected.gain is not None
    assert expected.acceptance_at == ()
    for name in (
        "tokens_per_round",
        "tokens_per_drafted_round",
        "acceptance_rate",
        "break_even_tokens",
    ):
        assert getattr(expected, name) is None
    assert plan.mean_draft_tokens is None
    assert "The server counted no drafts, so acceptance is not known." in plan.notes


def test_what_is_told_with_the_answers_stands_in_for_counters() -> None:
    result = live({1: 1.6})
    result.asked[:] = [
        replace(one, answer=replace(one.answer, drafted=10, accepted=4))
        if one.server == FIRST
        else one
        for one in result.asked
    ]
    assert decide_servers(result, DRAFT, 4).expected.acceptance_rate == 0.4


def test_a_server_that_counts_steps_alone_has_tokens_per_round() -> None:
    sglang = Counters("SGLang", steps=16 * 10.0, generated=16.0 * TOKENS)
    plan = checked(decide_servers(live({1: 1.6}, sglang), DRAFT, 4))
    expected, ratio = plan.expected, live({1: 1.6}).comparison(1).ratio()
    assert ratio is not None
    assert expected.tokens_per_round == TOKENS / 10
    assert expected.tokens_per_drafted_round is None
    assert expected.break_even_tokens == pytest.approx(TOKENS / 10 / ratio.value)


def test_servers_that_differ_in_more_than_drafts_are_named() -> None:
    other = SERVER | {"server": "llama.cpp", "version": None}
    result = live({1: 1.6}, counted(16), servers={FIRST: SERVER, AGAINST: other})
    assert (
        "The servers differ, so the gain is not the drafts' alone: server is vLLM and llama.cpp, "
        "version is 0.32.0 and None."
    ) in decide_servers(result, DRAFT, 4).notes


def test_what_failed_was_left_out_or_is_missing_is_said() -> None:
    result = live({1: 1.6}, counted(16), each=4)
    result.asked[0] = replace(
        result.asked[0], answer=replace(result.asked[0].answer, failure="x", failure_kind="timeout")
    )
    result.left_out[1, "code-9"] = "why"
    last = result.asked.pop()
    plan = checked(decide_servers(result, DRAFT, 4))
    assert last.id == "chat-3"
    assert plan.measured.prompts == 6
    for said in (
        "6 prompts are few: intervals of fewer than 10 are too narrow.",
        "The run is not finished: these are the requests so far.",
        "Failed on a server and left out: 1 prompt (code-0).",
        "Left out: 1 later turn (code-9).",
    ):
        assert said in plan.notes
    result.asked.clear()
    with pytest.raises(DataError, match="No prompt was answered by both servers"):
        decide_servers(result, DRAFT, 4)
