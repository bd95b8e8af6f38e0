"""A plan as text for a terminal of 80 columns: what to run first, then what to expect, on what
evidence, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from paceline.plan.decide import counted, times
from paceline.plan.document import PlanDocument, Step

_WIDTH = 79
_LABEL = 10
_POSITIONS = 16


def plan_summary(plan: PlanDocument) -> str:
    """The whole card."""
    lines = wrap(_headline(plan), _WIDTH)
    lines.append("")
    rows = {
        "target": _target(plan),
        "draft": _draft(plan),
        "batch": [_step(step) for step in plan.schedule],
        "expected": _expected(plan),
        "evidence": _evidence(plan),
    }
    for label, sentences in rows.items():
        lines += _row(label, sentences)
    if plan.notes:
        lines.append("")
    for note in plan.notes:
        lines += wrap(note, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def _row(label: str, sentences: Iterable[str]) -> list[str]:
    """Each sentence on lines of its own behind the label."""
    indent = " " * _LABEL
    found = [
        line
        for sentence in sentences
        for line in wrap(
            sentence,
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    return [
        label.ljust(_LABEL) + line[_LABEL:] if not at else line for at, line in enumerate(found)
    ]


def _headline(plan: PlanDocument) -> str:
    if plan.draft is None:
        return f"Run {plan.target.name} without a draft."
    if plan.max_draft_tokens is None:
        mean = (
            "" if plan.mean_draft_tokens is None else f" ({plan.mean_draft_tokens:.1f} on average)"
        )
        far = f"as many tokens a round as Paceline's policy chooses{mean}"
    else:
        far = f"at most {_tokens(plan.max_draft_tokens)} a round"
    return f"Run {plan.target.name} with the draft {plan.draft.name}, {far}."


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"


def _target(plan: PlanDocument) -> list[str]:
    target = plan.target
    lies = f", {target.path}" if target.path and target.path != target.name else ""
    return [f"{target.name} on {target.engine}{lies}"]


def _draft(plan: PlanDocument) -> list[str]:
    draft = plan.draft
    if draft is None:
        return []
    told = [draft.kind]
    told += [f"model {draft.model}"] if draft.model else []
    told += [
        f"{key} {value}"
        for key, value in draft.settings.items()
        if isinstance(value, int | float | str)
    ]
    for key in ("parts", "drafts"):
        told += [f"{part['kind']} ({part['name']})" for part in draft.settings.get(key, ())]
    return [", ".join(told)]


def _step(step: Step) -> str:
    if step.to_batch is None:
        sizes = f"{step.from_batch} and more"
    elif step.to_batch == step.from_batch:
        sizes = str(step.from_batch)
    else:
        sizes = f"{step.from_batch} to {step.to_batch}"
    limit = step.max_draft_tokens
    return f"{sizes}: {f'at most {_tokens(limit)}' if limit else 'no draft'}"


def _expected(plan: PlanDocument) -> list[str]:
    expected, said = plan.expected, []
    how = "measured" if plan.measured.source in ("bench", "endpoint") else "predicted"
    if expected.gain is not None:
        gain = expected.gain
        told = times(gain) if gain.low is not None else f"speedup {gain.value:.2f}"
        said.append(f"{told}, {how}")
    rounds = []
    if expected.tokens_per_round is not None:
        rounds.append(f"{expected.tokens_per_round:.2f} tokens per round")
    if expected.tokens_per_drafted_round is not None:
        tokens = "" if rounds else " tokens"
        rounds.append(f"{expected.tokens_per_drafted_round:.2f}{tokens} per drafted round")
    if expected.break_even_tokens is not None:
        needed = expected.break_even_tokens
        rounds.append(f"drafting pays from {needed:.2f} tokens per drafted round")
    if rounds:
        said.append("; ".join(rounds))
    if expected.acceptance_rate is not None:
        said.append(f"{expected.acceptance_rate:.0%} of drafted tokens accepted")
    if expected.acceptance_at:
        shown = " ".join(f"{share:.0%}" for share in expected.acceptance_at[:_POSITIONS])
        more = " …" if len(expected.acceptance_at) > _POSITIONS else ""
        said.append(f"accepted at position 1, 2 …, of all drafted rounds: {shown}{more}")
    return said + _by_category(plan)


def _by_category(plan: PlanDocument) -> list[str]:
    """The worst first."""
    gains = plan.expected.gain_by_category
    if len(gains) < 2:
        return []
    rated = sorted(gains.items(), key=lambda pair: pair[1].value)
    return ["by category: " + ", ".join(f"{name} {gain.value:.2f}" for name, gain in rated)]


def _evidence(plan: PlanDocument) -> list[str]:
    measured = plan.measured
    where = [measured.source, *([measured.file] if measured.file else [])]
    where += [measured.when] if measured.when else []
    said = [", ".join(where)]
    if measured.configuration is not None:
        said.append(f"configuration {measured.configuration}")
    if measured.prompts:
        said.append(
            f"{counted(measured.prompts, 'prompt')}, {counted(measured.tokens, 'token')}, "
            f"{_sampling(plan)}, batch {measured.batch}"
        )
    machine = measured.machine
    names = [str(machine[key]) for key in ("server", "version", "cpu", "costs") if machine.get(key)]
    if names:
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        said.append(f"{', '.join(names)}{cores}")
    return (
        said if measured.exact else [*said, "LOSSY: the output distribution was not the target's"]
    )


def _sampling(plan: PlanDocument) -> str:
    temperature = plan.measured.sampling.get("temperature")
    return "greedy" if temperature == 0 else f"temperature {temperature}"
