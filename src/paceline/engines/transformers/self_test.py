"""The last safety net when a model is loaded: does our way of running it give its own logits?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from paceline.engines.base import TokenSegment, TokenTree
from paceline.engines.load import loading
from paceline.engines.transformers.cache import (
    NAME,
    SELF_TEST,
    CachePlan,
    KeyValueCache,
    Seen,
    Tensor,
)
from paceline.engines.transformers.load import patch_linear
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
    patched_layers     linear layers that take few rows another way (see `patch_linear`)
    """

    error: float
    windows: dict[int, int]
    bytes_per_token: dict[int, int]
    weights_bytes: int
    patched_layers: int


def run(model: Any, plan: CachePlan, rows: int | list[int]) -> Tensor:
    """One forward of a plan's segments: the logits of `rows` (a count of last ones, 0 for all, or a
    list of indices), float32, shape (rows, vocabulary). Call it without gradients."""
    device = model.device
    ids, positions = plan.tensors(device)
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
    kind, seen, cache = f"{target} ({type(model).__name__})", Seen(), KeyValueCache(2, 16)
    with torch.inference_mode():
        with attending(model, "eager"):
            theirs = _ordinary(model, texts)
        patched = patch_linear(model)  # after theirs, so that it is tried out too
        with attending(model, SELF_TEST), loading(kind, "Use another model.", verb="run"):
            ours = _rewound(model, cache, seen, texts)
    _refuse_unknown(kind, model, seen)
    error = float((ours - theirs).norm() / (theirs - theirs.mean(-1, keepdim=True)).norm())
    if not error <= TOLERANCES[dtype]:
        raise ModelError(
            f"{target} ({type(model).__name__}, {dtype}) gives other logits when rewound and "
            f"batched than by itself: relative error {error:.2g}.",
            "Use another model, or another dtype.",
        )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return SelfTest(error, seen.windows, cache.bytes_per_token(), weights, patched)


@contextlib.contextmanager
def attending(model: Any, implementation: str) -> Iterator[None]:
    """For a while, another attention than ours."""
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)


def _rewound(model: Any, cache: KeyValueCache, seen: Seen, texts: list[list[int]]) -> Tensor:
    first, second, other = texts
    one, two = SimpleNamespace(slot=0), SimpleNamespace(slot=1)

    def score(segments: list[TokenSegment], rows: int | list[int]) -> Tensor:
        return run(model, CachePlan(cache, segments, seen=seen), rows)

    score([TokenSegment(one, 0, first[:4] + other[:4]), TokenSegment(two, 0, second[:2])], [9])
    rows = score([TokenSegment(two, 2, second[2:5]), TokenSegment(one, 4, first[4:])], [2, 6, 7])
    # The last row once more, as a second branch.
    fork = TokenSegment(one, 8, [other[4], first[8]], tree=TokenTree(8, (-1, -1)))
    return torch.cat((rows, score([fork], 1)))


def _ordinary(model: Any, texts: list[list[int]]) -> Tensor:
    first, second, _ = texts
    rows = []
    for text in (second[:5], first):
        ids = torch.tensor([text], device=model.device)
        rows.append(model(input_ids=ids, use_cache=False).logits[0].float())
    return torch.stack((rows[0][4], rows[1][7], rows[1][8], rows[1][8]))


def _refuse_unknown(kind: str, model: Any, seen: Seen) -> None:
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
