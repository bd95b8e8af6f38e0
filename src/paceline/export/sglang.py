"""A plan as SGLang's flags."""

from __future__ import annotations

import json

from paceline.export.request import PENALTIES, ExportRequest
from paceline.export.setup import EngineSetup

ADAPTIVE_FILE = "paceline-adaptive.json"


def setup(ask: ExportRequest) -> EngineSetup:
    """SGLang told to draft."""
    ask.check_sampling(("min_p", *PENALTIES), "doesn't apply that exactly while it verifies drafts")
    ask.check_draft_parallel()
    algorithms = ask.table.families()
    family = ask.family(algorithms)
    algorithm = algorithms[family]
    limit = ask.fixed_limit()
    model = ask.find_model(family, algorithm).place
    flags = {"--speculative-algorithm": algorithm}
    if model is not None:
        flags["--speculative-draft-model-path"] = model
    flags |= _lengths(algorithm, limit)
    files = {}
    if not ask.schedule or algorithm not in ask.table.read["adaptive"]:
        ask.say_no_schedule(algorithm)
    else:
        slots = {
            str(step.from_batch): {"candidate_steps": [step.max_draft_tokens]}
            for step in ask.schedule
        }
        flags |= {"--speculative-adaptive": "", "--speculative-adaptive-config": ADAPTIVE_FILE}
        files = {ADAPTIVE_FILE: json.dumps(slots, indent=1) + "\n"}
        ask.say_schedule(
            f"The schedule by batch size is in {ADAPTIVE_FILE}. SGLang ignores it, with a warning, "
            "under attention data parallelism."
        )
    if ask.options.max_running is not None:
        flags["--max-running-requests"] = str(ask.options.max_running)
    ask.table.admit(flags)
    _say_traps(ask, algorithm, limit)
    arguments = tuple(part for flag in flags.items() for part in flag if part)
    return ask.made(model, arguments=arguments, files=files)


def _lengths(algorithm: str, limit: int) -> dict[str, str]:
    """All of the lengths or none: SGLang refuses some of them, and its number of draft tokens
    counts the root."""
    rows = str(limit + 1)
    if algorithm == "NGRAM":
        return {"--speculative-num-draft-tokens": rows, "--speculative-ngram-max-bfs-breadth": "1"}
    if algorithm == "DFLASH":
        return {"--speculative-dflash-block-size": rows}
    return {
        "--speculative-num-steps": str(limit),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": rows,
    }


def _say_traps(ask: ExportRequest, algorithm: str, limit: int) -> None:
    ask.say(
        f"{limit + 1} draft tokens are {limit} drafted ones and the root, which SGLang counts too."
    )
    if algorithm == "NGRAM":
        ask.say("A breadth of 1 keeps its drafts chains, as measured; SGLang's default is trees.")
    if ask.options.max_running is None:
        ask.say(
            "With drafts SGLang decodes at most 48 sequences together unless told otherwise: for a "
            "fair comparison set --max-running-requests in both servers (here: --max-running N)."
        )
    if ask.plan.measured.sampling.get("temperature"):
        ask.say(
            "On CPU and XPU SGLang verifies greedily whatever the temperature: there its output is "
            "not the target's distribution. On CUDA it is."
        )
    if algorithm == "NGRAM":
        ask.say_matches("SGLang has no setting for the shortest match, and its own rules")
