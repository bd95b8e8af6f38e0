"""One key/value cache for many sequences, and the attention that reads it without padding.

A forward is one row of tokens from several sequences. Each segment of it belongs to a slot of the
cache; attention writes the new keys and values behind the slot's own and lets each segment see its
own slot only. Rewinding is nothing but starting the next segment earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.nn.functional import scaled_dot_product_attention

from paceline.engines.base import TokenSegment, TokenTree
from transformers import AttentionInterface, AttentionMaskInterface

Tensor: TypeAlias = Any

NAME, SELF_TEST = "paceline", "paceline-self-test"
"""What the attention is registered as with transformers. With NAME no masks are built; with
SELF_TEST each mask is only its window, which tells the window that a layer really has."""

FOLDED_ROWS = 256
"""Up to this many rows a head, query heads that share keys are stacked as rows: keys and values
are then read once for all of them. Beyond it the mask would grow by that factor for no gain."""


class KeyValueCache:
    """Keys and values by layer, each of shape (1, heads, slots × capacity, head size).

    A layer is allocated when it is first written, and the memory is not touched then: on a CPU
    only what sequences really hold takes room.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer; `key` and `value` (1, heads, tokens, size) shape it."""
        held = self._layers.get(index)
        if held is None:
            held = self._layers[index] = (self._empty(key), self._empty(value))
        return held

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_empty(1, like.shape[1], self.slots * self.capacity, like.shape[3])

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of a slot to another."""
        read, write = source * self.capacity, target * self.capacity
        for held in self._layers.values():
            for states in held:
                states[:, :, write : write + length] = states[:, :, read : read + length]

    def gather(self, slot: int, length: int, path: Sequence[int]) -> None:
        """Move the tokens at places `length + path[i]` of a slot to `length + i`."""
        start = next((i for i, index in enumerate(path) if index != i), len(path))
        if start == len(path):
            return
        begin = slot * self.capacity + length
        for held in self._layers.values():
            for states in held:
                places = torch.tensor([begin + index for index in path[start:]])
                moved = states.index_select(2, places.to(states.device))
                states.narrow(2, begin + start, len(path) - start).copy_(moved)

    def bytes_per_token(self) -> dict[int, int]:
        """Bytes that one token takes, by layer, of the layers written so far."""
        return {
            index: sum(states.shape[1] * states.shape[3] * states.element_size() for states in held)
            for index, held in self._layers.items()
        }


class CachePlan:
    """What the attention of one forward must know: its segments, in the order of their tokens.

    windows    most tokens that a row of a layer sees, its own included; 0: all
    seen       instead of windows, in the self-test: what the layers ask for
    """

    def __init__(
        self,
        cache: KeyValueCache,
        segments: Sequence[TokenSegment],
        windows: Mapping[int, int] | None = None,
        seen: Seen | None = None,
    ) -> None:
        self.cache, self.segments = cache, segments
        self.windows: Mapping[int, int] = windows or {}
        self.seen = seen
        self.places: Tensor | None = None
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Token ids and their positions, each of shape (1, tokens)."""
        tokens = [token for segment in self.segments for token in segment.tokens]
        positions = [at for segment in self.segments for at in segment.positions()]
        if len(self.segments) == 1:
            ids, places = torch.tensor([tokens, positions], device=device).unsqueeze(1)
            return ids, places
        capacity = self.cache.capacity
        index = [
            segment.sequence.slot * capacity + at
            for segment in self.segments
            for at in range(segment.start, segment.end)
        ]
        rows = torch.tensor([tokens, positions, index], device=device)
        self.places = rows[2]
        return rows[0:1], rows[1:2]

    def store(self, held: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> None:
        """Put a layer's new keys and values, shape (1, heads, rows, head size), in their places."""
        keys, values = held
        if self.places is None:
            segment = self.segments[0]
            begin = segment.sequence.slot * self.cache.capacity + segment.start
            keys.narrow(2, begin, segment.count).copy_(key)
            values.narrow(2, begin, segment.count).copy_(value)
        else:
            keys.index_copy_(2, self.places, key)
            values.index_copy_(2, self.places, value)

    def mask(self, number: int, window: int, copies: int, like: Tensor) -> Tensor:
        """Added to the scores of a segment: minus infinity where a row may not look. Shape
        (copies × rows, keys from `first_key` on). Layers of a forward share it."""
        found = self._masks.get((number, window, copies))
        if found is None:
            segment = self.segments[number]
            rows = torch.arange(segment.start, segment.end, device=like.device).unsqueeze(1)
            keys = torch.arange(first_key(segment, window), segment.end, device=like.device)
            hidden = keys > rows
            if segment.tree is not None:
                first = first_key(segment, window)
                _hide_other_branches(hidden, segment, segment.tree, first)
                # A window counts positions, which are no places where branches lie side by side.
                seen = [segment.tree.position(place) for place in range(first, segment.end)]
                keys = torch.tensor(seen, device=like.device)
                rows = keys[segment.start - first :].unsqueeze(1)
            if window:
                hidden |= keys <= rows - window
            found = like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            found = self._masks[number, window, copies] = found.repeat(copies, 1)
        return found


@dataclass(slots=True)
class Seen:
    """What layers asked of their attention in the self-test: the window of each, and
    the names of arguments that `attention` doesn't know."""

    windows: dict[int, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


KNOWN_ARGUMENTS = frozenset(
    ("dropout", "position_ids", "use_cache", "past_key_values", "output_attentions",
     "output_hidden_states", "output_router_logits", "return_dict", "cache_position",
     "deterministic")
)  # fmt: skip


def first_key(segment: TokenSegment, window: int) -> int:
    """The first token that any row of a segment may look at."""
    first = segment.start if segment.tree is None else min(segment.start, segment.tree.base)
    return max(0, first - window + 1) if window else 0


def _hide_other_branches(
    hidden: Tensor, segment: TokenSegment, tree: TokenTree, first: int
) -> None:
    """Hide from the rows of a tree what isn't on their paths. `hidden` has a row for each token of
    the segment, and a column for each key from `first` on."""
    trunk = max(0, tree.base - segment.start)
    fed = range(segment.start + trunk - tree.base, segment.end - tree.base)
    seen = tree.seen()[fed.start : fed.stop, : segment.end - tree.base]
    hidden[trunk:, tree.base - first :] = torch.tensor(~seen, device=hidden.device)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paceline_plan: CachePlan | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in every layer. Shapes: query (1, heads, tokens, size), key
    and value (1, key heads, tokens, size); returns (1, tokens, heads, value size)."""
    if paceline_plan is None:
        raise NotImplementedError("its layers don't pass arguments on to their attention")
    plan = paceline_plan
    if plan.seen is None:
        window = plan.windows[module.layer_idx]
    else:
        window = _look(plan.seen, module, attention_mask, sliding_window, others)
    held = plan.cache.layer(module.layer_idx, key, value)
    plan.store(held, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if len(plan.segments) == 1:
        return _attend(plan, 0, query, held, scale, window, softcap), None
    outs, begin = [], 0
    for number, segment in enumerate(plan.segments):
        rows = query.narrow(2, begin, segment.count)
        outs.append(_attend(plan, number, rows, held, scale, window, softcap))
        begin += segment.count
    return torch.cat(outs, dim=1), None


def _look(
    seen: Seen, module: Any, mask: Tensor | None, window: int | None, others: dict[str, Any]
) -> int:
    """Note what a layer asks for; returns its window. The mask's word counts before the layer's:
    not every model with windows passes them on."""
    told = window or 0 if mask is None else int(mask)
    seen.windows[module.layer_idx] = told
    for name, given in others.items():
        harmless = name in KNOWN_ARGUMENTS or (name == "is_causal" and given is True)
        if given is not None and not harmless:
            seen.unknown.add(name)
    if getattr(module, "is_causal", True) is False:
        seen.unknown.add("is_causal=False")
    return told


def _window_alone(*_: Any, local_size: int | None = None, **__: Any) -> Tensor:
    """In place of a mask: the window it would have, as a number in a tensor."""
    return torch.tensor(local_size or 0)


AttentionInterface.register(NAME, attention)
AttentionInterface.register(SELF_TEST, attention)
AttentionMaskInterface.register(SELF_TEST, _window_alone)


def _attend(
    plan: CachePlan,
    number: int,
    query: Tensor,
    held: tuple[Tensor, Tensor],
    scale: float,
    window: int,
    softcap: float | None,
) -> Tensor:
    """One segment: query (1, heads, rows, size) over its slot's keys; returns (1, rows, heads,
    value size)."""
    segment = plan.segments[number]
    first = first_key(segment, window)
    begin, length = segment.sequence.slot * plan.cache.capacity + first, segment.end - first
    keys, values = held[0].narrow(2, begin, length), held[1].narrow(2, begin, length)
    _, heads, rows, size = query.shape
    sharing = keys.shape[1]
    groups = heads // sharing
    if softcap:
        mask = plan.mask(number, window, 1, query)
        out = _capped(query, keys, values, mask, scale, softcap)
    elif groups * rows <= FOLDED_ROWS:
        alone = rows == 1 and segment.tree is None
        mask = None if alone else plan.mask(number, window, groups, query)
        stacked = query.reshape(1, sharing, groups * rows, size)
        out = scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
        if rows == 1:
            return out.reshape(1, 1, heads, -1)
    else:
        out = scaled_dot_product_attention(
            query.reshape(sharing, groups, rows, size).transpose(0, 1),
            keys.expand(groups, -1, -1, -1),
            values.expand(groups, -1, -1, -1),
            attn_mask=plan.mask(number, window, 1, query),
            scale=scale,
        ).transpose(0, 1)
    return out.reshape(1, heads, rows, -1).transpose(1, 2).contiguous()


def _capped(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention whose scores are squeezed into ±softcap, which the library kernels can't do."""
    _, _, rows, size = query.shape
    by_head = query.reshape(keys.shape[1], -1, rows, size)
    scores = (by_head @ keys[0][:, None].transpose(2, 3)).float() * scale
    scores = torch.tanh(scores / softcap) * softcap + mask.float()
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    return weights @ values[0][:, None]
