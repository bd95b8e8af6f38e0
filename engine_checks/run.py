"""Hold what `paceline export` writes against the engines themselves; results as JSON.

python engine_checks/run.py                    # all engines
python engine_checks/run.py vllm -k "n-gram"   # one, and only cases whose name has that
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import environments
from served import PROMPTS, TOKENS, Served, ask_llama, ask_vllm, serve

from paceline.models.catalog import cache_dir

RESULTS = Path(__file__).parent / "results"

Result = dict[str, Any]
VLLM_EXTRA = [
    *("--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "1024"),
    *("--max-num-seqs", "4", "--enforce-eager"),
]
VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 1,
    "vocab_size": 49152,
    "draft_vocab_size": 8000,
    "max_position_embeddings": 8192,
}


def export(engine: str, version: str, case: cases.Case, folder: Path) -> Path:
    """What the command line writes for a case, as a script."""
    case.plan.write(folder / "plan.json")
    script = folder / "serve.sh"
    environments.paceline(
        *("export", engine, str(folder / "plan.json"), "--version", version),
        *("--format", "flags", "-o", str(script), *case.options),
    )
    return script


def check_vllm(wanted: str, result: Result) -> None:
    place = environments.vllm_environment()
    os.environ.update(VLLM_VARIABLES)
    # Where the environment was given, it need not have this Paceline.
    os.environ["PYTHONPATH"] = str(environments.ROOT / "src")
    found = cases.vllm(environments.models())
    suffix = _imports(place / "bin/python", "arctic_inference")
    tried = [case for case in found if suffix or case.name != "suffix"]
    program = [str(place / "bin/python"), str(Path(__file__).parent / "vllm_cpu.py")]
    if not suffix:
        result["not_tried"] = (
            f"suffix: {environments.SUFFIX} isn't installed; building it wants a torch with CUDA"
        )
    _served("vllm", environments.VLLM, program, tried, wanted, result)


def _imports(python: Path, package: str) -> bool:
    words = [python, "-c", f"import importlib.util as u; exit(not u.find_spec({package!r}))"]
    return subprocess.run(words, check=False).returncode == 0


def check_xllamacpp(wanted: str, result: Result) -> None:
    """llama.cpp's server in a package: the newest version known."""
    stand_in = str(Path(__file__).parent / "xllamacpp_server.py")
    program = [str(environments.xllamacpp_python()), stand_in]
    version = f"b{environments.XLLAMACPP.rpartition('.')[2]}"
    found = cases.llama_server(environments.models())
    _served("llama-server", version, program, found, wanted, result)


def check_llama_server(wanted: str, result: Result) -> None:
    """A llama-server built from source, with its own parser."""
    program = [str(environments.llama_server())]
    version = f"b{environments.LLAMA.partition('.')[0]}"
    found = cases.llama_server(environments.models())
    _served("llama-server", version, program, found, wanted, result)


def _served(
    engine: str,
    version: str,
    program: list[str],
    found: list[cases.Case],
    wanted: str,
    result: Result,
) -> None:
    ask, extra, patience_s = (
        (ask_vllm, VLLM_EXTRA, 400.0)
        if engine == "vllm"
        else (ask_llama, ["--host", "127.0.0.1", "-c", "1024", "-np", "1"], 120.0)
    )
    result |= {"version": version, "prompts": len(PROMPTS), "tokens_each": TOKENS}
    plain: tuple[str, ...] = ()
    for case in found:
        if case.plan.draft is not None and wanted not in case.name:
            continue
        folder = environments.fresh(f"{engine} {version} {case.name}")
        script = export(engine, version, case, folder)
        served = serve(script, program, extra, ask, patience_s)
        plain = served.texts if case.plan.draft is None else plain
        result["cases"].append(_row(case, script, served, plain))


def _row(case: cases.Case, script: Path, served: Served, plain: tuple[str, ...]) -> dict[str, Any]:
    drafts = case.plan.draft is not None
    equal = bool(served.texts) and served.texts == plain
    return {
        "case": case.name,
        "command": _command(script),
        "refused": served.refused,
        "texts_equal_plain": equal,
        "tokens_drafted": served.drafted,
        "tokens_accepted": served.accepted,
        "passed": equal and (served.drafted > 0) == drafts,
    }


def _command(script: Path) -> str:
    lines = [line for line in script.read_text().splitlines() if not line.startswith("#")]
    return "\n".join(lines)


def check_sglang(wanted: str, result: Result) -> None:
    python = environments.vllm_environment() / "bin/python"
    models = environments.models()
    for version in environments.SGLANG:
        found = [case for case in cases.sglang(models) if wanted in case.name]
        scripts = [
            export("sglang", version, case, environments.fresh(f"sglang {version} {case.name}"))
            for case in found
        ]
        answers = _resolved(python, version, scripts)
        for case, script, answer in zip(found, scripts, answers, strict=True):
            row = {"version": version, "case": case.name, "command": _command(script)}
            passed = _as_written(script, answer)
            result["cases"].append({**row, "resolved": answer, "passed": passed})


def _resolved(python: Path, version: str, scripts: list[Path]) -> list[dict[str, Any]]:
    """SGLang's own parser and checks, in the folder where each script's files lie."""
    asked = []
    for script in scripts:
        asked.append({"folder": str(script.parent), "arguments": _arguments(script)})
        # SGLang reads a draft's config; this stands in for a repository that can't be reached.
        config = script.parent / "owner/eagle3/config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(EAGLE3))
    done = subprocess.run(
        [python, Path(__file__).parent / "sglang_arguments.py"],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": str(environments.sglang_packages(version))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    if not lines:
        raise SystemExit(f"SGLang {version} couldn't be asked:\n{done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(lines[-1].removeprefix("ANSWERS "))
    return found


def _arguments(script: Path) -> list[str]:
    """What a shell hands to the program, and the files that the script writes."""
    words = 'python3() { shift 2; for word in "$@"; do printf \'%s\\0\' "$word"; done; }\n'
    done = subprocess.run(
        ["sh", "-c", words + script.read_text()],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def _as_written(script: Path, answer: dict[str, Any]) -> bool:
    """Nothing refused, and everything stayed what the export wrote: SGLang names each of its
    settings as its flag."""
    words = _arguments(script)
    written = {
        word.removeprefix("--").replace("-", "_"): after
        for word, after in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }
    same = all(
        name in answer and str(answer[name]) == ("True" if after.startswith("--") else after)
        for name, after in written.items()
        if name != "speculative_algorithm"  # NEXTN is EAGLE there
    )
    lossless = all(
        answer.get(f"speculative_accept_threshold_{name}", 1.0) == 1.0 for name in ("single", "acc")
    )
    return "refused" not in answer and same and lossless


CHECKS = {
    "vllm": check_vllm,
    "sglang": check_sglang,
    "xllamacpp": check_xllamacpp,
    "llama-server": check_llama_server,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("-k", dest="wanted", default="", help="only cases whose name has this")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended
    failed = []
    for engine in args.engines or CHECKS:
        result: Result = {"engine": engine, "when": _now(), "complete": False, "cases": []}
        try:
            CHECKS[engine](args.wanted, result)
            result["complete"] = not args.wanted
        finally:
            path = _path(engine, result)
            path.write_text(_anywhere(json.dumps(result, indent=1)) + "\n")
        failed += [f"{engine}: {row['case']}" for row in result["cases"] if not row["passed"]]
        print(f"{engine}: {len(result['cases'])} cases, {path}")
    for name in failed:
        print(f"FAILED {name}")
    return 1 if failed else 0


def _path(engine: str, result: Result) -> Path:
    """Where a result is kept: one of some of the cases never in place of one of all."""
    folder = RESULTS if result["complete"] else environments.CACHE / "partial"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{engine}.json"


def _anywhere(text: str) -> str:
    """Without where this machine keeps its models."""
    for place in (environments.CACHE, cache_dir()):
        text = text.replace(f"{place}/", "")
    return text


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
