"""Numbers as a report writes them."""

from __future__ import annotations

import doctest

import pytest

from paceline.report import document, render, summary


@pytest.mark.parametrize("module", [document, summary, render])
def test_doctests(module) -> None:
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0
