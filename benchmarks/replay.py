"""Replay of a lookup draft: tokens a second on one core, in one pass and by asking at every token.

taskset -c 0 python benchmarks/replay.py smollm2-135m

Texts are this repository's own source and documentation in the model's tokens, cut into prompts and
answers of the lengths below; seconds are of this process alone (`process_time`), the best of some
tries. `tok_per_s` counts tokens of answers, `text_tok_per_s` those of prompts too: both are read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from time import process_time

from common import HERE, write

from paceline.drafts.automaton import SuffixAutomaton
from paceline.drafts.lookup import LookupDraft
from paceline.engines.load import load_tokenizer
from paceline.simulate.fixed_limits import Answers
from paceline.simulate.record import asked_throughout, replayed
from paceline.simulate.replay import Log, LoggedAnswer, replay

LENGTHS = ((100, 400), (300, 300), (1000, 200), (2000, 2000))
LIMITS = (1, 2, 3, 5, 7, 15)
MOST_TOKENS, TRIES = 200_000, 5

Pair = tuple[list[int], list[int]]


def texts(model: str) -> list[list[int]]:
    """A text a file, long ones only."""
    root = HERE.parent
    paths = sorted([*(root / "src").rglob("*.py"), *(root / "docs").glob("*.md")])
    with load_tokenizer(model) as target:
        return [target.tokenizer.encode(path.read_text(encoding="utf-8")) for path in paths]


def pairs(written: Sequence[list[int]], prompt: int, answer: int) -> list[Pair]:
    def cut() -> Iterator[Pair]:
        for text in written:
            for start in range(0, len(text) - prompt - answer, prompt + answer):
                yield text[start : start + prompt], text[start + prompt :][:answer]

    found: list[Pair] = []
    for pair in cut():
        found.append(pair)
        if len(found) * (prompt + answer) > MOST_TOKENS:
            break
    return found


def best_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        started = process_time()
        work()
        seconds.append(process_time() - started)
    return min(seconds)


def row(some: list[Pair]) -> dict[str, float]:
    draft = LookupDraft()
    answers = sum(len(output) for _, output in some)
    whole = answers + sum(len(prompt) for prompt, _ in some)
    few = some[: max(1, len(some) // 10)]
    log = Log(
        tuple(
            LoggedAnswer(str(n), "all", tuple(prompt), tuple(output), len(output))
            for n, (prompt, output) in enumerate(some)
        )
    )

    def judged() -> None:
        found = Answers(list(replay(log, {"lookup": draft}, ())), "lookup")
        for max_draft_tokens in LIMITS:
            found.outcomes(max_draft_tokens)

    pass_s = best_s(lambda: [replayed(draft, *pair) for pair in some])
    judged_s = best_s(judged)
    asked_s = best_s(lambda: [asked_throughout(draft, *pair) for pair in few])
    fed_s = best_s(lambda: [SuffixAutomaton([*prompt, *output]) for prompt, output in some])
    return {
        "answers": len(some),
        "tok_per_s": answers / pass_s,
        "text_tok_per_s": whole / pass_s,
        "with_figures_tok_per_s": answers / judged_s,
        "asked_tok_per_s": sum(len(output) for _, output in few) / asked_s,
        "feeding_share": fed_s / pass_s,
    }


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    written = texts(model)
    rows = {}
    for prompt, answer in LENGTHS:
        name = f"{prompt} prompt tokens, {answer} answer tokens"
        rows[name] = row(pairs(written, prompt, answer))
        print(name, {key: round(value, 2) for key, value in rows[name].items()})
    write("replay", {"tokenizer": model, "limits": list(LIMITS), "lengths": rows})


if __name__ == "__main__":
    main()
