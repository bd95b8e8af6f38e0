"""What a server is: its models, what made it, and where it counts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.bench.server.answer import (
    BadAnswer,
    parsed,
    shortened,
    whole_characters,
)
from paceline.bench.server.http import Http
from paceline.errors import ModelError, ServerError, SettingError
from paceline.monitor.counters import read_counters
from paceline.monitor.scrape import scrape

_OWNERS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
_HINTS = {
    "SGLang": "Start it with --enable-metrics.",
    "llama.cpp": "Start it with --metrics.",
    "TensorRT-LLM": "Start it with return_perf_metrics and enable_iter_perf_stats.",
}
_METRICS = ("/metrics", "/prometheus/metrics")  # the second: trtllm-serve, whose first is JSON


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of itself.

    metrics       where its counters are; `no_metrics` says why nowhere
    offered    all its models, if it lists them
    """

    url: str
    model: str
    server: str | None = None
    version: str | None = None
    metrics: str | None = None
    no_metrics: str | None = None
    offered: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        document = asdict(self)
        del document["offered"]
        return document


async def introduce(http: Http, model: str | None, metrics: str | None) -> ServedModel:
    """Ask a server what it is and which models it has; choose one, and find its counters.

    Raises ServerError for a server that can't be measured, ModelError for a model that it doesn't
    have, or if none was named and it has several.
    """
    listed, named = await _models(http)
    rows = [row for row in (listed or {}).get("data") or () if isinstance(row, dict)]
    offered = tuple(
        dict.fromkeys(whole_characters(str(row["id"])) for row in rows if row.get("id"))
    )
    aliases = {str(alias) for row in rows for alias in row.get("aliases") or ()}
    if model is None and len(offered) == 1:
        model = offered[0]
    elif model is None or (listed is not None and model not in {*offered, *aliases}):
        raise no_model(http.address.api, model, offered)
    server = named or _made_by({str(row.get("owned_by", "")).lower() for row in rows})
    served = ServedModel(http.address.api, model, server, await _version(http), offered=offered)
    return await _with_metrics(http, served, metrics)


def no_model(url: str, model: str | None, offered: tuple[str, ...]) -> ModelError:
    """The error for a model that isn't there, or wasn't named; with those that are there."""
    known = ", ".join(offered) or "none that it lists"
    if model is None:
        fact = f"{url} has these models: {known}."
    else:
        fact = f"{url} has no model {model!r}; it has: {known}."
    return ModelError(fact, "Name one with --model (--against-model).")


async def _models(http: Http) -> tuple[dict[str, Any] | None, str | None]:
    """The list of models, if it has one, and what made the server, if the answer tells."""
    url = f"{http.address.api}/models"
    answer = await http.get(url)
    named = "llama.cpp" if answer.headers.get("server") == "llama.cpp" else None
    http.refuse_for_good(answer.status_code, answer.text, url)
    if answer.status_code != 200:
        return None, named
    if shortened(answer.text) == "an HTML page":
        raise ServerError(
            f"{url} answers with an HTML page.", "Is it the address of the API? http://HOST:PORT."
        )
    try:
        return parsed(answer.text), named
    except BadAnswer as error:
        raise ServerError(
            http.clean(f"{url} {error.sentence}."),
            "Give the address of an OpenAI-compatible server.",
        ) from None


def _made_by(owners: set[str]) -> str | None:
    """Told from whom its models belong to."""
    if any("tensorrt" in owner for owner in owners):
        return "TensorRT-LLM"
    return next((_OWNERS[owner] for owner in owners if owner in _OWNERS), None)


async def _version(http: Http) -> str | None:
    import httpx

    try:
        answer = await http.client.get(
            f"{http.address.root}/version", headers=http.headers(), timeout=http.patience.look_s
        )
        found = parsed(answer.text).get("version") if answer.status_code == 200 else None
    except (httpx.HTTPError, BadAnswer):
        return None
    return whole_characters(found) if isinstance(found, str) else None


async def _with_metrics(http: Http, served: ServedModel, metrics: str | None) -> ServedModel:
    """Find the counters, or learn why there are none. Raises ServerError for a page that was
    named and isn't one."""
    why = ""
    for url in [metrics] if metrics else [f"{http.address.root}{path}" for path in _METRICS]:
        try:
            found = await asyncio.to_thread(scrape, url, headers=http.headers(url))
            read_counters(found, served.model)
        except (ServerError, SettingError) as error:
            if metrics:
                raise
            why = why or error.fact
        else:
            return replace(served, metrics=url)
    hint = _HINTS.get(served.server or "", "")
    return replace(served, no_metrics=f"{why} {hint}".strip())
