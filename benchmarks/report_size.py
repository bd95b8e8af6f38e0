"""A report of 10,000 rounds: seconds from the command's start to the file, and its bytes.

The rounds are a real bench's, of the toy engine: eight categories, plain and five drafted
configurations. The seconds are the whole command's, Python's start included; the best of several.
Modules are compiled beforehand, as they are by pip when it installs them.

    python benchmarks/report_size.py
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.file import RunFile
from paceline.bench.local.result import BenchResult
from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.drafts.lookup import LookupDraft
from paceline.testing import ToyEngine
from paceline.types import Sampling

CATEGORIES = ("code", "chat", "story", "maths", "summary", "translation", "extraction", "rewriting")
LIMITS = (1, 2, 3, 5, 7)


def workload(each: int) -> Workload:
    """Prompts that repeat themselves more or less, so that the lookup finds something."""
    prompts = [
        WorkloadPrompt(
            f"{category}-{number}",
            category,
            ({"role": "user", "content": ("abcdefgh"[: 2 + place] * 9)[: 20 + number]},),
        )
        for place, category in enumerate(CATEGORIES)
        for number in range(each)
    ]
    return Workload("toy", tuple(prompts))


def write_run(path: Path, rounds: int, temperature: float) -> int:
    """A run file of at least so many rounds, and how many it has."""
    engine, sampling = ToyEngine(8, seed=1), Sampling(temperature=temperature, seed=1)
    configurations = with_baseline(
        [
            Configuration(
                f"lookup -n {max_draft_tokens}", {"lookup": LookupDraft()}, max_draft_tokens
            )
            for max_draft_tokens in LIMITS
        ]
    )
    each = 4
    while True:
        prompts = workload(each)
        given = {"max_tokens": 64, "sampling": sampling}
        header = header_of(engine, configurations, prompts, **given)
        result = run_bench(engine, configurations, prompts, **given, keeper=BenchResult(header))
        found = sum(len(run.rounds) for run in result.runs)
        if found >= rounds:
            break
        each *= 2
    file = RunFile.open(path, header)
    with file:
        for run in result.runs:
            file.add(run)
    return found


def processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run, out = Path(place, "run.jsonl"), Path(place, "report.html")
        rounds = write_run(run, args.rounds, args.temperature)
        compiled = {"PYTHONPYCACHEPREFIX": str(Path(place, "compiled"))}
        environment = {**os.environ, **compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        seconds, processor = [], []
        for _ in range(args.times + 1):
            started, before = perf_counter(), processor_seconds()
            command = [
                sys.executable,
                "-m",
                "paceline.cli.main",
                "report",
                str(run),
                "-o",
                str(out),
            ]
            subprocess.run(command, check=True, capture_output=True, env=environment)
            seconds.append(perf_counter() - started)
            processor.append(processor_seconds() - before)
        del seconds[0], processor[0]  # the first one compiled
        print(
            f"{rounds:,} rounds ({run.stat().st_size / 1e6:.1f} MB): {min(seconds):.2f} s at best "
            f"of {args.times}, {max(seconds):.2f} s at worst; of processor time "
            f"{min(processor):.2f} s and {max(processor):.2f} s; the page is "
            f"{out.stat().st_size / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
