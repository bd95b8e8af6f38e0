"""A part of a target's layers, run over the target's own weights and cache.

What the part writes for tokens that are not committed lies behind the target's own entries, in the
layers that run, and is overwritten when the target scores those places; so a draft made of it needs
no prefill, no second cache and no second model (LayerSkip, Elhoushi et al. 2024, section 4.3).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AbstractSequence
from types import SimpleNamespace
from typing import Any

import torch

from paceline.engines.base import Engine, Job, Sequence, TokenSegment
from paceline.engines.load import loading
from paceline.engines.transformers.cache import CachePlan, KeyValueCache, Tensor
from paceline.engines.transformers.engine import TransformersEngine, TransformersSequence
from paceline.engines.transformers.head import ExitHead
from paceline.engines.transformers.self_test import TOLERANCES, run
from paceline.errors import ModelError, SettingError
from paceline.types import Array

Change = Callable[[Tensor], Tensor]


class HandOn(torch.nn.Module):  # type: ignore[misc]
    """Stands where a layer is left out, so that the others keep their places and get what they get
    in the whole model. States go through unchanged, or as `change` makes them."""

    def __init__(self, layer: Any, change: Change | None = None) -> None:
        super().__init__()
        self._stands_for = (layer,)  # in a tuple, so that it is no submodule
        self._change = change

    def forward(self, states: Tensor, *_: Any, **__: Any) -> Tensor:
        """States, shape (batch, rows, hidden size), as they came or as the head changes them."""
        return states if self._change is None else self._change(states)

    def __getattr__(self, name: str) -> Any:
        """What a decoder may want to know of the layer itself."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._stands_for[0], name)


class LayerStack:
    """The list of layers that a model's decoder runs through. Raises ModelError if there is none
    whose entries are the model's layers, in order."""

    def __init__(self, target: str, model: Any) -> None:
        self._model = model
        count = model.config.get_text_config(decoder=True).num_hidden_layers
        found = [
            (owner, name, child)
            for owner in model.modules()
            for name, child in owner.named_children()
            if isinstance(child, torch.nn.ModuleList) and _is_stack(child, count)
        ]
        if len(found) != 1:
            raise ModelError(
                f"{target} ({type(model).__name__}) has {len(found)} lists of its {count} layers "
                "where 1 is needed to leave some out.",
                "Use another draft, or another model.",
            )
        [(self._owner, self._name, self.layers)] = found

    def part(self, kept: AbstractSequence[int], change: Change | None = None) -> Any:
        """The list with only some layers in it. `change` is applied to the states behind the last
        of them, which then can't be the model's last."""
        after = max(kept, default=-1) + 1
        return torch.nn.ModuleList(
            layer if at in kept else HandOn(layer, change if at == after else None)
            for at, layer in enumerate(self.layers)
        )

    @contextlib.contextmanager
    def running(self, part: Any) -> Iterator[None]:
        """For a while, the decoder runs through this list."""
        self._owner._modules[self._name] = part
        try:
            yield
        finally:
            self._owner._modules[self._name] = self.layers

    def read_out(self, states: Tensor) -> Tensor:
        """Logits that the model's own last norm and head make of states behind a layer: states of
        shape (rows, width) give float32 (rows, vocabulary)."""
        device = self._model.device
        ids = torch.zeros((1, len(states)), dtype=torch.long, device=device)
        with self.running(self.part((), _first(states))):
            return self._model(input_ids=ids, position_ids=ids, use_cache=False).logits[0].float()

    @contextlib.contextmanager
    def noting(self) -> Iterator[dict[int, list[Tensor]]]:
        """Collects, while it lasts, what goes into each layer, and under the number of layers what
        comes out of the last: lists of (tokens, width), one a forward."""
        noted: dict[int, list[Tensor]] = {}

        def note(at: int, states: Tensor, out: Tensor) -> None:
            noted.setdefault(at, []).append(states[0])
            if at == len(self.layers) - 1:
                noted.setdefault(at + 1, []).append(out[0])

        with _watched(self.layers, note):
            yield noted


def _is_stack(child: Any, count: int) -> bool:
    return len(child) == count and all(
        any(getattr(inner, "layer_idx", None) == at for inner in layer.modules())
        for at, layer in enumerate(child)
    )


def _first(states: Tensor) -> Change:
    return lambda _: states.unsqueeze(0)


class PartialSequence(TransformersSequence):
    """What the part holds of a target's sequence: that one's tokens, and provisional ones behind.

    trunk       the target's sequence; None opens one that is this sequence's own
    followed    how many tokens the target's held when this one last followed it
    """

    def __init__(self, engine: PartialEngine, trunk: Any = None) -> None:
        self._owns = trunk is None
        self.trunk = engine.target.open() if trunk is None else trunk
        super().__init__(engine, self.trunk.slot)
        self.follow()

    @property
    def base(self) -> int:
        """How many of the tokens are the target's, and not to be written over."""
        return 0 if self._owns else int(self.trunk.length)

    def follow(self) -> None:
        """Hold what the target's sequence holds now, and nothing else."""
        self.tokens = list(self.trunk.tokens)
        self.followed = len(self.tokens)

    def _close(self) -> None:
        if self._owns:
            self.trunk.close()


class PartialEngine(Engine):
    """Some layers of a target, then its own last norm and head.

    target    stays the caller's: closing this engine leaves it as it is
    kept      the layers that run, numbered from 0
    head      changes the states behind the last of them, before the norm

    Raises SettingError for layers that the target doesn't have, or a head where none fits;
    ModelError if the target can't run a part of its layers.
    """

    name = "transformers"
    needs = TransformersEngine.needs

    def __init__(
        self, target: TransformersEngine, kept: AbstractSequence[int], head: ExitHead | None = None
    ) -> None:
        self.target, self.kept, self.head = target, tuple(sorted({*kept})), head
        self.stack = LayerStack(target.model, target.module)
        self._check_setting()
        self.vocabulary_size, self.tokenizer = target.vocabulary_size, target.tokenizer
        self.capabilities, self.place = target.capabilities, target.place
        self.model = f"{target.model} [{self.setting}]"
        self._try_out()
        self._part = self.stack.part(self.kept, head)

    @property
    def cache(self) -> KeyValueCache:
        """The target's, which ends with it."""
        return self.target.cache

    @property
    def setting(self) -> str:
        """Which layers run, as the policy's costs are told apart by."""
        text = f"layers {ranges(self.kept)} of {len(self.stack.layers)}"
        return text if self.head is None else f"{text}, head of rank {self.head.rank}"

    def _check_setting(self) -> None:
        count, kept = len(self.stack.layers), self.kept
        if not kept or kept[0] < 0 or kept[-1] >= count:
            raise SettingError(
                f"The layers to run are {ranges(kept) or 'none'}, and {self.target.model} has "
                f"{count}, 0 to {count - 1}.",
                "Name at least one of them.",
            )
        if len(kept) == count:
            raise SettingError(
                f"All {count} layers of {self.target.model} would draft, which is the target "
                "itself.",
                "Leave some out.",
            )
        if self.head is not None and kept != tuple(range(len(kept))):
            raise SettingError(
                f"An exit head stands behind the first layers, and {ranges(kept)} are not those.",
                "Leave the head out, or exit early.",
            )

    def _try_out(self) -> None:
        """Raises ModelError unless the part gives what the model gives when the layers themselves
        are told to do nothing, and writes the cache of the layers that run."""
        model, kept = self.target.module, self.kept
        kind = f"{self.target.model} ({type(model).__name__})"
        tokens = [(7 * at + 1) % self.target.vocabulary_size for at in range(9)]
        segment = TokenSegment(SimpleNamespace(slot=0), 0, tokens)
        cache, windows = KeyValueCache(1, 16), self.target.windows

        def forward(cache: KeyValueCache) -> Tensor:
            return run(model, CachePlan(cache, [segment], windows), 0)

        def look(at: int, states: Any, out: Any) -> None:
            if not isinstance(out, torch.Tensor) or out.shape != getattr(states, "shape", None):
                differing.append(at)

        differing: list[int] = []
        hint = "Use another draft, or other layers."
        with loading(f"{kind} with {self.setting}", hint, verb="run"), torch.inference_mode():
            with _watched(self.stack.layers, look):
                forward(KeyValueCache(1, 16))
            if differing:
                raise ModelError(
                    f"{kind} has layers that give something else than states like those they get: "
                    f"{ranges(differing)}.",
                    "Use another draft.",
                )
            with _idle(self.stack.layers, kept):
                wanted = forward(KeyValueCache(1, 16))
            with self.stack.running(self.stack.part(kept)):
                found = forward(cache)
        apart = float((found - wanted).norm() / (wanted - wanted.mean(-1, keepdim=True)).norm())
        written = sorted(cache.bytes_per_token())
        if written != list(kept) or not apart <= TOLERANCES[self.target.dtype]:
            raise ModelError(
                f"{kind} ran layers {ranges(written) or 'none'} where {self.setting} were asked "
                f"for, with a relative error of {apart:.2g}.",
                hint,
            )

    @classmethod
    def load(cls, target: str, **options: Any) -> PartialEngine:  # noqa: ARG003
        raise SettingError(
            f"A part of {target} can't be loaded by itself.", "Load the target, then take its part."
        )

    def open(self, trunk: Sequence | None = None) -> PartialSequence:
        """A sequence behind the target's `trunk`, or with one of its own."""
        if trunk is not None and getattr(trunk, "engine", None) is not self.target:
            raise SettingError(
                f"The sequence to draft for is not one of {self.target.model} as it is loaded "
                "here.",
                "Let the draft and the decoding share one engine.",
            )
        return PartialSequence(self, trunk)

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        for job in jobs:
            sequence = job.sequence
            assert isinstance(sequence, PartialSequence)
            if sequence.trunk.closed:
                raise ValueError("the target's sequence is closed")
            if sequence.length < sequence.base:
                raise ValueError("the target's own entries would be written over")
        with self.stack.running(self._part):
            return self.target._score(jobs)

    def metadata(self) -> dict[str, Any]:
        """The target's, but for the bytes: a part has none of its own."""
        own = 0 if self.head is None else self.head.bytes
        shared = {"layers": self.setting, "weights_bytes": own, "cache_bytes": 0}
        return self.target.metadata() | shared

    def close(self) -> None:
        """Nothing to free: all of it is the target's."""


@contextlib.contextmanager
def _watched(layers: Any, look: Callable[[int, Any, Any], None]) -> Iterator[None]:
    """Calls, while it lasts, `look(layer's number, its first input, its output)`."""

    def hook(at: int) -> Callable[..., None]:
        return lambda _, given, out: look(at, given[0] if given else None, out)

    with contextlib.ExitStack() as stack:
        for at, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(hook(at)).remove)
        yield


@contextlib.contextmanager
def _idle(layers: Any, kept: AbstractSequence[int]) -> Iterator[None]:
    """The layers that aren't kept hand their states on, in the model's own list."""
    with contextlib.ExitStack() as stack:
        for at, layer in enumerate(layers):
            if at not in kept:
                stack.callback(_restore, layer, vars(layer).get("forward"))
                layer.forward = lambda states, *_, **__: states
        yield


def _restore(layer: Any, forward: Any) -> None:
    if forward is None:
        del layer.forward
    else:
        layer.forward = forward


def ranges(layers: AbstractSequence[int]) -> str:
    """Layer numbers in short.

    >>> ranges([0, 1, 2, 7, 9, 10])
    '0-2.7.9-10'
    """
    parts: list[list[int]] = []
    for at in sorted({*layers}):
        if parts and parts[-1][1] == at - 1:
            parts[-1][1] = at
        else:
            parts.append([at, at])
    return ".".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def identity(engine: TransformersEngine) -> dict[str, Any]:
    """What tells a target's weights from another's, whatever they are loaded as: its shape, and a
    digest of the first values of every weight in bfloat16."""
    model = engine.module
    config = model.config.get_text_config(decoder=True)
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        few = weight.detach().flatten()[:16].to("cpu", torch.bfloat16)
        digest.update(f"{name} {tuple(weight.shape)} ".encode())
        digest.update(few.view(torch.int16).numpy().tobytes())
    return {
        "architecture": type(model).__name__,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "vocabulary": engine.vocabulary_size,
        "digest": digest.hexdigest()[:16],
    }
