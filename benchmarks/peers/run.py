"""The same prompts through what users would run instead, beside Paceline; README.md has the set-up.

    python benchmarks/peers/run.py --config peers.json --prompts benchmarks/data/suite.jsonl \\
        --max-tokens 160 --out benchmarks/results/peers-qwen2.5-coder-1.5b.json

Every worker decodes a prompt before any goes on to the next, one at a time and in random order, so
that ratios hold on a machine whose speed drifts. Answers go to a .jsonl file as they come, and a
second start goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from config import HERE, Process, Side, read_plan
from process import Worker, WorkerLost, cpu_seconds
from record import Record
from summary import summarise
from table import markdown
from tqdm import tqdm

from paceline.bench.machine import machine_metadata
from paceline.bench.prompts.formats import find_workload
from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.errors import DataError, PacelineError

WARM_UP = ({"role": "user", "content": "Count from one to ten, twice. Numbers only."},)
WARM_UP_TOKENS = 24
COOL_DOWN_S = 1.5
"""Pause before each answer: vLLM's processes spin for a second after their last work."""


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, end)
    try:
        return run(args)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on.", file=sys.stderr)
        return 130


def end(*_: object) -> None:
    """Leave through every `finally`, where workers are closed; a second signal mustn't cut it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="which peers (see README.md)")
    parser.add_argument("--prompts", default=str(HERE.parent / "data" / "suite.jsonl"))
    parser.add_argument("--categories", help="only prompts of these, with commas")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--groups", help="only these groups of the config, with commas")
    parser.add_argument("--out", required=True, help="the JSON file; lines go beside it (.jsonl)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of workers")
    parser.add_argument("--start-timeout", type=float, default=900.0, help="seconds to load")
    parser.add_argument("--answer-timeout", type=float, default=900.0, help="seconds an answer")
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    plan, document = read_plan(args.config)
    groups = plan.chosen(args.groups.split(",") if args.groups else None)
    workload = find_workload(args.prompts)
    if args.categories:
        workload = workload.of_categories(args.categories.split(","))
    out = Path(args.out)
    if out.exists() and not out.with_suffix(".jsonl").exists():
        raise DataError(f"{out} is there already, and complete.", "Choose another with --out.")
    for sentence in workload.skipped:
        print(f"{workload.name}: {sentence} Left out.", file=sys.stderr)
    turns = [prompt.id for prompt in workload.prompts if prompt.follows is not None]
    if turns:
        raise DataError(
            f"{len(turns)} prompts are turns after another's answer, {turns[0]} first.",
            "Give prompts of one turn.",
        )
    header = {
        "config": document,
        "prompts_sha256": workload.sha256,
        "prompts": [prompt.id for prompt in workload.prompts],
        "sides": [
            [side.group, side.peer, side.mode]
            for processes in plan.groups.values()
            for side in sides_of(processes)
        ],
        "max_tokens": args.max_tokens,
        "seed": args.seed,
        "machine": machine_metadata(),
    }
    record = Record(out.with_suffix(".jsonl"), header)
    failed = False
    try:
        for group, processes in groups.items():
            try:
                run_group(args, group, processes, workload.prompts, record)
            except WorkerLost as error:
                print(f"The group {group} is left out: {error}", file=sys.stderr)
                failed = True
    finally:
        if record.rows:
            write(out, header, record)
    if not record.rows:
        return 1
    complete = all(
        record.done(group, prompt.id, sides_of(processes))
        for group, processes in plan.groups.items()
        for prompt in workload.prompts
    )
    if complete:
        record.path.unlink()
    elif any(row.get("lost") for row in record.rows):
        print("Some answers were lost with a worker: start again to ask anew.", file=sys.stderr)
    print(markdown([json.loads(out.read_text(encoding="utf-8"))]))
    return 1 if failed else 0


def sides_of(processes: Sequence[Process]) -> list[Side]:
    return [side for process in processes for side in process.sides]


def run_group(
    args: argparse.Namespace,
    group: str,
    processes: Sequence[Process],
    prompts: Sequence[WorkloadPrompt],
    record: Record,
) -> None:
    """Load a group's workers, put every prompt to all of them, and close them. Raises WorkerLost if
    one does not start: a table without it would not say what was asked."""
    sides = sides_of(processes)
    left = [prompt for prompt in prompts if not record.done(group, prompt.id, sides)]
    if not left:
        return
    with ExitStack() as stack:
        log = Path(tempfile.gettempdir()) / f"{Path(args.out).stem}-{group}.log"
        print(f"What the workers print is in {log}.", file=sys.stderr)
        crew = Crew(processes, log, args)
        stack.callback(crew.close)
        began = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        record.started_workers(group, {"at": began, "command": command(), "workers": crew.start()})
        with tqdm(total=len(left) * len(sides), unit="answer", desc=group) as bar:
            for prompt in left:
                record.begin_turn(group, prompt.id)
                for side in order(sides, args.seed, prompt.id):
                    row = crew.ask(side, prompt, args.max_tokens)
                    record.add(row)
                    bar.set_postfix_str(told(row), refresh=False)
                    bar.update()


def order(sides: Sequence[Side], seed: int, prompt: str) -> list[Side]:
    """A random order of a prompt's sides; the same when a run is resumed."""
    shuffled = list(sides)
    random.Random(f"{seed} {prompt}").shuffle(shuffled)
    return shuffled


def told(row: dict[str, Any]) -> str:
    head = f"{row['id']}, {row['peer']}, {row['mode']}"
    if "error" in row:
        return f"{head}: {row['error']}"
    return f"{head}: {1e3 * row['decode_s'] / max(1, row['tokens']):.0f} ms per token"


class Crew:
    """The running workers of a group. One that is lost is started again before the next prompt; if
    that fails too, its prompts are errors from there on. Answers that were lost with a worker are
    marked, and asked again by a second start."""

    def __init__(self, processes: Sequence[Process], log: Path, args: argparse.Namespace) -> None:
        self._processes = {side: process for process in processes for side in process.sides}
        self._workers: dict[Process, Worker] = {}
        self._lost: dict[Process, str] = {}
        self._log = log
        self._args = args

    def start(self) -> dict[str, Any]:
        """Start every worker and warm it up; gives what each says of itself. Raises WorkerLost."""
        metadata: dict[str, Any] = {}
        for process in dict.fromkeys(self._processes.values()):
            began = monotonic()
            worker = self._begin(process)
            metadata[process.name] = {**worker.metadata, "load_s": monotonic() - began}
        return metadata

    def ask(self, side: Side, prompt: WorkloadPrompt, max_tokens: int) -> dict[str, Any]:
        process = self._processes[side]
        row = {
            "group": side.group,
            "peer": side.peer,
            "mode": side.mode,
            "id": prompt.id,
            "category": prompt.category,
        }
        if process in self._lost:
            return {**row, "error": self._lost[process], "lost": True}
        worker = self._workers[process]
        others = [other for other in self._workers.values() if other is not worker]
        sleep(COOL_DOWN_S if others else 0)
        idle, began = cpu_seconds(others), monotonic()
        try:
            answer = worker.ask(
                prompt.id, side.mode, prompt.messages, max_tokens, self._args.answer_timeout
            )
        except WorkerLost as error:
            self._again(process, str(error))
            return {**row, "error": str(error), "lost": True}
        wall = monotonic() - began
        return {**row, **answer, "wall_s": wall, "idle_cpu_s": cpu_seconds(others) - idle}

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def _begin(self, process: Process) -> Worker:
        worker = Worker(process, self._log, self._args.start_timeout)
        self._workers[process] = worker
        for side in process.sides:
            worker.ask("warm-up", side.mode, WARM_UP, WARM_UP_TOKENS, self._args.answer_timeout)
        return worker

    def _again(self, process: Process, why: str) -> None:
        self._workers.pop(process).close()
        try:
            self._begin(process)
        except WorkerLost as error:
            self._lost[process] = f"{why}; then {error}"


def command() -> list[str]:
    return ["python", "benchmarks/peers/run.py", *sys.argv[1:]]


def write(out: Path, header: dict[str, Any], record: Record) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=HERE,
        text=True,
        capture_output=True,
        check=False,
    ).stdout.strip()
    document = {
        "benchmark": "peers",
        "command": command(),
        "commit": commit,
        **header,
        "started": record.started,
        "groups": summarise(record.rows, [Side(*names) for names in header["sides"]]),
        "rows": record.rows,
    }
    out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
