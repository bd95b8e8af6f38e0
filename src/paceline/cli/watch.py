"""`paceline watch`: do drafts pay on a live server, window by window?"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from paceline.bench.server.http import checked_url
from paceline.cli.parser import Parser, at_least
from paceline.errors import DataError, PacelineError, SettingError
from paceline.monitor.dialects import VLLM
from paceline.monitor.exporter import Exporter
from paceline.monitor.lines import block, document, warning
from paceline.monitor.recorded import Recorded, read_windows
from paceline.monitor.spread import LEAST_PARTS
from paceline.monitor.verdict import LOSING, Verdict, exit_code, judge
from paceline.monitor.watch import Seen, Source, find_metrics, watch
from paceline.monitor.window import Scrape, Window
from paceline.plan.document import PlanDocument, read_plan
from paceline.storage import GrowingFile

EXAMPLES = """\
  paceline watch http://host:8000 --baseline http://host:8001
  paceline watch http://host:8000 --plan plan.json --once"""

EXIT_CODES = """\
exit codes: 0 paying or breaking even; 3 losing; 1 unknown, interrupted or given
up; 2 a fault you can mend. Of several windows the last that is known decides."""

_PATIENCE_S = 30.0
"""Behind three windows' time: a scheduled run must end, though the server doesn't answer."""
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):\d{1,5}(/.*)?")


def add(verbs: argparse._SubParsersAction[Parser]) -> None:
    parser = verbs.add_parser(
        "watch",
        examples=EXAMPLES,
        epilog=EXIT_CODES,
        help="judge a live server's drafts by its own counters, window by window",
        description=(
            "Read a server's Prometheus page (vLLM, SGLang, TensorRT-LLM, llama.cpp's server,\n"
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
    judged = parser.add_argument_group("what it is judged by")
    judged.add_argument("--plan", metavar="FILE", help="of `paceline plan -o`")
    judged.add_argument(
        "--baseline",
        action="append",
        metavar="URL|FILE",
        help="the same server and model without drafts: read at the same moments, or recorded",
    )
    judged.add_argument(
        "--record", metavar="FILE", help="write windows, to be a --baseline; judges nothing"
    )
    windows = parser.add_argument_group("windows")
    windows.add_argument(
        "--window", type=_seconds, default=60.0, metavar="SECONDS", help="(default: 60)"
    )
    windows.add_argument(
        "--interval",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help=f"between readings, at least {LEAST_PARTS} a window (default: 5)",
    )
    windows.add_argument(
        "--once", action="store_true", help="end after one window, or when none can be had"
    )
    windows.add_argument(
        "--windows", type=at_least(1), metavar="N", help="end after so many (default: go on)"
    )
    windows.add_argument(
        "--until-losing",
        type=at_least(1),
        metavar="N",
        help="end with 3 after so many losing windows in a row",
    )
    which = parser.add_argument_group("which counters")
    which.add_argument("--model", metavar="NAME", help="where a page counts for several")
    which.add_argument(
        "--baseline-model", metavar="NAME", help="of --baseline; also its name there, if another"
    )
    which.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only series with this label, such as dynamo_component=decode; of --baseline too",
    )
    which.add_argument(
        "--baseline-label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of --baseline, in place of --label",
    )
    which.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable that holds its key"
    )
    which.add_argument("--baseline-api-key-env", metavar="NAME", help="the same of --baseline")
    parser.add_argument("--json", action="store_true", help="print a JSON document a line")
    parser.add_argument(
        "--export",
        type=_listener,
        metavar="[HOST:]PORT",
        help="serve the verdict as a page for Prometheus (HOST: 127.0.0.1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check(args)
    plan = None if args.plan is None else read_plan(Path(args.plan))
    labels = dict(_label(text) for text in args.label)
    live, files = _baseline(args)
    source = _source(args.urls, args.model, args.api_key_env, "--api-key-env", labels)
    control = None
    if live:
        key = (args.baseline_api_key_env, "--baseline-api-key-env")
        its_labels = dict(_label(text) for text in args.baseline_label)
        control = _source(live, args.baseline_model, *key, its_labels or labels)
    first = source.check()
    if control is not None:
        _refuse_another_model(
            first.models, control.check().models, control.pages[0], args.baseline_model
        )
    for path, (whose, _) in files.items():
        _refuse_another_model(first.models, whose.models, path, args.baseline_model)
    recorded = tuple(window for _, windows in files.values() for window in windows)
    with ExitStack() as stack:
        shown = _Shown(args, plan, recorded)
        if args.record:
            whose = Recorded(source.pages, first.counters.server, first.models, labels)
            shown.file = stack.enter_context(_record_file(Path(args.record), whose))
        else:
            _refuse_baseline(source, first)
        if args.export:
            host, port = args.export
            named = {"server": args.urls[0], "model": args.model or ""}
            shown.exporter = stack.enter_context(Exporter(host, port, named))
        most = 1 if args.once else args.windows
        patience_s = math.inf if most is None else 3 * args.window + _PATIENCE_S
        for seen in watch(
            source,
            control=control,
            window_s=args.window,
            interval_s=args.interval,
            patience_s=patience_s,
        ):
            if isinstance(seen, str):
                shown.sentence(seen)
                continue
            shown.window(seen)
            if shown.ended(most):
                break
        else:
            return 1
    return 0 if args.record else exit_code(shown.states)


class _Shown:
    """What is done with each window, and what came of all."""

    def __init__(
        self, args: argparse.Namespace, plan: PlanDocument | None, recorded: tuple[Window, ...]
    ) -> None:
        self.args, self.plan, self.recorded = args, plan, recorded
        self.file: GrowingFile | None = None
        self.exporter: Exporter | None = None
        self.states: list[str] = []

    def window(self, seen: Seen) -> None:
        window, verdict = seen.window, None
        if self.file is not None:
            self.file.write(window.as_json())
            self.states.append("recorded")
        else:
            verdict = self.verdict(seen)
            self.states.append(verdict.state)
            if self.exporter is not None:
                self.exporter.show(window, verdict)
        if self.args.json:
            self.line(document(window, verdict))
        else:
            print(block(window, verdict), flush=True)

    def verdict(self, seen: Seen) -> Verdict:
        live = seen.baseline is not None
        baseline = (seen.baseline,) if seen.baseline is not None else self.recorded
        return judge(seen.window, plan=self.plan, baseline=baseline, together=live)

    def sentence(self, text: str) -> None:
        if self.args.json:
            self.line({"event": "warning", "text": text})
        else:
            print(warning(text), flush=True)

    def line(self, what: Mapping[str, object]) -> None:
        print(json.dumps(what, ensure_ascii=False), flush=True)

    def ended(self, most: int | None) -> bool:
        in_a_row: int | None = self.args.until_losing
        losing = in_a_row is not None and self.states[-in_a_row:] == [LOSING] * in_a_row
        return losing or (most is not None and len(self.states) >= most)


def _check(args: argparse.Namespace) -> None:
    if args.window < LEAST_PARTS * args.interval:
        raise SettingError(
            f"--window {args.window:g} has {args.window / args.interval:.1f} readings of "
            f"--interval {args.interval:g}; at least {LEAST_PARTS} are needed.",
            "Make the window longer or the interval shorter.",
        )
    if args.record and (args.plan or args.baseline or args.export or args.until_losing):
        raise SettingError(
            "--record writes windows and judges nothing.",
            "Leave --plan, --baseline, --export and --until-losing out.",
        )
    if args.once and args.windows:
        raise SettingError("--once is one window, and --windows says how many.", "Give one.")


def _baseline(
    args: argparse.Namespace,
) -> tuple[list[str], dict[str, tuple[Recorded, tuple[Window, ...]]]]:
    """Addresses of a twin, or files with their windows."""
    given: list[str] = args.baseline or []
    live = [one for one in given if _is_address(one)]
    if live and len(live) < len(given):
        raise SettingError("--baseline names addresses and files.", "Give one kind.")
    if args.baseline_model and not given:
        raise SettingError("--baseline-model is given without --baseline.", "Leave it out.")
    for name in ("baseline_label", "baseline_api_key_env"):
        if getattr(args, name) and not live:
            option = f"--{name.replace('_', '-')}"
            raise SettingError(f"{option} is given without a --baseline URL.", "Leave it out.")
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
    key_name: str | None,
    option: str,
    labels: Mapping[str, str],
) -> Source:
    for url in urls:
        checked_url(url if "://" in url else f"http://{url}", "URL")
    headers = {} if key_name is None else {"Authorization": f"Bearer {_key(key_name, option)}"}
    try:
        pages = find_metrics(urls, headers=headers)
    except ModuleNotFoundError as error:
        raise SettingError(
            f"watch needs {error.name}.", "Install it: pip install 'paceline[endpoint]'."
        ) from None
    return Source(pages, model, headers, labels)


def _refuse_baseline(source: Source, first: Scrape) -> None:
    """A server that can't be drafting is named at once, not after a window."""
    if first.counters.server == VLLM.server and not first.counters.has_drafts:
        raise SettingError(
            f"{source.pages[0]} counts no drafts.",
            f"{VLLM.turn_on} To record it as a baseline: --record FILE.",
        )


def _record_file(path: Path, whose: Recorded) -> GrowingFile:
    """New, or one of the same server's windows that goes on."""
    file = GrowingFile.open(path)
    try:
        lines = file.lines()
        if not lines:
            file.write(whose.header())
        elif other := _header_of(lines[0].text, path).differs(whose):
            raise DataError(
                f"{path} holds windows of another server: {other}.", "Choose another file."
            )
    except PacelineError:
        file.close()
        raise
    return file


def _header_of(line: str, path: Path) -> Recorded:
    try:
        return Recorded.of_header(line, path)
    except DataError as error:
        raise DataError(error.fact, "Choose another file.") from None


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
        raise SettingError(f"--label is {text!r}.", "Write NAME=VALUE.")
    return name, value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0.05 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.05 and 86400 seconds")
    return value


def _listener(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return host.strip("[]") or "127.0.0.1", int(port)
