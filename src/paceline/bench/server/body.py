"""What an OpenAI-compatible server is asked: settings in its own fields, none dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.errors import SettingError
from paceline.types import Sampling

# OpenAI's API doesn't know these; the servers take them beside its fields. Each with the value that
# is off, which is sent too: a server's own defaults (a model's generation_config, or llama.cpp's
# top-k 40 and min-p 0.05) would hold otherwise.
_EXTRA: Mapping[str, Mapping[str, str]] = {
    "vLLM": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
    },
    "SGLang": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
    },
    "llama.cpp": {
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repeat_penalty",
    },
}
_TOP_K_OFF = {"vLLM": -1, "SGLang": -1, "llama.cpp": 0}
_OPTIONS = {
    "top_k": "--top-k",
    "min_p": "--min-p",
    "repetition_penalty": "--repetition-penalty",
    "min_tokens": "--min-tokens",
    "banned_tokens": "--ban-token",
    "allowed_tokens": "--allow-token",
    "banned_sequences": "--ban-text",
}


def sampling_fields(sampling: Sampling, max_tokens: int, server: str | None) -> dict[str, Any]:
    """The request's fields for these settings.

    server    whose fields beyond OpenAI's are known: vLLM, SGLang, llama.cpp

    Raises SettingError for a setting that this server isn't known to take.
    """
    extra = _EXTRA.get(server or "", {})
    off = Sampling()
    for name, option in _OPTIONS.items():
        value = getattr(sampling, name)
        if value != getattr(off, name) and name not in extra:
            whose = server or "a server that isn't known"
            raise SettingError(
                f"{option} is {value}, and {whose} isn't known to take it over OpenAI's API.",
                "Leave it out.",
            )
    body: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    for name, field_name in extra.items():
        body[field_name] = getattr(sampling, name)
    if server in _TOP_K_OFF and not sampling.top_k:
        body["top_k"] = _TOP_K_OFF[server]
    if server == "llama.cpp" and sampling.repetition_penalty != 1:
        body["repeat_last_n"] = -1  # prompt and output, as elsewhere; its own default is 64 tokens
    return body


def path_and_body(prompt: WorkloadPrompt) -> tuple[str, dict[str, Any]]:
    """Where a prompt goes, and the fields that hold it."""
    if prompt.raw:
        return "/completions", {"prompt": prompt.messages[0]["content"]}
    return "/chat/completions", {"messages": [dict(message) for message in prompt.messages]}
