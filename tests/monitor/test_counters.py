"""Pages of real servers (and of two made up from their sources) in one form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")

from paceline.errors import ServerError, SettingError
from paceline.monitor.counters import (
    Counters,
    Series,
    ServerMetrics,
    between,
    read_counters,
    reset_reason,
    restarted,
)
from paceline.monitor.dialects import WANTED, dialect_named, dialect_of
from paceline.monitor.scrape import Metrics, parse_metrics, scrape

PAGES = Path(__file__).parent / "metrics"


def metrics(name: str) -> Metrics:
    return parse_metrics((PAGES / f"{name}.txt").read_text(encoding="utf-8"))


def counters(name: str) -> Counters:
    return read_counters(metrics(name))


def series_of(found: Metrics) -> Series:
    return ServerMetrics(found).series()


# Each server's own way of counting.


def test_vllm_counts_only_rounds_with_a_draft() -> None:
    """A real vLLM: an answer of 60 tokens with 12 drafts of four tokens, all accepted."""
    grown = between(counters("vllm-0.32-ngram-before"), counters("vllm-0.32-ngram-after"))
    assert grown is not None
    assert grown.server == "vLLM"
    assert (grown.drafts, grown.drafted, grown.accepted, grown.generated) == (12, 48, 48, 60)
    assert grown.accepted_by_position == (12, 12, 12, 12)
    assert grown.acceptance_rate == 1
    assert grown.tokens_per_drafted_round == 5
    assert grown.accepted_at == (1, 1, 1, 1)
    assert grown.tokens_per_round is None  # not told: rounds without a draft aren't counted


def test_vllm_without_drafts_counts_none_and_not_zero() -> None:
    baseline = counters("vllm-0.32-plain")
    assert baseline.server == "vLLM"
    assert baseline.generated == 60
    assert not baseline.has_drafts
    assert baseline.drafts is None
    assert baseline.acceptance_rate is None
    assert baseline.accepted_at == ()


def test_llamacpp_counts_the_same_under_its_own_names() -> None:
    """A real server: one draft of 25 tokens, none accepted: that is 0 %, and measured."""
    found = counters("llamacpp-ngram-simple")
    assert (found.server, found.drafts, found.drafted, found.accepted) == ("llama.cpp", 1, 25, 0)
    assert found.generated == 100
    assert found.acceptance_rate == 0
    assert found.tokens_per_drafted_round == 1
    assert found.accepted_at == (0,) * 8


def test_a_server_that_has_not_drafted_yet_has_no_rate() -> None:
    before = counters("vllm-0.32-ngram-before")
    assert before.has_drafts
    assert before.acceptance_rate is None
    assert before.tokens_per_drafted_round is None


def test_sglang_tells_rounds_and_not_tokens() -> None:
    found = counters("sglang-made-up")
    assert (found.server, found.steps, found.generated) == ("SGLang", 50, 120)
    assert found.drafted is None
    assert found.accepted is None
    assert found.acceptance_rate is None
    assert found.tokens_per_round == pytest.approx(2.4)
    assert found.recent == {"tokens_per_round": 2.4, "acceptance_rate": 0.35}


def test_gauges_are_of_now_and_never_subtracted() -> None:
    one = counters("sglang-made-up")
    two = replace(one, steps=70.0, generated=160.0, recent={"tokens_per_round": 1.9})
    grown = between(one, two)
    assert grown is not None
    assert (grown.steps, grown.tokens_per_round) == (20, 2)
    assert grown.recent == {"tokens_per_round": 1.9}


def test_tensorrt_llm_tells_drafted_and_accepted_by_position() -> None:
    found = counters("tensorrt-llm-made-up")
    assert (found.server, found.drafted, found.accepted) == ("TensorRT-LLM", 25, 15)
    assert found.drafts == 10  # each draft has a first token
    assert found.accepted_at == (0.9, 0.6, 0)
    assert found.generated is None


TRTLLM = (
    'trtllm_spec_decode_num_draft_tokens_total{{model_name="m"}} {drafted}\n'
    'trtllm_spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}\n'
)
TRTLLM_AT = (
    'trtllm_spec_decode_{kind}_tokens_total{{model_name="m",token_position="{place}"}} {value}\n'
)


def trtllm(
    drafted: int, accepted: int, drafted_at: tuple[int, ...] = (), accepted_at: tuple[int, ...] = ()
) -> Counters:
    places = (("drafted", drafted_at), ("accepted", accepted_at))
    text = TRTLLM.format(drafted=drafted, accepted=accepted) + "".join(
        TRTLLM_AT.format(kind=kind, place=i, value=n)
        for kind, values in places
        for i, n in enumerate(values)
    )
    return read_counters(parse_metrics(text, WANTED))


def test_tensorrt_llms_answers_in_flight_are_not_mixed_with_ended_ones() -> None:
    """2,000 tokens were drafted in all forwards, 800 of them for answers that have ended."""
    found = trtllm(2000, 1200, (400, 400), (300, 180))
    assert (found.drafts, found.drafted, found.accepted) == (400, 800, 480)
    assert found.tokens_per_drafted_round == pytest.approx(2.2)
    assert trtllm(2000, 1200).drafted == 2000  # older: nothing by position


def test_the_first_answer_that_ends_is_no_restart_and_all_its_own() -> None:
    grown = between(trtllm(2000, 1200), trtllm(2100, 1260, (400, 400), (300, 180)))
    assert grown is not None
    assert (grown.drafts, grown.drafted, grown.accepted) == (400, 800, 480)


def test_accepted_shares_are_of_drafted_rounds_also_where_drafts_differ_in_length() -> None:
    assert trtllm(0, 0, (10, 4), (9, 4)).accepted_at == (0.9, 0.4)
    assert trtllm(0, 0, (10, 0, 5), (9, 0, 4)).accepted_at == (0.9, 0, 0.4)


def test_every_server_says_what_it_counts() -> None:
    for name in ("vllm-0.32-plain", "llamacpp-ngram-simple", "sglang-made-up"):
        assert dialect_named(counters(name).server).says
    assert dialect_named(None).says == ()


def test_vllm_tells_all_rounds_by_its_intervals() -> None:
    """A real vLLM: 60 tokens in 14 rounds behind the first token, 12 of them with a draft. (The
    last drafted one gave three tokens more than the answer had room for.)"""
    text = (
        'vllm:spec_decode_num_drafts_total{model_name="m"} 12\n'
        'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 48\n'
        'vllm:generation_tokens_total{model_name="m"} 60\n'
        'vllm:time_to_first_token_seconds_count{model_name="m"} 1\n'
        'vllm:inter_token_latency_seconds_count{model_name="m"} 14\n'
        'vllm:inter_token_latency_seconds_sum{model_name="m"} 2.36\n'
        'vllm:iteration_tokens_total_count{model_name="m"} 15\n'
    )
    found = read_counters(parse_metrics(text, WANTED))
    assert (found.rounds, found.firsts, found.timed_tokens) == (14, 1, 59)
    assert found.tokens_per_drafted_round == 5
    assert found.tokens_per_round == pytest.approx(59 / 14)
    assert found.s_per_token == pytest.approx(0.04)
    assert found.batch == 1


def test_older_vllm_names_its_intervals_otherwise() -> None:
    text = (
        "vllm:generation_tokens_total 60\n"
        "vllm:time_to_first_token_seconds_count 1\n"
        "vllm:time_per_output_token_seconds_count 14\n"
        "vllm:time_per_output_token_seconds_sum 2.36\n"
    )
    found = read_counters(parse_metrics(text, WANTED))
    assert found.s_per_token == pytest.approx(0.04)
    both = text + "vllm:inter_token_latency_seconds_sum 2.36\n"
    assert read_counters(parse_metrics(both, WANTED)).s_per_token == pytest.approx(0.04)


def test_llamacpp_tells_its_load_and_times_since_the_start() -> None:
    found = counters("llamacpp-ngram-simple")
    assert (found.engine_steps, found.sequences, found.batch) == (100, 100, 1)
    assert found.s_per_token == pytest.approx(4.1763 / 100)
    assert found.firsts is None


def test_a_build_of_llamacpp_without_counters_of_drafts_has_none_and_not_zero() -> None:
    lines = (PAGES / "llamacpp-ngram-simple.txt").read_text(encoding="utf-8").split("\n")
    older = "\n".join(line for line in lines if "spec_decode" not in line)
    found = read_counters(parse_metrics(older, WANTED))
    assert found.server == "llama.cpp"
    assert not found.has_drafts
    assert found.s_per_token is not None


def test_names_with_and_without_total_are_the_same_counter() -> None:
    bare = parse_metrics("vllm:generation_tokens 5\nvllm:spec_decode_num_drafts 2\n", WANTED)
    full = parse_metrics("vllm:generation_tokens_total 5\nvllm:spec_decode_num_drafts_total 2\n")
    assert read_counters(bare) == read_counters(full)
    assert read_counters(bare).drafts == 2


def test_sglang_shares_an_interval_among_its_tokens() -> None:
    text = (PAGES / "sglang-made-up.txt").read_text(encoding="utf-8") + (
        'sglang:inter_token_latency_seconds_sum{model_name="m"} 3.0\n'
        'sglang:inter_token_latency_seconds_count{model_name="m"} 100\n'
        'sglang:num_running_reqs{model_name="m"} 4\n'
    )
    metrics = parse_metrics(text, WANTED)
    assert read_counters(metrics).s_per_token == pytest.approx(0.03)
    assert ServerMetrics(metrics).load() == (4, None)


def test_tensorrt_llm_counts_answers_by_their_decode_times() -> None:
    text = (PAGES / "tensorrt-llm-made-up.txt").read_text(encoding="utf-8") + (
        'trtllm_generation_tokens_total{model_name="m"} 61\n'
        'trtllm_request_decode_time_seconds_sum{model_name="m"} 3\n'
        'trtllm_request_decode_time_seconds_count{model_name="m"} 1\n'
    )
    found = read_counters(parse_metrics(text, WANTED))
    assert found.s_per_token == pytest.approx(0.05)


DYNAMO = (
    'vllm:generation_tokens_total{{dynamo_component="{part}",dynamo_namespace="n",engine="0",'
    'model="m",model_name="m",worker_id="{worker}"}} {value}\n'
)


def test_dynamo_workers_on_one_page_add_up_and_can_be_chosen() -> None:
    text = "".join(
        DYNAMO.format(part=part, worker=worker, value=value)
        for part, worker, value in (("decode", 1, 30), ("decode", 2, 40), ("prefill", 3, 5))
    )
    metrics = parse_metrics(text, WANTED)
    assert read_counters(metrics).generated == 75
    assert read_counters(metrics, labels={"dynamo_component": "decode"}).generated == 70


def test_a_worker_that_began_anew_is_seen_though_the_sum_grew() -> None:
    def metrics(one: int, other: int) -> Metrics:
        rows = ((1, one), (2, other))
        text = "".join(DYNAMO.format(part="decode", worker=w, value=v) for w, v in rows)
        return parse_metrics(text, WANTED)

    before, after = metrics(30, 40), metrics(90, 1)
    assert between(read_counters(before), read_counters(after)) is not None
    reason = reset_reason(series_of(before), series_of(after))
    assert reason == ("vllm:generation_tokens_total (engine 0, worker_id 2) went back from 40 to 1")
    assert reset_reason(series_of(before), series_of(metrics(30, 40))) is None


def test_a_process_that_started_anew_and_a_counter_that_vanished_are_named() -> None:
    def series(text: str) -> Series:
        return series_of(parse_metrics(text, WANTED))

    old = "process_start_time_seconds 5\nvllm:generation_tokens_total 3\n"
    assert "restarted" in str(reset_reason(series(old), series(old.replace("5", "6"))))
    assert "is gone" in str(
        reset_reason(series(old), series("process_start_time_seconds 5\nvllm:x 1\n"))
    )


def test_what_is_no_number_counts_nothing() -> None:
    metrics = parse_metrics(
        "vllm:generation_tokens_total NaN\nvllm:num_requests_running +Inf\n", WANTED
    )
    assert read_counters(metrics).generated is None
    assert ServerMetrics(metrics).load() == (None, None)
    assert series_of(metrics) == {}


def test_gauges_may_fall() -> None:
    def series(value: float) -> Series:
        text = f"vllm:generation_tokens_total 3\nvllm:num_requests_running {value}\n"
        return series_of(parse_metrics(text, WANTED))

    assert reset_reason(series(4), series(1)) is None


def test_counters_of_files_from_before_these_counts_are_read() -> None:
    document = counters("tensorrt-llm-made-up").as_json()
    for name in ("firsts", "rounds", "timed_s", "timed_tokens", "engine_steps", "sequences"):
        del document[name]
    assert Counters.from_json(document).drafted == 25


# Differences.


def test_a_counter_that_fell_is_a_restart_and_no_negative_count() -> None:
    old, new = counters("vllm-0.32-ngram-after"), counters("vllm-0.32-ngram-before")
    assert restarted(old, new)
    assert between(old, new) is None


def test_a_server_that_restarted_and_overtook_its_old_counts_is_noticed() -> None:
    old = counters("vllm-0.32-ngram-before")
    new = replace(counters("vllm-0.32-ngram-after"), started_s=1.0)
    assert between(old, new) is None


def test_a_counter_that_vanished_is_a_restart() -> None:
    old = counters("vllm-0.32-ngram-before")
    new = replace(counters("vllm-0.32-plain"), started_s=old.started_s)
    assert between(old, new) is None


def test_a_counter_that_appears_began_at_nothing() -> None:
    empty = Counters()
    grown = between(empty, counters("sglang-made-up"))
    assert grown is not None
    assert (grown.steps, grown.generated) == (50, 120)


def test_segments_add_up_and_what_one_lacks_is_unknown() -> None:
    one = between(counters("vllm-0.32-ngram-before"), counters("vllm-0.32-ngram-after"))
    assert one is not None
    both = one + one
    assert (both.drafted, both.generated, both.accepted_by_position) == (96, 120, (24,) * 4)
    assert (one + replace(one, drafted=None)).acceptance_rate is None


def test_counters_survive_json() -> None:
    found = counters("tensorrt-llm-made-up")
    assert Counters.from_json(found.as_json()) == found


# Pages.


def test_series_of_several_engines_add_up_and_models_are_kept_apart() -> None:
    text = "\n".join(
        f'vllm:generation_tokens_total{{engine="{engine}",model_name="{model}"}} {value}'
        for engine, model, value in ((0, "a", 3), (1, "a", 4), (0, "b", 50))
    )
    assert read_counters(parse_metrics(text), "a").generated == 7
    assert read_counters(parse_metrics(text), "b").generated == 50
    with pytest.raises(SettingError, match="a, b"):
        read_counters(parse_metrics(text), "c")


def test_a_page_of_nobody_we_know_counts_nothing() -> None:
    other = parse_metrics("# TYPE up gauge\nup 1\n")
    assert dialect_of(other) is None
    assert read_counters(other) == Counters()


@pytest.mark.parametrize("text", ["<html></html>", '[{"iter": 1}]', "{}", '{"a": 1}', "hello"])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Prometheus"):
        parse_metrics(text)


def test_nobody_at_the_address_is_one_sentence() -> None:
    with pytest.raises(ServerError, match="can't be reached"):
        scrape("http://127.0.0.1:9/metrics", timeout_s=2)
