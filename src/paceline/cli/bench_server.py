"""`paceline bench --endpoint URL`: prompts over a server's API, or two servers in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paceline.bench.prompts.workload import Workload
from paceline.bench.server.body import sampling_fields
from paceline.bench.server.client import Endpoint, connect
from paceline.bench.server.file import EndpointFile
from paceline.bench.server.http import Patience
from paceline.bench.server.load import Block, plan, run_load
from paceline.bench.server.result import AGAINST, FIRST, Asked, EndpointResult, Header
from paceline.bench.server.summary import server_summary
from paceline.cli import options
from paceline.cli.parser import at_least
from paceline.cli.workloads import workload_of
from paceline.errors import DataError, PacelineError, SettingError
from paceline.types import Sampling

_SEED = 0
_LIVE = (
    "against",
    "model",
    "against_model",
    "api_key_env",
    "against_api_key_env",
    "concurrency",
    "timeout",
    "retries",
    "metrics",
    "against_metrics",
)
# Options of `bench` that are about a model in this process, and what they are unless given.
_IN_PROCESS: Mapping[str, object] = {
    "target": None,
    "engine": None,
    "context": None,
    **dict.fromkeys(options.PLACE),
    "draft": None,
    "max_draft_tokens": [None],
    "costs": None,
    "verifier": None,
    "allow_chains": False,
    "lossy": False,
    "also": [],
    "repeats": 1,
    "warm": False,
    "record": None,
    "draft_engine": None,
    "draft_context": None,
}


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """The options for a live server instead of a TARGET."""
    group = parser.add_argument_group("a live server, in place of TARGET (docs/endpoints.md)")
    group.add_argument(
        "--endpoint", metavar="URL", help="measure this OpenAI-compatible server: http://HOST:PORT"
    )
    group.add_argument(
        "--against", metavar="URL", help="in turns with this one, such as the same without drafts"
    )
    group.add_argument("--model", metavar="NAME", help="which of its models (default: its only)")
    group.add_argument("--against-model", metavar="NAME", help="the same of --against")
    group.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable that holds its key"
    )
    group.add_argument("--against-api-key-env", metavar="NAME", help="the same of --against")
    group.add_argument(
        "--concurrency",
        type=_counts,
        metavar="N[,N…]",
        help="clients at once; several are measured one after another (default: 1)",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="most seconds an answer (default: 600, and 120 to its first token)",
    )
    group.add_argument(
        "--retries",
        type=at_least(0),
        metavar="N",
        help="after 429, 5xx or a broken connection (default: 4)",
    )
    group.add_argument(
        "--metrics", metavar="URL", help="its page of counters (default: /metrics of the server)"
    )
    group.add_argument("--against-metrics", metavar="URL", help="the same of --against")


def run(args: argparse.Namespace) -> int:
    _check(args)
    workload = workload_of(args)
    sampling = options.sampling_of(args, None)
    blocks = plan(workload, args.concurrency or (1,), _SEED)
    out = options.out_path(
        args.out or f"paceline-endpoint-{datetime.now():%Y%m%d-%H%M%S}.jsonl", "-o"
    )
    result, error = _measure(args, workload, blocks, sampling, out)
    if not result.asked:
        out.unlink(missing_ok=True)  # a header and nothing else
        raise error or DataError("Nothing was asked.", "Name prompts with --prompts.")
    if not any(one.answer.failure is None for one in result.asked):
        failed = f"{result.asked[0].id}: {result.asked[0].answer.failure}."
        raise error or DataError(f"No prompt was answered. {failed}", "Mend that, run it again.")
    shown = json.dumps(result.as_document(), ensure_ascii=False) if args.json else None
    print(shown or server_summary(result))
    print(f"Everything measured is in {out}.", file=sys.stderr)
    if isinstance(error, PacelineError):
        raise error
    if not result.complete:
        print("The same command goes on from there.", file=sys.stderr)
    return 0 if result.complete else 1


def _measure(
    args: argparse.Namespace,
    workload: Workload,
    blocks: Sequence[Block],
    sampling: Sampling,
    out: Path,
) -> tuple[EndpointResult, BaseException | None]:
    """What was measured, and what ended it before its end, if anything did."""
    held: list[EndpointResult] = []
    try:
        asyncio.run(_ask(args, workload, blocks, sampling, out, held))
    except (KeyboardInterrupt, PacelineError) as error:
        if not held:
            raise
        return held[0], error
    return held[0], None


async def _ask(
    args: argparse.Namespace,
    workload: Workload,
    blocks: Sequence[Block],
    sampling: Sampling,
    out: Path,
    held: list[EndpointResult],
) -> None:
    async with AsyncExitStack() as stack:
        endpoints = await _connected(args, stack)
        for endpoint in endpoints.values():
            endpoint.fields = sampling_fields(sampling, args.max_tokens, endpoint.served.server)
        header = _header(args, workload, sampling, endpoints)
        file = stack.enter_context(EndpointFile.open(out, header))
        held.append(file.result)
        for endpoint in endpoints.values():
            await endpoint.warm_up(raw=all(prompt.raw for prompt in workload.prompts))
        bar = stack.enter_context(_bar(file.result, blocks))
        await run_load(
            endpoints, blocks, file, seed=header.seed, on_answer=_shower(bar, file.result)
        )


async def _connected(args: argparse.Namespace, stack: AsyncExitStack) -> dict[str, Endpoint]:
    patience = Patience()
    if args.timeout is not None:
        patience = replace(patience, first_token_s=args.timeout, total_s=args.timeout)
    if args.retries is not None:
        patience = replace(patience, retries=args.retries)
    first = connect(
        args.endpoint,
        model=args.model,
        key=_key(args.api_key_env, "--api-key-env"),
        metrics=args.metrics,
        patience=patience,
    )
    endpoints = {FIRST: await stack.enter_async_context(first)}
    if args.against:
        other = connect(
            args.against,
            model=args.against_model,
            key=_key(args.against_api_key_env, "--against-api-key-env"),
            metrics=args.against_metrics,
            patience=patience,
            option="--against",
        )
        endpoints[AGAINST] = await stack.enter_async_context(other)
    return endpoints


def _header(
    args: argparse.Namespace,
    workload: Workload,
    sampling: Sampling,
    endpoints: Mapping[str, Endpoint],
) -> Header:
    patience = next(iter(endpoints.values())).http.patience
    return Header(
        command=("paceline", *sys.argv[1:]),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        servers={name: endpoint.served.as_json() for name, endpoint in endpoints.items()},
        workload=workload.metadata(),
        prompts=tuple((p.id, p.category, p.follows) for p in workload.prompts),
        fields={name: dict(endpoint.fields) for name, endpoint in endpoints.items()},
        sampling=asdict(sampling),
        max_tokens=args.max_tokens,
        concurrency=tuple(args.concurrency or (1,)),
        patience=asdict(patience),
        seed=_SEED,
    )


def _bar(result: EndpointResult, blocks: Sequence[Block]) -> tqdm[Any]:
    total = len(result.servers) * sum(len(block.prompts) for block in blocks)
    done = _ended(result)
    return tqdm(total=total, initial=done, unit="answer", file=sys.stderr, dynamic_ncols=True)


def _shower(bar: tqdm[Any], result: EndpointResult) -> Callable[[Asked], None]:
    def show(asked: Asked) -> None:
        bar.set_postfix_str(f"{asked.id}, {asked.server}, {asked.concurrency} at once")
        bar.update(_ended(result) - bar.n)  # goes back where a block is asked again

    return show


def _ended(result: EndpointResult) -> int:
    return len(result.asked) + len(result.servers) * len(result.left_out)


def _key(variable: str | None, option: str) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingError(
            f"{option} is {variable}, and that variable is not set or empty.",
            f"Set it: export {variable}=…",
        )
    if not key.isascii() or not key.isprintable():
        raise SettingError(
            f"{option} is {variable}, and that variable holds more than printable ASCII.",
            "Set it to the key alone, in one line.",
        )
    return key


def _check(args: argparse.Namespace) -> None:
    """Refuse what says nothing of a live server, or lacks its server."""
    for name, unset in _IN_PROCESS.items():
        value = getattr(args, name, unset)
        if value != unset:
            raise SettingError(
                f"{_written(name, value)} is given with --endpoint, and it is of a model in this "
                "process.",
                "Leave it out: the server decides it.",
            )
    for name in ("against_model", "against_api_key_env", "against_metrics"):
        if getattr(args, name) is not None and args.against is None:
            raise SettingError(f"{_option(name)} is given without --against.", "Add --against URL.")
    if args.against is not None and args.against == args.endpoint:
        same_model = args.against_model in (None, args.model)
        if same_model:
            raise SettingError(
                "--against is the same server as --endpoint.",
                "Name one that runs without drafts, or another way.",
            )


def refuse_without_endpoint(args: argparse.Namespace) -> None:
    """For who measures a model in this process: refuse what is said of a live server, and neither
    one."""
    for name in _LIVE:
        if getattr(args, name) is not None:
            raise SettingError(
                f"{_option(name)} is given without --endpoint.", "Add --endpoint URL."
            )
    if args.target is None:
        raise SettingError(
            "There is nothing to measure.", "Name a TARGET, or a server with --endpoint URL."
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _written(name: str, value: object) -> str:
    return f"TARGET ({value})" if name == "target" else _option(name)


def _counts(text: str) -> tuple[int, ...]:
    """An argument type: whole numbers from 1, separated by commas, each once."""
    return tuple(dict.fromkeys(at_least(1)(part) for part in text.split(",")))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
