"""The same model with drafts on two engines, prompt by prompt in turns: which decodes faster?

    python benchmarks/two_engines.py MODEL.gguf openvino llamacpp -d lookup --tokens 256

    python benchmarks/two_engines.py MODEL.gguf openvino=EXPORTED_DIR llamacpp -d lookup

Each engine decodes under the policy, with costs measured on it; the ratio is the second's time
over the first's, the reading of prompts apart.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import interleaved, label, load_told, prompts, write

from paceline import StopConditions, create_draft
from paceline.bench.profile.measured_policy import measured_policy
from paceline.decode.generate import generate
from paceline.engines.base import Engine


class Side:
    """An engine, its drafts and their costs."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.engine: Engine = load_told(args.model, name, context_size=2048)
        drafts = [create_draft(spec, self.engine) for spec in args.draft]
        self.drafts = {draft.name: draft for draft in drafts}
        self.policy = measured_policy(self.engine, self.drafts)
        self.stop = StopConditions(max_tokens=args.tokens)
        self.told: list[dict[str, Any]] = []

    def __call__(self, tokens: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        done = generate(self.engine, tokens, stop=self.stop, draft=self.drafts, policy=self.policy)
        rounds = [r for r in done.rounds if not r.prefill]
        self.told.append(
            {
                "rounds": len(rounds),
                "drafted_rounds": sum(r.proposed > 0 for r in rounds),
                "proposed": sum(r.proposed for r in rounds),
                "accepted": sum(r.accepted for r in rounds),
                "widest": max((r.width for r in rounds), default=0),
            }
        )
        return done.stats.decode_s, done.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("-d", "--draft", action="append", required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--categories")
    args = parser.parse_args()
    sides = [Side(args, name) for name in (args.first, args.second)]
    chosen = prompts(args.categories.split(",") if args.categories else None)
    mine, theirs = (side.engine for side in sides)
    if any(prompt.tokens(mine) != prompt.tokens(theirs) for prompt in chosen):
        raise SystemExit("The engines' tokenizers cut a prompt differently.")
    result = interleaved(mine, chosen, *sides)
    for number, row in enumerate(result["rows"]):
        row |= {"ours_rounds": sides[0].told[number], "theirs_rounds": sides[1].told[number]}
    drafts = "+".join(spec.replace("/", "-") for spec in args.draft)
    first, second = (told.partition("=")[0] for told in (args.first, args.second))
    name = f"{first}-beside-{second}-{drafts}-{label(mine)}"
    engines = {"ours": mine.metadata(), "theirs": theirs.metadata()}
    write(name, {"drafts": args.draft, "engines": engines, **result})
    print(result["ratio"], result["by_category"])


if __name__ == "__main__":
    main()
