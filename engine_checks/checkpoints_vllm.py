"""What `paceline inspect` says that vLLM loads, against what vLLM loads.

    PYTHONPATH=src python engine_checks/checkpoints_vllm.py

in an environment with the CPU build of one of the versions that `paceline.inspect.loaders`
knows. Every tiny draft of tests/inspect, whole and with every fault, goes through vLLM's own
configuration and weight loader; no token is decoded. Writes results/checkpoints_vllm-VERSION.json
with what vLLM refuses although we say that it loads (missed), and what it loads without a word
although it would draft wrongly (silent); exits with 1 if anything was missed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests/inspect"))

import faults as cases  # noqa: E402
import tiny_drafts as tiny  # noqa: E402
import torch  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.config.utils import replace  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import get_model  # noqa: E402

from paceline.inspect.checkpoint import Checkpoint  # noqa: E402
from paceline.inspect.loaders import loads  # noqa: E402
from paceline.inspect.read import read  # noqa: E402

VERSION = version("vllm-cpu")
NEEDS_TRITON = ("dspark", "dflash2")
"""Kinds that only the second model runner has, which a CPU build hasn't."""
TARGET = tiny.model_config(num_hidden_layers=5)


def drafts(place: Path) -> Iterator[tuple[str, Path]]:
    """Whole ones, those with a fault, and those of architectures that differ by name."""
    for kind, made in cases.FAMILIES.items():
        if kind != "mtp":  # a target's own layers, which no tiny target here has
            yield f"{kind}: whole", tiny.write(place / kind, *made())
    for kind in cases.SPECULATORS:
        yield f"speculators {kind}: whole", tiny.write(place / f"s-{kind}", *tiny.speculators(kind))
    faults = [(kind, edit, fact) for kind, edit, fact, *_ in (*cases.FATAL, *cases.SOME)]
    for number, (kind, edit, fact) in enumerate(faults):
        if kind == "mtp":
            continue
        config, tensors = cases.FAMILIES[kind]()
        edit(config, tensors)
        yield f"{kind}: {fact}", tiny.write(place / str(number), config, tensors)
    for name in ("LlamaForCausalLM", "Eagle3LlamaForCausalLM", "PEagleDraftModel", "Owl"):
        config = tiny.eagle3_config(architectures=[name])
        yield f"eagle3: named {name}", tiny.write(place / name, config, tiny.eagle3_tensors())
    eagle, bias = tiny.eagle_config(architectures=["LlamaForCausalLM"]), tiny.weights(tiny.HIDDEN)
    for name, more in (("whole", {}), ("with a bias", {"fc.bias": bias})):
        made = tiny.write(place / f"eagle {name}", eagle, tiny.eagle_tensors() | more)
        yield f"eagle: named LlamaForCausalLM, {name}", made
    for prefix in ("layers.0", "model.layers.0"):
        yield (
            f"eagle3: layer named {prefix}",
            tiny.write(place / prefix, tiny.eagle3_config(), tiny.eagle3_tensors(prefix)),
        )


def loaded(target: Path, draft: Path, checkpoint: Checkpoint) -> str:
    """Empty if vLLM takes the draft's config and all its weights; else what it says."""
    methods = {"p-eagle": "eagle3", "dflash2": "dflash", "xpress": "dflash", "model": "draft_model"}
    config: dict[str, Any] = {
        "model": str(draft),
        "method": methods.get(checkpoint.kind, checkpoint.kind),
        "num_speculative_tokens": 3,
    }
    if checkpoint.kind == "p-eagle":
        config["parallel_drafting"] = True
    try:
        engine = EngineArgs(
            model=str(target),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=64,
            speculative_config=config,
        ).create_engine_config()
        own = engine.speculative_config.draft_model_config
        whole = replace(engine, model_config=own) if checkpoint.kind == "model" else engine
        with set_current_vllm_config(whole):
            _distributed()
            get_model(vllm_config=whole, model_config=own)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' '.join(lines)[:200]}"
    return ""


def _distributed() -> None:
    if parallel_state.model_parallel_is_initialized():
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parallel_state.init_distributed_environment(
        1, 0, f"tcp://127.0.0.1:{port}", local_rank=0, backend="gloo"
    )
    parallel_state.initialize_model_parallel(1, 1)


def main() -> int:
    torch.set_num_threads(1)
    torch.accelerator.empty_cache = lambda: None  # as vLLM's CPU worker has it
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        target = tiny.write(Path(folder) / "target", TARGET, tiny.model_tensors(5))
        for name, draft in drafts(Path(folder)):
            checkpoint = read(draft)
            if checkpoint.kind in NEEDS_TRITON:
                continue
            ours = loads(checkpoint, "vllm", VERSION)
            said = loaded(target, draft, checkpoint)
            rows.append(
                {
                    "draft": name,
                    "inspect": "loads" if ours.yes else ours.reason,
                    "vllm": said or "loads",
                }
            )
            print(f"{'=' if ours.yes == (not said) else '?'} {name}\n    {rows[-1]}", flush=True)
    missed = [row["draft"] for row in rows if row["inspect"] == "loads" != row["vllm"]]
    silent = [row["draft"] for row in rows if row["inspect"] != "loads" == row["vllm"]]
    document = {
        "vllm": VERSION,
        "not checked": NEEDS_TRITON,
        "missed": missed,
        "silent": silent,
        "drafts": rows,
    }
    path = HERE / "results" / f"checkpoints_vllm-{VERSION}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(rows)} drafts; missed {missed}; silent {silent}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
