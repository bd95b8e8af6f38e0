"""`paceline tune`: which of the target's own layers should draft for it, on your prompts."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.bench.prompts.workload import Workload
from paceline.cli.options import (
    Output,
    PromptOptions,
    SamplingOptions,
    TargetOptions,
    out_path,
    percent_bar,
    refuse_given,
    say,
)
from paceline.cli.settings import Verb, group, option, whole
from paceline.drafts.early_exit import write_setting
from paceline.train.tune import Tuner
from paceline.train.tune_result import tune_summary

if TYPE_CHECKING:
    from paceline.engines.transformers.head import HeadFile

EXAMPLES = """\
  paceline tune owner/model -o setting.json
  paceline tune model-directory --prompts prompts.jsonl --fit-head head.safetensors --layers 8
  paceline generate owner/model -d early-exit:setting=setting.json -p "…" """


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What only a fit takes."""

    title: ClassVar[str] = "fitting a head"
    fit_head: str | None = option(
        "fit one to text that the target writes, and try it; a fit that was killed goes on", "FILE"
    )
    layers: int | None = whole("the exit layer (default: a quarter of the layers)")
    rank: int | None = whole("rank of the head's map (default: 64)")
    fit_steps: int | None = whole("steps of the fit (default: 200)")
    answers: int | None = whole("answers to each prompt to fit to (default: 4)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Search the exit layer or the layers to skip by measured speed under the policy, on your
    prompts, and write a setting for -d early-exit:setting=FILE. With --fit-head, fit a small head
    behind an exit layer first. Needs the transformers engine."""

    target: TargetOptions = group(TargetOptions)
    prompts: PromptOptions = group(PromptOptions)
    budget: int = whole("time for the search, fitting apart", 300, metavar="SECONDS")
    max_tokens: int = whole("most tokens of an answer", 64, least=2)
    out: str = option(
        "the file of the setting", "FILE", short="-o", default="paceline-early-exit.json"
    )
    head: tuple[str, ...] = option("a fitted head to try as well", "FILE", repeat=True)
    output: Output = group(Output)
    fit: FitOptions = group(FitOptions)
    sampling: SamplingOptions = group(SamplingOptions)


def run(settings: Settings) -> int:
    """Fit a head if one is asked for, search, write the setting, and return the exit code."""
    fit = settings.fit
    if fit.fit_head is None:
        refuse_given(asdict(fit), "no head is to be fitted", "Add --fit-head FILE, or drop it.")
    workload = settings.prompts.workload(turns=False)
    out = out_path(settings.out, "-o")
    head = None if fit.fit_head is None else out_path(fit.fit_head, "--fit-head")
    with settings.target.load(max_sequences=4) as engine:
        tuner = Tuner(
            engine,
            workload,
            budget_s=settings.budget,
            max_tokens=settings.max_tokens,
            sampling=settings.sampling.sampling(engine),
            on_measure=say,
        )
        tuner.heads.update(_heads(engine, [Path(name) for name in settings.head]))
        if head is not None:
            if not _fit(fit, engine, workload, head, settings.max_tokens):
                return 1
            tuner.heads.update(_heads(engine, [head]))
        return _search(tuner, engine, out, settings.output)


def _heads(engine: Any, files: list[Path]) -> dict[Path, HeadFile]:
    from paceline.engines.transformers.head import load_head
    from paceline.engines.transformers.layers import identity

    here = identity(engine)
    return {file: load_head(file, here, engine.module.device) for file in files}


def _fit(options: FitOptions, engine: Any, workload: Workload, path: Path, most: int) -> bool:
    """Fit a head and write it; False after an interrupt, whose checkpoint stays."""
    from paceline.engines.transformers.head import save_head
    from paceline.engines.transformers.layers import identity
    from paceline.train.exit_head import FitSettings, HeadFit
    from paceline.train.texts import Text, samplings_for, write_texts

    layers = options.layers or max(1, identity(engine)["layers"] // 4)
    answers = options.answers or 4
    settings = FitSettings(layers, options.rank or 64, options.fit_steps or 200)
    checkpoint = path.with_name(f"{path.name}.part")
    with percent_bar("text") as (bar, show):

        def texts() -> list[Text]:
            found: list[Text] = []
            samplings = samplings_for(answers)
            for share, some in write_texts(engine, workload, samplings, max_tokens=most):
                found += some
                show(share)
            return found

        try:
            source = (
                f"{answers} answers of at most {most} tokens to the "
                f"{len(workload.prompts)} prompts of {workload.name}"
            )
            fit = HeadFit(engine, settings, texts, checkpoint, source)
            if fit.resumed:
                say(f"Going on from {checkpoint}.")
            bar.set_description("fit")
            show(0.0)
            fit.run(lambda done, total: show(done / total))
        except KeyboardInterrupt:
            bar.close()
            say("Interrupted; the same command goes on with the fit.")
            return False
    found = fit.finish()
    save_head(path, found)
    checkpoint.unlink(missing_ok=True)
    before, after = (found.report[f"held_out_acceptance_{when}"] for when in ("before", "after"))
    say(
        f"The head behind {layers} layers is in {path}: held-out acceptance "
        f"{before['sampled']:.1%} → {after['sampled']:.1%} sampled, {before['greedy']:.1%} → "
        f"{after['greedy']:.1%} greedy."
    )
    return True


def _search(tuner: Tuner, engine: Any, out: Path, output: Output) -> int:
    from paceline.engines.transformers.layers import identity

    with percent_bar("tune") as (bar, show):

        def progress(share: float, doing: str) -> None:
            bar.set_postfix_str(doing)
            show(share)

        tuner.on_progress = progress
        try:
            tuner.run()
        except KeyboardInterrupt:
            bar.write("Interrupted; what was found is kept.", file=sys.stderr)
    result = tuner.result
    write_setting(out, result.setting(identity(engine)))
    output.show(result.as_json, lambda: "\n".join(tune_summary(result)))
    say(f"The setting is in {out}: -d early-exit:setting={out}")
    return 0 if result.complete else 1


VERB = Verb(Settings, run, EXAMPLES)
