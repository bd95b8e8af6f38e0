"""What `paceline export dynamo` tells workers, through Dynamo's own argument parsers.

    python engine_checks/dynamo_parsers.py

Reads the workers in results/dynamo.json, which `dynamo_graphs.py` writes, and writes
results/dynamo_parsers.json. Needs ai-dynamo, ai-dynamo-runtime and a vLLM; a CPU build of vLLM
does, although Dynamo's image has another version of it. TensorRT-LLM imports only beside CUDA: a
stand-in takes the place of its package, from which the parser wants the defaults of a few numbers.
SGLang's worker wants the whole of SGLang and is not tried.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

RESULTS = Path(__file__).parent / "results"


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of TensorRT-LLM that have everything, and do nothing."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != "tensorrt_llm":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def of_vllm(arguments: list[str]) -> dict[str, object]:
    from dynamo.vllm.args import _parse_cli_args

    dynamo, engine = _parse_cli_args(arguments)
    transfer = engine.kv_transfer_config
    return {
        "model": engine.model,
        "mode": getattr(dynamo.disaggregation_mode, "value", dynamo.disaggregation_mode),
        "speculative": engine.speculative_config,
        "role": transfer and transfer.kv_role,
    }


def of_tensorrt_llm(arguments: list[str]) -> dict[str, object]:
    from dynamo.trtllm.args import parse_args

    config = parse_args(arguments)
    return {
        "model": config.model,
        "mode": config.disaggregation_mode.value,
        "file": config.extra_engine_args,
        "metrics": config.publish_metrics,
    }


PARSERS: dict[str, Callable[[list[str]], dict[str, object]]] = {
    "vllm": of_vllm,
    "tensorrt-llm": of_tensorrt_llm,
}


def value_of(arguments: list[str], option: str) -> str | None:
    return arguments[arguments.index(option) + 1] if option in arguments else None


def wanted(engine: str, arguments: list[str]) -> dict[str, object]:
    """The same, read off the arguments."""
    mode = value_of(arguments, "--disaggregation-mode")
    if engine == "vllm":
        speculative = value_of(arguments, "--speculative-config")
        transfer = value_of(arguments, "--kv-transfer-config")
        return {
            "model": value_of(arguments, "--model"),
            "mode": mode,
            "speculative": speculative and json.loads(speculative),
            "role": transfer and json.loads(transfer)["kv_role"],
        }
    return {
        "model": value_of(arguments, "--model-path"),
        "mode": mode or "prefill_and_decode",
        "file": value_of(arguments, "--extra-engine-args") or "",
        "metrics": "--publish-metrics" in arguments,
    }


def refuses(engine: str) -> bool:
    """Whether a parser ends at an option that it doesn't know: else it would prove nothing."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            PARSERS[engine](["--no-such-option", "1"])
    except (SystemExit, ValueError):
        return True
    return False


def run() -> int:
    sys.meta_path.insert(0, StandIn())
    workers = json.loads((RESULTS / "dynamo.json").read_text(encoding="utf-8"))["workers"]
    parsed, faults = dict.fromkeys(PARSERS, 0), []
    for engine, arguments in workers:
        if engine not in PARSERS:
            continue
        found = PARSERS[engine](arguments)
        parsed[engine] += 1
        if found != wanted(engine, arguments):
            faults.append({"engine": engine, "arguments": arguments, "read": str(found)})
    faults += [f"{engine} takes what it doesn't know" for engine in PARSERS if not refuses(engine)]
    packages = {name: version(name) for name in ("ai-dynamo", "ai-dynamo-runtime")}
    result = {"packages": packages, "vllm": _vllm(), "workers": parsed, "faults": faults}
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / "dynamo_parsers.json").write_text(text, encoding="utf-8")
    print(text)
    return 1 if faults or not all(parsed.values()) else 0


def _vllm() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    sys.exit(run())
