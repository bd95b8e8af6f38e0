"""Run by a Python that has SGLang: its own parser and checks on arguments, without starting it.

Reads a list as JSON from stdin, a folder and arguments each; writes what became of each.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

SHOWN = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    "max_running_requests",
    "enable_metrics",
)
"""Shown of every answer, besides what was written."""


class Standing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for torchvision, which SGLang imports for its image models: no part of this."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return MagicMock(name=spec.name, __spec__=spec, __path__=[], __version__="0")

    def exec_module(self, module: ModuleType) -> None:
        pass


def resolved(folder: str, arguments: list[str]) -> dict[str, Any]:
    from sglang.srt.server_args import prepare_server_args

    os.chdir(folder)
    try:
        found = prepare_server_args([*arguments, "--device", "cpu"])
        found.resolve_once()
        values = found.resolved_dict()
    except (Exception, SystemExit) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    written = [word[2:].replace("-", "_") for word in arguments if word.startswith("--")]
    return {name: values[name] for name in (*SHOWN, *written) if name in values}


def main() -> None:
    sys.meta_path.insert(0, Standing())
    answers = [resolved(**asked) for asked in json.load(sys.stdin)]
    sys.__stdout__.write("\nANSWERS " + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
