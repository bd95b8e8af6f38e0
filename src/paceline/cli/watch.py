"""`paceline watch`: do drafts pay on a live server, window by window?"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.server.http import checked_url
from paceline.cli.parser import Parser, at_least
from paceline.errors import DataError, PacelineError, SettingError
from paceline.monitor.dialects import dialect_named
from paceline.monitor.exporter import Exporter
from paceline.monitor.spread import LEAST_PARTS
from paceline.monitor.text import block, document, warning
from paceline.monitor.verdict import LOSING, WatchVerdict, exit_code, judge
from paceline.monitor.watch import MetricsSource, WatchedWindow, find_metrics, watch
from paceline.monitor.window import Scrape, Window, WindowFileHeader, header_of, read_windows
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


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What `paceline watch` was asked for; `add` says what each is."""

    urls: list[str]
    plan: str | None = None
    baseline: list[str] = field(default_factory=list)
    record: str | None = None
    window: float = 60.0
    interval: float = 5.0
    once: bool = False
    windows: int | None = None
    until_losing: int | None = None
    model: str | None = None
    baseline_model: str | None = None
    label: list[tuple[str, str]] = field(default_factory=list)
    baseline_label: list[tuple[str, str]] = field(default_factory=list)
    api_key_env: str | None = None
    baseline_api_key_env: str | None = None
    json: bool = False
    export: tuple[str, int] | None = None

    @property
    def most(self) -> int | None:
        """Windows after which it ends."""
        return 1 if self.once else self.windows


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    """The verb and its options."""
    parser = verbs.add_parser(
        "watch",
        examples=EXAMPLES,
        epilog=EXIT_CODES,
        help="judge a live server's drafts by its own counters, window by window",
        description=(
            "Read a server's Prometheus metrics (vLLM, SGLang, TensorRT-LLM, llama.cpp,\n"
            "Dynamo's workers) and say, window by window, whether its drafts pay: by a plan,\n"
            "or beside a server without drafts. It sends no requests: the traffic is yours."
        ),
    )
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="http://HOST:PORT, or the page itself; several are workers of one deployment",
    )

    def option(name: str, metavar: str | None, help: str, **how: Any) -> None:
        if metavar is not None:
            how["metavar"] = metavar
        group.add_argument(name, help=help, **how)

    several: dict[str, Any] = {"action": "append", "default": []}
    group: Any = parser.add_argument_group("what it is judged by")
    option("--plan", "FILE", "of `paceline plan -o`")
    of_baseline = "the same server and model without drafts: read at the same moments, or recorded"
    option("--baseline", "URL|FILE", of_baseline, **several)
    option("--record", "FILE", "write windows, to be a --baseline; judges nothing")
    group = parser.add_argument_group("windows")
    option("--window", "SECONDS", "(default: 60)", type=_seconds, default=60.0)
    between = f"between scrapes, at least {LEAST_PARTS} a window (default: 5)"
    option("--interval", "SECONDS", between, type=_seconds, default=5.0)
    option("--once", None, "end after one window, or when none can be had", action="store_true")
    option("--windows", "N", "end after so many (default: go on)", type=at_least(1))
    in_a_row = "end with 3 after so many losing windows in a row"
    option("--until-losing", "N", in_a_row, type=at_least(1))
    group = parser.add_argument_group("which counters")
    option("--model", "NAME", "where a page counts for several")
    option("--baseline-model", "NAME", "of --baseline; also its name there, if another")
    labelled = "only series with this label, such as dynamo_component=decode; of --baseline too"
    option("--label", "NAME=VALUE", labelled, type=_label, **several)
    in_place = "of --baseline, in place of --label"
    option("--baseline-label", "NAME=VALUE", in_place, type=_label, **several)
    option("--api-key-env", "NAME", "the environment variable that holds its key")
    option("--baseline-api-key-env", "NAME", "the same of --baseline")
    group = parser
    option("--json", None, "print a JSON document a line", action="store_true")
    served = "serve the verdict as metrics for Prometheus (HOST: 127.0.0.1)"
    option("--export", "[HOST:]PORT", served, type=_listener)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Watch until told to end; the exit code is the last known window's."""
    given = vars(args)
    settings = WatchSettings(**{name: given[name] for name in WatchSettings.__slots__})
    _check(settings)
    plan = None if settings.plan is None else read_plan(Path(settings.plan))
    live, files = _baseline(settings)
    with ExitStack() as stack:
        labels = dict(settings.label)
        key = (settings.api_key_env, "--api-key-env")
        source = stack.enter_context(_source(settings.urls, settings.model, key, labels))
        control = None
        if live:
            key = (settings.baseline_api_key_env, "--baseline-api-key-env")
            its_labels = dict(settings.baseline_label) or labels
            control = _source(live, settings.baseline_model, key, its_labels)
            stack.enter_context(control)
        first = source.check()
        others = {path: header.models for path, (header, _) in files.items()}
        if control is not None:
            others = {control.pages[0]: control.check().models}
        for name, models in others.items():
            _refuse_another_model(first.models, models, name, settings.baseline_model)
        recorded = tuple(window for _, windows in files.values() for window in windows)
        shown = _Shown(settings, plan, recorded)
        if settings.record:
            header = WindowFileHeader(source.pages, first.counters.server, first.models, labels)
            shown.file = stack.enter_context(_record_file(Path(settings.record), header))
        else:
            _refuse_drafts_off(source, first)
        if settings.export:
            host, port = settings.export
            named = {"server": settings.urls[0], "model": settings.model or ""}
            shown.exporter = stack.enter_context(Exporter(host, port, named))
        for seen in watch(
            source,
            control=control,
            window_s=settings.window,
            interval_s=settings.interval,
            patience_s=math.inf if settings.most is None else 3 * settings.window + _PATIENCE_S,
        ):
            if isinstance(seen, str):
                shown.sentence(seen)
                continue
            shown.window(seen)
            if shown.ended:
                return 0 if settings.record else exit_code(shown.states)
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
        in_a_row, most = self.settings.until_losing, self.settings.most
        losing = in_a_row is not None and self.states[-in_a_row:] == [LOSING] * in_a_row
        return losing or (most is not None and len(self.states) >= most)


def _check(settings: WatchSettings) -> None:
    scrapes = settings.window / settings.interval
    if scrapes < LEAST_PARTS:
        raise SettingError(
            f"--window {settings.window:g} has {scrapes:.1f} scrapes of "
            f"--interval {settings.interval:g}; at least {LEAST_PARTS} are needed.",
            "Make the window longer or the interval shorter.",
        )
    judging = (settings.plan, settings.baseline, settings.export, settings.until_losing)
    if settings.record and any(judging):
        raise SettingError(
            "--record writes windows and judges nothing.",
            "Leave --plan, --baseline, --export and --until-losing out.",
        )
    if settings.once and settings.windows:
        raise SettingError("--once is one window, and --windows says how many.", "Give one.")


def _baseline(
    settings: WatchSettings,
) -> tuple[list[str], dict[str, tuple[WindowFileHeader, tuple[Window, ...]]]]:
    """Addresses of a control server, or files with their windows."""
    given = settings.baseline
    live = [one for one in given if _is_address(one)]
    if live and len(live) < len(given):
        raise SettingError("--baseline names addresses and files.", "Give one kind.")
    for option, value, needed, there in (
        ("--baseline-model", settings.baseline_model, "--baseline", given),
        ("--baseline-label", settings.baseline_label, "a --baseline URL", live),
        ("--baseline-api-key-env", settings.baseline_api_key_env, "a --baseline URL", live),
    ):
        if value and not there:
            raise SettingError(f"{option} is given without {needed}.", "Leave it out.")
    return live, {} if live else {one: read_windows(Path(one)) for one in given}


def _is_address(text: str) -> bool:
    """A file whose name looks like HOST:PORT is a file."""
    return "://" in text or (_HOST_PORT.fullmatch(text) is not None and not Path(text).exists())


def _refuse_another_model(
    ours: Sequence[str], its: Sequence[str], baseline: str, named: str | None
) -> None:
    """Names are compared where both sides tell them; `named` says what it is called there."""
    wanted = ours if named is None else (named,)
    if ours and its and set(wanted) != set(its):
        raise SettingError(
            f"The baseline {baseline} is of {', '.join(its)}, and this is {', '.join(wanted)}.",
            "Give one of the same model; if it only has another name there: --baseline-model NAME.",
        )


def _source(
    urls: list[str],
    model: str | None,
    key: tuple[str | None, str],
    labels: Mapping[str, str],
) -> MetricsSource:
    for url in urls:
        checked_url(url if "://" in url else f"http://{url}", "URL")
    name, option = key
    headers = {} if name is None else {"Authorization": f"Bearer {_key(name, option)}"}
    try:
        pages = find_metrics(urls, headers=headers)
    except ModuleNotFoundError as error:
        raise SettingError(
            f"watch needs {error.name}.", "Install it: pip install 'paceline[endpoint]'."
        ) from None
    return MetricsSource(pages, model, headers, labels)


def _refuse_drafts_off(source: MetricsSource, first: Scrape) -> None:
    """A vLLM that can't be drafting is named at once, not after a window."""
    if first.counters.server == "vLLM" and not first.counters.has_drafts:
        raise SettingError(
            f"{source.pages[0]} counts no drafts.",
            f"{dialect_named('vLLM').turn_on} To record it as a baseline: --record FILE.",
        )


def _record_file(path: Path, header: WindowFileHeader) -> GrowingFile:
    """New, or one of the same server's windows that goes on."""
    file = GrowingFile.open(path)
    try:
        lines = file.lines()
        if not lines:
            file.write(header.as_json())
        elif other := header_of(lines[0].text, path).difference(header):
            raise DataError(f"{path} holds windows of another server: {other}.")
    except PacelineError as error:
        file.close()
        raise DataError(error.fact, "Choose another file.") from None
    return file


def _key(name: str, option: str) -> str:
    key = os.environ.get(name, "").strip()
    if not key:
        raise SettingError(f"{option} names {name}, which is not set.", f"Set it: export {name}=…")
    if not key.isascii() or not key.isprintable():
        raise SettingError(
            f"{option} names {name}, which holds more than printable ASCII.",
            "Set it to the key alone, in one line.",
        )
    return key


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; write NAME=VALUE")
    return name, value


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
