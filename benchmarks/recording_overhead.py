"""What it costs to keep a run: its line in the file, made and written, beside the time of decoding.

python benchmarks/recording_overhead.py [MODEL] [--max-tokens N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

from common import write

import paceline
from paceline.bench.local import bench as bench_module
from paceline.bench.local.bench import Configuration, header_of, run_bench, with_baseline
from paceline.bench.local.file import RunFile
from paceline.bench.local.run import ends_of
from paceline.bench.prompts.formats import find_workload
from paceline.drafts.lookup import LookupDraft


class Timed:
    """Passes on to a file, and adds up the seconds."""

    def __init__(self, file: RunFile) -> None:
        self.file, self.result, self.seconds = file, file.result, 0.0

    def add(self, run) -> None:
        started = perf_counter()
        self.file.add(run)
        self.seconds += perf_counter() - started

    def fail(self, id: str, reason: str) -> None:
        self.file.fail(id, reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    workload = find_workload("demo")
    ends_s = 0.0

    def timed_ends(pieces, length):
        nonlocal ends_s
        started = perf_counter()
        found = ends_of(pieces, length)
        ends_s += perf_counter() - started
        return found

    bench_module.ends_of = timed_ends
    with paceline.load(args.model) as engine, tempfile.TemporaryDirectory() as folder:
        every = with_baseline([Configuration("lookup -n 3", {"lookup": LookupDraft()}, 3)])
        header = header_of(engine, every, workload, max_tokens=args.max_tokens)
        file = RunFile.open(Path(folder) / "run.jsonl", header)
        keeper = Timed(file)
        with file:
            run_bench(engine, every, workload, max_tokens=args.max_tokens, keeper=keeper)
        size = (Path(folder) / "run.jsonl").stat().st_size
    decode_s = sum(run.stats.decode_s for run in file.result.runs)
    rounds = sum(len(run.rounds) for run in file.result.runs)
    kept_s = keeper.seconds + ends_s
    found = {
        "model": args.model,
        "rounds": rounds,
        "decode_s": decode_s,
        "recording_s": kept_s,
        "share_of_decoding": kept_s / decode_s,
        "us_per_round": 1e6 * kept_s / rounds,
        "bytes_per_round": size / rounds,
    }
    print(found)
    write("recording-overhead", found)


if __name__ == "__main__":
    main()
