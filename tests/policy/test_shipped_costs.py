"""The costs that come with Paceline say what their sources say."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.policy.break_even import prices
from paceline.policy.costs import read_costs, shipped_costs

PAGE = Path(__file__).parents[2] / "docs" / "costs-file.md"


@pytest.mark.parametrize("name", shipped_costs())
def test_each_has_a_source_and_a_place_on_the_page(name: str) -> None:
    found = read_costs(name)
    assert len(found.source.split()) > 10
    assert {"model", "engine", "device"} <= found.key.keys()
    assert f"| `{name}` |" in PAGE.read_text(encoding="utf-8")
    for draft in found.drafts.values():
        assert draft.source != "unknown"


def test_the_h100_line() -> None:
    """The dossier's figures: r(6) = 1.02, a draft of five tokens and overhead are 57 % of T(1)."""
    found = read_costs("llama-3.1-8b-h100-vllm")
    priced = prices(found, found.drafts["eagle3"])
    assert found.forward_s(1) == pytest.approx(5.886e-3 + 21.01e-6)
    assert priced.r(6) == pytest.approx(1.02, abs=0.005)
    assert 5 * priced.draft_cost + priced.overhead == pytest.approx(0.57, abs=0.005)
    # 64 sequences of 6 rows after 1000 tokens: 5.886 + 384 · 0.02101 + 64000 · 39.3e-6 ms.
    assert found.forward_s(384, 64, 1000) == pytest.approx(16.469e-3, abs=1e-6)


def test_four_rows_are_cheaper_than_three_in_llama_cpp() -> None:
    found = read_costs("qwen2.5-coder-1.5b-q4km-llamacpp-avx512")
    assert [round(found.r(width), 2) for width in (1, 2, 3, 4, 8, 16, 32)] == (
        [1.0, 1.4, 1.6, 1.35, 2.4, 2.9, 4.8]
    )
    draft = found.drafts["qwen2.5-coder-0.5b"]
    assert [round(draft.r(width), 1) for width in (2, 4, 8, 16, 32)] == [1.3, 1.6, 2.3, 3.4, 6.1]
    assert prices(found, draft).draft_cost == pytest.approx(41 / 85)


def test_width_is_nearly_free_in_bf16_on_amx() -> None:
    found = read_costs("qwen2.5-coder-1.5b-bf16-transformers-amx")
    assert [round(found.r(width), 2) for width in (1, 2, 4, 8, 16, 32)] == (
        [1.0, 1.05, 1.0, 1.0, 1.1, 1.3]
    )
    assert found.forward_s(1) == pytest.approx(0.276)


def test_width_climbs_slowly_in_int4_on_openvino_and_amx() -> None:
    found = read_costs("qwen2.5-coder-1.5b-int4-openvino-amx")
    assert [round(found.r(width), 2) for width in (1, 2, 4, 8, 16, 32)] == (
        [1.0, 1.17, 1.51, 1.88, 2.08, 2.43]
    )
    assert found.forward_s(8, 8) == pytest.approx(0.182)
