"""The last safety net when a model is loaded: does our way of running it give its own logits?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from paceline.engines.transformers import cache as transformers_cache
from paceline.engines.transformers.cache import (
    Branches,
    CachePiece,
    CachePlan,
    KeyValueCache,
    Seen,
    Tensor,
)
from paceline.engines.transformers.linear import patch_linear
from paceline.engines.transformers.load import first_line
from paceline.errors import ModelError

TOLERANCES = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 3e-1}
"""Most error of the logits, relative to their spread. Rounding stays well below; a state that
isn't in the cache, or a token seen that shouldn't be, gives about 1 or more."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What trying a model out has shown.

    error              of our logits against the model's own, relative to their spread
    windows            most tokens a row sees, by layer; 0: all
    bytes_per_token    of the cache, by layer
    weights_bytes      of all parameters
    quickened_layers   linear layers that take few rows another way (see transformers_linear)
    """

    error: float
    windows: dict[int, int]
    bytes_per_token: dict[int, int]
    weights_bytes: int
    quickened_layers: int


def run(model: Any, plan: CachePlan, tokens: list[int], rows: int | list[int]) -> Tensor:
    """One forward of a plan's pieces: the logits of `rows` (a count of last ones, 0 for all, or a
    list of indices), float32, shape (rows, vocabulary). Call it without gradients."""
    device = model.device
    ids, positions = plan.tensors(tokens, device)
    logits = model(
        input_ids=ids,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=torch.tensor(rows, dtype=torch.long, device=device)
        if isinstance(rows, list)
        else rows,
        paceline_plan=plan,
    ).logits
    return logits[0].float()


def try_out(target: str, model: Any, vocabulary_size: int, dtype: str) -> SelfTest:
    """Score two short texts with rewinding and batching, and as the model does it by itself.

    Raises ModelError if they differ by more than rounding, or the model's attention asks for
    something ours can't do.
    """
    random = torch.Generator().manual_seed(1)
    texts = torch.randint(vocabulary_size, (3, 9), generator=random).tolist()
    seen = Seen()
    cache = KeyValueCache(2, 16)
    with torch.inference_mode():
        with attending(model, "eager"):
            theirs = _plain(model, texts)
        quickened = patch_linear(model)  # after theirs, so that it is tried out too
        with attending(model, transformers_cache.SELF_TEST), blamed_on(target, model):
            ours = _rewound(model, cache, seen, texts)
        _refuse_unknown(target, model, seen)
    error = float((ours - theirs).norm() / (theirs - theirs.mean(-1, keepdim=True)).norm())
    if not error <= TOLERANCES[dtype]:
        raise ModelError(
            f"{target} ({type(model).__name__}, {dtype}) gives other logits when rewound and "
            f"batched than by itself: relative error {error:.2g}.",
            "Use another model, or another dtype.",
        )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return SelfTest(error, seen.windows, cache.bytes_per_token(), weights, quickened)


@contextlib.contextmanager
def attending(model: Any, implementation: str) -> Iterator[None]:
    """For a while, another attention than ours."""
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(transformers_cache.NAME)


@contextlib.contextmanager
def blamed_on(target: str, model: Any) -> Iterator[None]:
    """A model that fails with our attention isn't one we can run, whatever it trips over."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"{target} ({type(model).__name__}) can't be run here: {first_line(error)}.",
            "Use another model.",
        ) from error


def _rewound(model: Any, cache: KeyValueCache, seen: Seen, texts: list[list[int]]) -> Tensor:
    first, second, other = texts
    pieces = [CachePiece(0, 0, 8), CachePiece(1, 0, 2)]
    run(model, CachePlan(cache, pieces, seen=seen), first[:4] + other[:4] + second[:2], [9])
    pieces = [CachePiece(1, 2, 3), CachePiece(0, 4, 5)]
    rows = run(model, CachePlan(cache, pieces, seen=seen), second[2:5] + first[4:], [2, 6, 7])
    # The last row once more, as a second branch.
    fork = CachePiece(0, 8, 2, Branches(8, (-1, -1)))
    last = run(model, CachePlan(cache, [fork], seen=seen), [other[4], first[8]], 1)
    return torch.cat((rows, last))


def _plain(model: Any, texts: list[list[int]]) -> Tensor:
    first, second, _ = texts
    rows = []
    for text in (second[:5], first):
        ids = torch.tensor([text], device=model.device)
        rows.append(model(input_ids=ids, use_cache=False).logits[0].float())
    return torch.stack((rows[0][4], rows[1][7], rows[1][8], rows[1][8]))


def _refuse_unknown(target: str, model: Any, seen: Seen) -> None:
    kind = f"{target} ({type(model).__name__})"
    if seen.unknown:
        raise ModelError(
            f"{kind} wants {', '.join(sorted(seen.unknown))} of its attention, which isn't done "
            "here.",
            "Use another model.",
        )
    config = model.config.get_text_config(decoder=True)
    if len(seen.windows) != config.num_hidden_layers:
        raise ModelError(
            f"{kind} sends {len(seen.windows)} of its {config.num_hidden_layers} layers through "
            "the attention given to it.",
            "Use another model.",
        )
