"""`paceline bench-server URL`: prompts over a server's API, or two servers in turns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from paceline.bench.prompts.workload import Workload
from paceline.bench.server.client import ServerClient, connect, sampling_fields
from paceline.bench.server.file import ServerFile
from paceline.bench.server.http import Patience
from paceline.bench.server.load import Block, header_of, plan, run_load
from paceline.bench.server.result import AGAINST, FIRST, Asked, ServerResult
from paceline.bench.summary import server_summary
from paceline.cli.options import (
    KEY_HELP,
    Output,
    PromptOptions,
    SamplingOptions,
    dated_path,
    progress_bar,
    read_key,
    say,
)
from paceline.cli.settings import (
    Verb,
    argument,
    as_flag,
    at_least,
    group,
    number_above_zero,
    option,
    several,
    whole,
)
from paceline.errors import DataError, PacelineError, SettingError
from paceline.types import Sampling

_SEED = 0

EXAMPLES = """\
  paceline bench-server http://localhost:8000 --concurrency 1,8
  paceline bench-server http://localhost:8000 --against http://localhost:8001 -o run.jsonl"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The servers, and how they are asked."""

    title: ClassVar[str] = "the servers (docs/endpoints.md)"
    url: str = argument("measure this OpenAI-compatible server: http://HOST:PORT", "URL")
    against: str | None = option(
        "measure this server in turns, such as the same one without drafts", "URL"
    )
    model: str | None = option("which of its models (default: its only one)", "NAME")
    against_model: str | None = option("the same for --against", "NAME")
    api_key_env: str | None = option(KEY_HELP, "NAME")
    against_api_key_env: str | None = option("the same for --against", "NAME")
    concurrency: tuple[int, ...] = option(
        "clients at once; several are measured one after another",
        "N[,N…]",
        default=(1,),
        type=several(at_least(1)),
    )
    timeout: float | None = option(
        "most seconds for an answer (default: 600, and 120 to its first token)",
        "SECONDS",
        type=number_above_zero,
    )
    retries: int | None = whole(
        "retries after 429, 5xx or a broken connection (default: 4)", least=0
    )
    metrics: str | None = option("its page of counters (default: /metrics of the server)", "URL")
    against_metrics: str | None = option("the same for --against", "URL")

    def check(self) -> None:
        """Refuse what lacks its server, and a comparison of a server with itself."""
        for name in ("against_model", "against_api_key_env", "against_metrics"):
            if getattr(self, name) is not None and self.against is None:
                raise SettingError(
                    f"{as_flag(name)} is given without --against.", "Add --against URL."
                )
        if self.against == self.url and self.against_model in (None, self.model):
            raise SettingError(
                "--against is the server that is measured.",
                "Name one that runs without drafts, or another way.",
            )

    async def connect(self, stack: AsyncExitStack) -> dict[str, ServerClient]:
        """Both servers by their names in a result; the stack closes them."""
        patience = Patience()
        if self.timeout is not None:
            patience = replace(patience, first_token_s=self.timeout, total_s=self.timeout)
        if self.retries is not None:
            patience = replace(patience, retries=self.retries)
        servers: dict[str, ServerClient] = {}
        for server, url, prefix in ((FIRST, self.url, ""), (AGAINST, self.against, "against_")):
            if url:
                client = connect(
                    url,
                    model=getattr(self, f"{prefix}model"),
                    key=read_key(getattr(self, f"{prefix}api_key_env"), f"{prefix}api_key_env"),
                    metrics=getattr(self, f"{prefix}metrics"),
                    patience=patience,
                    option="--against" if prefix else "URL",
                )
                servers[server] = await stack.enter_async_context(client)
        return servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Send every prompt to a live server, or to two in turns, and print a summary of tokens per
    second, TTFT, TPOT and the acceptance rate that the server counts. Everything measured goes
    to a file as it comes: the same command goes on from there."""

    servers: ServerOptions = group(ServerOptions)
    prompts: PromptOptions = group(PromptOptions)
    max_tokens: int = whole("most tokens of an answer", 128, least=2)
    out: str | None = option(
        "the file of answers, JSONL (default: paceline-bench-server-DATE-TIME.jsonl)",
        "FILE",
        short="-o",
    )
    output: Output = group(Output)
    sampling: SamplingOptions = group(SamplingOptions)


def run(settings: Settings) -> int:
    """Ask the servers, print the summary, and return the exit code."""
    settings.servers.check()
    workload = settings.prompts.workload()
    sampling = settings.sampling.sampling(None)
    blocks = plan(workload, settings.servers.concurrency, _SEED)
    out = dated_path(settings.out, "paceline-bench-server")
    result, error = _measure(settings, workload, blocks, sampling, out)
    if not result.asked:
        out.unlink(missing_ok=True)  # a header and nothing else
        raise error or DataError("Nothing was asked.", "Name prompts with --prompts.")
    if not any(one.answer.failure is None for one in result.asked):
        failed = f"{result.asked[0].id}: {result.asked[0].answer.failure}."
        raise error or DataError(
            f"No prompt was answered. {failed}", "Correct that and run it again."
        )
    settings.output.show(result.as_document, lambda: server_summary(result))
    say(f"Everything measured is in {out}.")
    if isinstance(error, PacelineError):
        raise error
    if not result.complete:
        say("The same command goes on from there.")
    return 0 if result.complete else 1


def _measure(
    settings: Settings,
    workload: Workload,
    blocks: Sequence[Block],
    sampling: Sampling,
    out: Path,
) -> tuple[ServerResult, BaseException | None]:
    """What was measured, and what ended it before its end, if anything did."""
    held: list[ServerResult] = []
    try:
        asyncio.run(_ask(settings, workload, blocks, sampling, out, held))
    except (KeyboardInterrupt, PacelineError) as error:
        if not held:
            raise
        return held[0], error
    return held[0], None


async def _ask(
    settings: Settings,
    workload: Workload,
    blocks: Sequence[Block],
    sampling: Sampling,
    out: Path,
    held: list[ServerResult],
) -> None:
    async with AsyncExitStack() as stack:
        servers = await settings.servers.connect(stack)
        for server in servers.values():
            server.fields = sampling_fields(sampling, settings.max_tokens, server.served.server)
        header = header_of(
            servers,
            workload,
            sampling,
            max_tokens=settings.max_tokens,
            concurrency=settings.servers.concurrency,
            seed=_SEED,
            command=("paceline", *sys.argv[1:]),
        )
        file = stack.enter_context(ServerFile.open(out, header))
        held.append(file.result)
        for server in servers.values():
            await server.warm_up(raw=all(prompt.raw for prompt in workload.prompts))
        with _bar(file.result, blocks) as show:
            await run_load(servers, blocks, file, seed=header.seed, on_answer=show)


@contextmanager
def _bar(result: ServerResult, blocks: Sequence[Block]) -> Iterator[Callable[[Asked], None]]:
    """A bar of answers, and what moves it."""

    def ended() -> int:
        return len(result.asked) + len(result.servers) * len(result.left_out)

    total = len(result.servers) * sum(len(block.prompts) for block in blocks)
    with progress_bar(total, "answer", initial=ended()) as bar:

        def show(asked: Asked) -> None:
            bar.set_postfix_str(f"{asked.id}, {asked.server}, {asked.concurrency} at once")
            bar.update(ended() - bar.n)  # goes back where a block is asked again

        yield show


VERB = Verb(Settings, run, EXAMPLES)
