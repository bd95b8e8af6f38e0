"""Decode language models with draft models: exactly, and only while it pays.

    import paceline

    target = paceline.load("smollm2-135m")
    draft = paceline.create_draft("lookup", target)
    prompt = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,"
    stop = paceline.StopConditions(max_tokens=32)
    answer = paceline.generate(target, prompt, draft=draft, stop=stop)
    print(answer.text, answer.summary, sep="\n")

Importing this loads NumPy and nothing heavier; an engine's library is imported when a model of
that engine is loaded.
"""

from paceline.api import generate
from paceline.bench.profile.measured_policy import measured_policy
from paceline.decode.generate import Generation, decode, encode_prompt
from paceline.decode.policy import Policy, fixed
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
    "decode",
    "encode_prompt",
    "fixed",
    "generate",
    "load",
    "measured_policy",
]
