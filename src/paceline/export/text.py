"""A setup in the forms that people keep: a command, JSON, Python, YAML."""

from __future__ import annotations

import json
import pprint
import shlex
from collections.abc import Callable

from paceline.errors import SettingError, unknown_name
from paceline.export.cluster import is_path
from paceline.export.manifest import as_yaml, comment
from paceline.export.setup import Setup
from paceline.export.versions import TITLES

PROGRAMS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python3", "-m", "sglang.launch_server", "--model-path"),
    "tensorrt-llm": ("trtllm-serve",),
    "llama-server": ("llama-server",),
}
"""What starts an engine's server; its target follows."""

PARALLEL = {
    "vllm": "--tensor-parallel-size",
    "sglang": "--tp-size",
    "tensorrt-llm": "--tp_size",
}
"""The option that lays a target over several GPUs; llama-server takes all of them by itself."""

FORMATS = {
    "vllm": ("flags", "json", "python"),
    "sglang": ("flags", "json"),
    "tensorrt-llm": ("yaml", "flags", "json"),
    "llama-server": ("flags", "json"),
}
"""The first is the default."""


WIDTH = 80


def written(setup: Setup, form: str | None = None, file: str = "THIS_FILE") -> str:
    """The setup in a form, its remarks as comments where the form has any: JSON has none.

    file    where it will be kept, for a form that the server is told to read

    Raises SettingError for a form that the engine has no use for, and for one that can't hold the
    setup.
    """
    known = FORMATS[setup.engine]
    if form is not None and form not in known:
        raise unknown_name(f"form of {TITLES[setup.engine]}'s settings", form, known)
    form = form or known[0]
    return _yaml(setup, file) if form == "yaml" else _WRITERS[form](setup)


def unwritten(setup: Setup, form: str | None) -> tuple[str, ...]:
    """What must be said beside a form: one without comments has no remarks, and one that holds
    the drafts' settings alone no more than those."""
    if (form or FORMATS[setup.engine][0]) != "json":
        return ()
    spread = laid_over(setup.engine, setup.tensor_parallel)
    if not spread or not _structured(setup):
        return setup.notes
    return (*setup.notes, f"Start the server with {' '.join(spread)}, which isn't in this JSON.")


def laid_over(engine: str, gpus: int) -> tuple[str, ...]:
    """The arguments that lay a target over that many GPUs, where any are needed."""
    option = PARALLEL.get(engine)
    return (option, str(gpus)) if option and gpus > 1 else ()


def command(setup: Setup) -> list[str]:
    """The words that start the server with these settings."""
    program = PROGRAMS[setup.engine]
    if setup.engine == "llama-server":  # a file and a repository have options of their own
        program = (*program, "--model" if is_path(setup.target) else "-hf")
    return [*program, setup.target, *_arguments(setup)]


def _arguments(setup: Setup) -> list[str]:
    spread = laid_over(setup.engine, setup.tensor_parallel)
    return [*spread, *setup.arguments, *setup.metrics]


def _heading(setup: Setup) -> str:
    return "\n".join(comment([f"{TITLES[setup.engine]} {setup.version}.", *setup.notes], WIDTH))


def _flags(setup: Setup) -> str:
    """A shell script: files that the command names are written first."""
    files = [_file(name, text) for name, text in setup.files.items()]
    return "\n".join([_heading(setup), *files, _lines(command(setup))]) + "\n"


def _file(name: str, text: str) -> str:
    end = "PACELINE"
    while end in text.splitlines():
        end += "_"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{text.rstrip()}\n{end}"


def _lines(words: list[str]) -> str:
    """One option a line, its value beside it."""
    lines: list[list[str]] = [[]]
    for at, word in enumerate(words):
        if word.startswith("--") and at > 2:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines if line)


def _json(setup: Setup) -> str:
    """The engine's structured form, or the arguments of one that has none."""
    if setup.files and not _structured(setup):
        raise SettingError(
            f"The arguments name {', '.join(setup.files)}, which a list of them can't hold.",
            "Export with --format flags: the script writes it.",
        )
    found = setup.config if _structured(setup) else _arguments(setup)
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _structured(setup: Setup) -> bool:
    """Whether the engine takes the drafts' settings as a mapping."""
    return setup.engine in ("vllm", "tensorrt-llm")


def _python(setup: Setup) -> str:
    speculative = pprint.pformat(dict(setup.config), sort_dicts=False, width=76)
    lines = [_heading(setup), "from vllm import LLM", ""]
    if setup.config:
        lines += [f"speculative_config = {speculative}", ""]
    given = [f"model={setup.target!r}"]
    if setup.tensor_parallel > 1:
        given.append(f"tensor_parallel_size={setup.tensor_parallel}")
    if setup.config:
        given.append("speculative_config=speculative_config")
    return "\n".join([*lines, f"llm = LLM({', '.join(given)})"]) + "\n"


def _yaml(setup: Setup, file: str) -> str:
    """The file that the server is told to read."""
    words = [file if word in setup.files else word for word in command(setup)]
    start = comment([f"Start: {shlex.join(words)}"], WIDTH)
    return "\n".join([_heading(setup), *start, as_yaml(setup.config)])


_WRITERS: dict[str, Callable[[Setup], str]] = {
    "flags": _flags,
    "json": _json,
    "python": _python,
}
