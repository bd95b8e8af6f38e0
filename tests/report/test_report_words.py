"""Numbers as a report writes them."""

from __future__ import annotations

import doctest

import pytest

from paceline.report import break_even_plot as plan_plot
from paceline.report import markdown, summary, words


@pytest.mark.parametrize("module", [words, summary, markdown, plan_plot])
def test_doctests(module) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0
