"""Decode language models with draft models: exactly, and only when it is faster.

    import paceline

    target = paceline.load("smollm2-135m")
    draft = paceline.create_draft("lookup", target)
    prompt = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,"
    stop = paceline.StopConditions(max_tokens=32)
    answer = paceline.generate(target, prompt, draft=draft, stop=stop)
    print(answer.text, answer.summary, sep="\n")

Importing this loads nothing: a name's module is imported when the name is first used, and an
engine's library when a model of that engine is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import generate
    from paceline.bench.profile.measured_policy import measured_policy
    from paceline.decode.generate import Generation, encode_prompt
    from paceline.decode.generate import decode as generate_batch
    from paceline.decode.round import Policy, fixed
    from paceline.decode.step import Decoder
    from paceline.drafts.base import Context, Draft
    from paceline.drafts.create import create_draft
    from paceline.engines.base import Capabilities, Engine, Job, Sequence
    from paceline.engines.load import load
    from paceline.errors import PacelineError
    from paceline.types import (
        Choice,
        FinishReason,
        Preview,
        Proposal,
        Request,
        Round,
        Sampling,
        StopConditions,
        Verdict,
    )
    from paceline.verify.base import Verifier

__version__ = "0.1.0"

__all__ = [
    "Capabilities",
    "Choice",
    "Context",
    "Decoder",
    "Draft",
    "Engine",
    "FinishReason",
    "Generation",
    "Job",
    "PacelineError",
    "Policy",
    "Preview",
    "Proposal",
    "Request",
    "Round",
    "Sampling",
    "Sequence",
    "StopConditions",
    "Verdict",
    "Verifier",
    "__version__",
    "create_draft",
    "encode_prompt",
    "fixed",
    "generate",
    "generate_batch",
    "load",
    "measured_policy",
]

_PLACES = {
    "Capabilities": "paceline.engines.base.Capabilities",
    "Choice": "paceline.types.Choice",
    "Context": "paceline.drafts.base.Context",
    "Decoder": "paceline.decode.step.Decoder",
    "Draft": "paceline.drafts.base.Draft",
    "Engine": "paceline.engines.base.Engine",
    "FinishReason": "paceline.types.FinishReason",
    "Generation": "paceline.decode.generate.Generation",
    "Job": "paceline.engines.base.Job",
    "PacelineError": "paceline.errors.PacelineError",
    "Policy": "paceline.decode.round.Policy",
    "Preview": "paceline.types.Preview",
    "Proposal": "paceline.types.Proposal",
    "Request": "paceline.types.Request",
    "Round": "paceline.types.Round",
    "Sampling": "paceline.types.Sampling",
    "Sequence": "paceline.engines.base.Sequence",
    "StopConditions": "paceline.types.StopConditions",
    "Verdict": "paceline.types.Verdict",
    "Verifier": "paceline.verify.base.Verifier",
    "create_draft": "paceline.drafts.create.create_draft",
    "encode_prompt": "paceline.decode.generate.encode_prompt",
    "fixed": "paceline.decode.round.fixed",
    "generate": "paceline.api.generate",
    "generate_batch": "paceline.decode.generate.decode",
    "load": "paceline.engines.load.load",
    "measured_policy": "paceline.bench.profile.measured_policy.measured_policy",
}
"""Where each exported name lives. Its module is imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].rpartition(".")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
