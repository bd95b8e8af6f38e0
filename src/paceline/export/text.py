"""A setup in the forms that people keep (a command, JSON, Python, YAML), and YAML and comments that
read back as they were meant."""

from __future__ import annotations

import json
import pprint
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.errors import SettingError, unknown_name
from paceline.export.setup import ENGINES, EngineSetup, is_path

WIDTH = 80


def written(setup: EngineSetup, form: str | None = None, file: str = "THIS_FILE") -> str:
    """The setup in a form, its notes as comments where the form has any: JSON has none.

    file    where it will be kept, for a form that the server is told to read

    Raises SettingError for a form that the engine has no use for, and for one that can't hold the
    setup.
    """
    profile = ENGINES[setup.engine]
    if form is not None and form not in profile.formats:
        raise unknown_name(f"form of {profile.title}'s settings", form, profile.formats)
    form = form or profile.formats[0]
    if form == "json":
        return _json(setup)
    heading = comment([f"{profile.title} {setup.version}.", *setup.notes], WIDTH)
    if form == "yaml":  # the file that the server is told to read
        words = [file if word in setup.files else word for word in command(setup)]
        heading += comment([f"Start: {shlex.join(words)}"], WIDTH)
        return "\n".join([*heading, as_yaml(setup.config)])
    return "\n".join([*heading, *(_python(setup) if form == "python" else _script(setup))]) + "\n"


def unwritten(setup: EngineSetup, form: str | None) -> tuple[str, ...]:
    """What must be said beside a form: one without comments has no notes, and one that holds the
    drafts' settings alone no more than those."""
    profile = ENGINES[setup.engine]
    if (form or profile.formats[0]) != "json":
        return ()
    split = profile.split(setup.tensor_parallel)
    if not split or not profile.structured:
        return setup.notes
    return (*setup.notes, f"Start the server with {' '.join(split)}, which isn't in this JSON.")


def command(setup: EngineSetup) -> list[str]:
    """The words that start the server with these settings."""
    program = ENGINES[setup.engine].program
    return [*program, *target_words(setup), *_arguments(setup)]


def target_words(setup: EngineSetup) -> tuple[str, ...]:
    """The arguments that name the target: llama-server has options for a file and a repository."""
    if setup.engine == "llama-server":
        return "--model" if is_path(setup.target) else "-hf", setup.target
    return (*ENGINES[setup.engine].model, setup.target)


def _arguments(setup: EngineSetup) -> list[str]:
    split = ENGINES[setup.engine].split(setup.tensor_parallel)
    return [*split, *setup.arguments, *setup.metrics]


def _script(setup: EngineSetup) -> list[str]:
    """A shell script: files that the command names are written first; then one option a line, its
    value beside it."""
    files = [_file(name, text) for name, text in setup.files.items()]
    lines: list[list[str]] = [[]]
    for at, word in enumerate(command(setup)):
        if word.startswith("--") and at > 2:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [*files, " \\\n  ".join(" ".join(line) for line in lines if line)]


def _file(name: str, text: str) -> str:
    end = "PACELINE"
    while end in text.splitlines():
        end += "_"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{text.rstrip()}\n{end}"


def _json(setup: EngineSetup) -> str:
    """The engine's structured form, or the arguments of one that has none."""
    structured = ENGINES[setup.engine].structured
    if setup.files and not structured:
        raise SettingError(
            f"The arguments name {', '.join(setup.files)}, which a list of them can't hold.",
            "Export with --format flags: the script writes it.",
        )
    found = setup.config if structured else _arguments(setup)
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _python(setup: EngineSetup) -> list[str]:
    lines, given = ["from vllm import LLM", ""], [f"model={setup.target!r}"]
    if setup.tensor_parallel > 1:
        given.append(f"tensor_parallel_size={setup.tensor_parallel}")
    if setup.config:
        speculative = pprint.pformat(dict(setup.config), sort_dicts=False, width=76)
        lines += [f"speculative_config = {speculative}", ""]
        given.append("speculative_config=speculative_config")
    return [*lines, f"llm = LLM({', '.join(given)})"]


def as_yaml(value: Mapping[str, Any]) -> str:
    """A mapping as block YAML. Strings that any reader could take for something else are quoted:
    Kubernetes reads YAML 1.1 with Go's rules, where `1e3`, `y` and `0o17` are no strings."""
    yaml = import_yaml()

    def indented(writer: Any, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG001
        yaml.SafeDumper.increase_indent(writer, flow, False)

    def text(writer: Any, data: str) -> Any:
        return writer.represent_scalar("tag:yaml.org,2002:str", data, style=_style(data))

    # A part that is used twice is written twice, and lists stand under their key's text.
    own = {"ignore_aliases": lambda *_: True, "increase_indent": indented}
    writer: Any = type("Writer", (yaml.SafeDumper,), own)
    writer.add_representer(str, text)
    found: str = yaml.dump(
        value,
        Dumper=writer,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=10**6,
    )
    return found


def import_yaml() -> Any:
    """PyYAML, which comes with an extra. Raises SettingError if it is missing."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise SettingError(
            "Manifests are written with PyYAML, which isn't installed.",
            "Install it: pip install 'paceline[export]'.",
        ) from None
    return yaml


def _style(text: str) -> str | None:
    """How a string is written: bare, as lines, in single or in double quotes, which alone have
    escapes."""
    if _UNMISTAKABLE.fullmatch(text) and text.lower().lstrip("-") not in _WORDS:
        return None
    if not text.replace("\n", "").isprintable():
        return '"'
    return "|" if "\n" in text else "'"


_WORDS = frozenset(
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"]
)
_UNMISTAKABLE = re.compile(r"(--?)?[A-Za-z/]([-A-Za-z0-9_./:]*[-A-Za-z0-9_./])?", re.ASCII)


def comment(notes: Iterable[str], width: int = 98) -> list[str]:
    """Lines of a comment, a paragraph a note, each as `one_line` has it."""
    lines: list[str] = []
    for note in notes:
        paragraph = textwrap.wrap(
            one_line(note), width - 2, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"# {line}" for line in paragraph]
    return lines


def one_line(text: str) -> str:
    """A text that neither leaves its line nor tells a terminal anything: every run of spaces, line
    ends among them, is one space, and what can't be printed is `?`."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
