"""Pages of real servers (and of two made up from their sources) in one form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("httpx")

from paceline.errors import EndpointError, SettingError
from paceline.monitor.counters import Counters, between, dialect_of, read_counters, restarted, says
from paceline.monitor.prometheus import Page, parse_page, scrape

PAGES = Path(__file__).parent / "pages"


def page(name: str) -> Page:
    return parse_page((PAGES / f"{name}.txt").read_text(encoding="utf-8"))


def counters(name: str) -> Counters:
    return read_counters(page(name))


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
    plain = counters("vllm-0.32-plain")
    assert plain.server == "vLLM"
    assert plain.generated == 60
    assert not plain.has_drafts
    assert plain.drafts is None
    assert plain.acceptance_rate is None
    assert plain.accepted_at == ()


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
    assert (found.server, found.drafted, found.accepted) == ("TensorRT-LLM", 30, 18)
    assert found.drafts == 10  # each draft has a first token
    assert found.accepted_at == (0.9, 0.6)
    assert found.generated is None


def test_every_server_says_what_it_counts() -> None:
    for name in ("vllm-0.32-plain", "llamacpp-ngram-simple", "sglang-made-up"):
        assert says(counters(name).server)
    assert says(None) == ()


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


def test_stretches_add_up_and_what_one_lacks_is_unknown() -> None:
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
    assert read_counters(parse_page(text), "a").generated == 7
    assert read_counters(parse_page(text), "b").generated == 50
    with pytest.raises(SettingError, match="a, b"):
        read_counters(parse_page(text), "c")


def test_a_page_of_nobody_we_know_counts_nothing() -> None:
    other = parse_page("# TYPE up gauge\nup 1\n")
    assert dialect_of(other) is None
    assert read_counters(other) == Counters()


@pytest.mark.parametrize("text", ["<html></html>", '[{"iter": 1}]', "{}", '{"a": 1}', "hello"])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Prometheus"):
        parse_page(text)


def test_nobody_at_the_address_is_one_sentence() -> None:
    with pytest.raises(EndpointError, match="can't be reached"):
        scrape("http://127.0.0.1:9/metrics", timeout_s=2)
