"""A small head between an exit layer and the target's own last norm and head, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paceline.engines.transformers.cache import Tensor
from paceline.errors import DataError, PairError

KIND, VERSION = "paceline exit head", 1


class ExitHead(torch.nn.Module):  # type: ignore[misc]
    """Moves states behind an exit layer towards those behind the last one: with x the states
    brought to size 1, a gain for each of their entries and a low-rank map of them are added, in the
    states' own size. All begins at zero, as no change to the bit.

    Between a tuned lens (Belrose et al. 2023), which is a full affine map, and Kangaroo's adapter
    (Liu et al. 2024), which has attention of its own and so a cache.

    width    of the states
    rank     of the map
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.gain = torch.nn.Parameter(torch.zeros(width))
        self.down = torch.nn.Parameter(torch.empty(rank, width))
        self.up = torch.nn.Parameter(torch.zeros(width, rank))
        torch.nn.init.normal_(
            self.down, std=width**-0.5, generator=torch.Generator().manual_seed(rank)
        )

    def forward(self, states: Tensor) -> Tensor:
        """States of shape (…, width), in their own dtype; the arithmetic is float32."""
        whole = states.float()
        size = whole.square().mean(-1, keepdim=True).add(1e-6).sqrt()
        unit = whole / size
        moved = self.gain * unit + (unit @ self.down.t()) @ self.up.t()
        return (whole + size * moved).to(states.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of its weights."""
        return sum(p.numel() * p.element_size() for p in self.parameters())


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head as it is kept: what it belongs to, and what fitting it has shown.

    layers    it stands behind so many of the target's first layers
    target    the target's `identity`
    report    how it was fitted, and held-out acceptance before and after
    """

    head: ExitHead
    layers: int
    target: dict[str, Any]
    report: dict[str, Any]


def save_head(path: Path, kept: HeadFile) -> None:
    """Write safetensors with the rest as metadata. Raises DataError if that isn't possible."""
    metadata = {
        "kind": KIND,
        "version": str(VERSION),
        "layers": str(kept.layers),
        "rank": str(kept.head.rank),
        "target": json.dumps(kept.target, sort_keys=True),
        "report": json.dumps(kept.report, sort_keys=True),
    }
    tensors = {name: p.detach().cpu().contiguous() for name, p in kept.head.named_parameters()}
    try:
        save_file(tensors, str(path), metadata)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} can't be written: {error}.", "Choose another file.") from None


def load_head(path: str | Path, target: dict[str, Any], device: Any = "cpu") -> HeadFile:
    """Read a head for a target of this identity.

    Raises DataError for a file that holds none, PairError for one of another target.
    """
    try:
        with safe_open(str(path), "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("kind") != KIND:
            raise KeyError("kind")
        if metadata.get("version") != str(VERSION):
            raise DataError(
                f"{path} has version {metadata.get('version')} of the format, and this Paceline "
                f"reads version {VERSION}.",
                "Fit it again with `paceline tune --fit-head`.",
            )
        kept = HeadFile(
            ExitHead(len(tensors["gain"]), int(metadata["rank"])).to(device),
            int(metadata["layers"]),
            json.loads(metadata["target"]),
            json.loads(metadata["report"]),
        )
        kept.head.load_state_dict(tensors)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} can't be read: {error}.", "Name a head's file.") from None
    except (KeyError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path} holds no exit head: {error}.", "Fit one with `paceline tune --fit-head`."
        ) from None
    for name, value in target.items():
        if kept.target.get(name) != value:
            raise PairError(
                f"The head in {path} was fitted to a target whose {name} is "
                f"{kept.target.get(name)}; this one's is {value}.",
                "Fit one to this target with `paceline tune --fit-head`.",
            )
    kept.head.requires_grad_(False)
    return kept
