"""What context a sequence gets, from a model's configuration."""

from __future__ import annotations

import pytest

from paceline.engines.load import fitting_context, longest_context
from paceline.errors import SettingError


def test_it_follows_the_model_up_to_a_limit_unless_asked() -> None:
    assert fitting_context("m", 128, None) == 128
    assert fitting_context("m", 9000, None) == 4096
    assert fitting_context("m", 9000, 9000) == 9000
    assert fitting_context("m", None, 9000) == 9000


@pytest.mark.parametrize("asked", [0, 33])
def test_what_a_model_cant_keep_to_is_refused(asked: int) -> None:
    with pytest.raises(SettingError, match=f"context_size is {asked}.*1 to 32"):
        fitting_context("m", 32, asked)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_a_rotary_that_depends_on_neighbours_keeps_to_its_first_length(kind: str) -> None:
    rope = {kind: "longrope", "original_max_position_embeddings": 32}
    config = {"max_position_embeddings": 128, "rope_parameters": rope}
    assert longest_context(config) == 32
    assert longest_context({"max_position_embeddings": 128, "rope_scaling": rope}) == 32
    assert longest_context(config | {"rope_parameters": {"full": rope}}) == 32
    assert longest_context({"max_position_embeddings": 128, "rope_scaling": None}) == 128
    assert longest_context({}) is None
