"""`paceline watch`: do drafts pay on a live server, window by window?"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.bench.server.http import checked_url
from paceline.cli.options import KEY_HELP, read_key
from paceline.cli.settings import Verb, argument, as_flag, flag, group, option, pair, whole
from paceline.errors import SettingError
from paceline.monitor.exporter import Exporter
from paceline.monitor.spread import LEAST_PARTS
from paceline.monitor.text import block, document, warning
from paceline.monitor.verdict import LOSING, WatchVerdict, exit_code, judge
from paceline.monitor.watch import (
    MetricsSource,
    WatchedWindow,
    find_metrics,
    refuse_another_model,
    watch,
)
from paceline.monitor.window import Window, WindowFileHeader, read_windows, record_windows
from paceline.plan.document import PlanDocument, read_plan
from paceline.storage import GrowingFile

EXAMPLES = """\
  paceline watch http://host:8000 --baseline http://host:8001
  paceline watch http://host:8000 --plan plan.json --once"""

EXIT_CODES = """\
exit codes: 0 paying or breaking even; 3 losing; 1 unknown, interrupted or given
up; 2 a fault you can fix. Of several windows the last that is known decides."""

_PATIENCE_S = 30.0
"""Behind three windows' time: a scheduled run must end, though the server doesn't answer."""
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):\d{1,5}(/.*)?")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.05 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.05 and 86400 seconds")
    return value


def _listener(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return host.strip("[]") or "127.0.0.1", int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOptions:
    """What drafts are judged by."""

    title: ClassVar[str] = "what it is judged by"
    plan: str | None = option("a plan of `paceline plan -o`", "FILE")
    baseline: tuple[str, ...] = option(
        "the same server and model without drafts: read at the same moments, or recorded",
        "URL|FILE",
        repeat=True,
    )
    record: str | None = option("write windows for a later --baseline, and judge nothing", "FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How long windows are, and how many of them."""

    title: ClassVar[str] = "windows"
    window: float = option("length of in a window", "SECONDS", default=60.0, type=_seconds)
    interval: float = option(
        f"time between scrapes, at least {LEAST_PARTS} a window",
        "SECONDS",
        default=5.0,
        type=_seconds,
    )
    once: bool = flag("end after one window, or when none can be had")
    windows: int | None = whole("end after N windows (default: go on)")
    until_losing: int | None = whole("end with exit code 3 after N losing windows in a row")

    @property
    def most(self) -> int | None:
        """Windows after which it ends."""
        return 1 if self.once else self.windows


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterOptions:
    """Which counters of a page are read."""

    title: ClassVar[str] = "which counters"
    model: str | None = option("the model, where a page counts for several", "NAME")
    baseline_model: str | None = option(
        "the model of --baseline, where its page counts for several or it has another name", "NAME"
    )
    label: tuple[tuple[str, str], ...] = option(
        "only series with this label, such as dynamo_component=decode; of --baseline too",
        "NAME=VALUE",
        repeat=True,
        type=pair,
    )
    baseline_label: tuple[tuple[str, str], ...] = option(
        "the same for --baseline, in place of --label", "NAME=VALUE", repeat=True, type=pair
    )
    api_key_env: str | None = option(KEY_HELP, "NAME")
    baseline_api_key_env: str | None = option("the same for --baseline", "NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Read a server's Prometheus metrics (vLLM, SGLang, TensorRT-LLM, llama.cpp, Dynamo's
    workers) and say, window by window, whether its drafts pay: by a plan, or beside a server
    without drafts. It sends no requests: the traffic is yours."""

    urls: tuple[str, ...] = argument(
        "http://HOST:PORT, or the page itself; several are workers of one deployment",
        "URL",
        nargs="+",
    )
    json: bool = flag("print JSON, one document a line")
    export: tuple[str, int] | None = option(
        "serve the verdict as Prometheus metrics (default host: 127.0.0.1)",
        "[HOST:]PORT",
        type=_listener,
    )
    by: JudgedOptions = group(JudgedOptions)
    length: WindowOptions = group(WindowOptions)
    counters: CounterOptions = group(CounterOptions)


def run(settings: WatchSettings) -> int:
    """Watch until told to end; the exit code is the last known window's."""
    _check(settings)
    by, length, counters = settings.by, settings.length, settings.counters
    plan = None if by.plan is None else read_plan(Path(by.plan))
    live, files = _baseline(settings)
    with ExitStack() as stack:
        labels = dict(counters.label)
        headers = _headers(counters.api_key_env, "api_key_env")
        source = MetricsSource(_pages(settings.urls, headers), counters.model, headers, labels)
        stack.enter_context(source)
        control = None
        if live:
            headers = _headers(counters.baseline_api_key_env, "baseline_api_key_env")
            its_labels = dict(counters.baseline_label) or labels
            pages = _pages(live, headers)
            control = MetricsSource(pages, counters.baseline_model, headers, its_labels)
            stack.enter_context(control)
        first = source.check()
        others = {path: header.models for path, (header, _) in files.items()}
        if control is not None:
            others = {control.pages[0]: control.check().models}
        for name, models in others.items():
            refuse_another_model(first.models, models, name, counters.baseline_model)
        recorded = tuple(window for _, windows in files.values() for window in windows)
        shown = _Shown(settings, plan, recorded)
        if by.record:
            header = WindowFileHeader(source.pages, first.counters.server, first.models, labels)
            shown.file = stack.enter_context(record_windows(Path(by.record), header))
        else:
            source.refuse_without_drafts(first)
        if settings.export:
            host, port = settings.export
            named = {"server": settings.urls[0], "model": counters.model or ""}
            shown.exporter = stack.enter_context(Exporter(host, port, named))
        for seen in watch(
            source,
            control=control,
            window_s=length.window,
            interval_s=length.interval,
            patience_s=math.inf if length.most is None else 3 * length.window + _PATIENCE_S,
        ):
            if isinstance(seen, str):
                shown.sentence(seen)
                continue
            shown.window(seen)
            if shown.ended:
                return 0 if by.record else exit_code(shown.states)
    return 1


class _Shown:
    """What is done with each window, and what came of all."""

    def __init__(
        self, settings: WatchSettings, plan: PlanDocument | None, recorded: tuple[Window, ...]
    ) -> None:
        self.settings, self.plan, self.recorded = settings, plan, recorded
        self.file: GrowingFile | None = None
        self.exporter: Exporter | None = None
        self.states: list[str] = []

    def window(self, seen: WatchedWindow) -> None:
        verdict: WatchVerdict | None = None
        if self.file is not None:
            self.file.write(seen.window.as_json())
        else:
            live = seen.control is not None
            baseline = self.recorded if seen.control is None else (seen.control,)
            verdict = judge(seen.window, plan=self.plan, baseline=baseline, together=live)
            if self.exporter is not None:
                self.exporter.show(seen.window, verdict)
        self.states.append("recorded" if verdict is None else verdict.state)
        if self.settings.json:
            self.line(document(seen.window, verdict))
        else:
            print(block(seen.window, verdict), flush=True)

    def sentence(self, text: str) -> None:
        if self.settings.json:
            self.line({"event": "warning", "text": text})
        else:
            print(warning(text), flush=True)

    def line(self, what: Mapping[str, object]) -> None:
        print(json.dumps(what, ensure_ascii=False), flush=True)

    @property
    def ended(self) -> bool:
        in_a_row, most = self.settings.length.until_losing, self.settings.length.most
        losing = in_a_row is not None and self.states[-in_a_row:] == [LOSING] * in_a_row
        return losing or (most is not None and len(self.states) >= most)


def _check(settings: WatchSettings) -> None:
    length, by = settings.length, settings.by
    scrapes = length.window / length.interval
    if scrapes < LEAST_PARTS:
        raise SettingError(
            f"--window {length.window:g} has {scrapes:.1f} scrapes of "
            f"--interval {length.interval:g}; at least {LEAST_PARTS} are needed.",
            "Make the window longer or the interval shorter.",
        )
    if by.record and any((by.plan, by.baseline, settings.export, length.until_losing)):
        raise SettingError(
            "--record writes windows and judges nothing.",
            "Leave --plan, --baseline, --export and --until-losing out.",
        )
    if length.once and length.windows:
        raise SettingError("--once is one window, and --windows says how many.", "Give one.")


def _baseline(
    settings: WatchSettings,
) -> tuple[list[str], dict[str, tuple[WindowFileHeader, tuple[Window, ...]]]]:
    """Addresses of a control server, or files with their windows."""
    given = settings.by.baseline
    live = [one for one in given if _is_address(one)]
    if live and len(live) < len(given):
        raise SettingError("--baseline names addresses and files.", "Give one kind.")
    for name, needed, there in (
        ("baseline_model", "--baseline", given),
        ("baseline_label", "a --baseline URL", live),
        ("baseline_api_key_env", "a --baseline URL", live),
    ):
        if getattr(settings.counters, name) and not there:
            raise SettingError(f"{as_flag(name)} is given without {needed}.", "Leave it out.")
    return live, {} if live else {one: read_windows(Path(one)) for one in given}


def _is_address(text: str) -> bool:
    """A file whose name looks like HOST:PORT is a file."""
    return "://" in text or (_HOST_PORT.fullmatch(text) is not None and not Path(text).exists())


def _headers(variable: str | None, name: str) -> dict[str, str]:
    key = read_key(variable, name)
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _pages(urls: Sequence[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    for url in urls:
        checked_url(url if "://" in url else f"http://{url}", "URL")
    try:
        return find_metrics(urls, headers=headers)
    except ModuleNotFoundError as error:
        raise SettingError(
            f"watch needs {error.name}.", "Install it: pip install 'paceline[endpoint]'."
        ) from None


VERB = Verb(WatchSettings, run, EXAMPLES, epilog=EXIT_CODES)
