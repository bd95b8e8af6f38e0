"""A client of one OpenAI-compatible server, made for measuring: answers are streamed, and each
piece is stamped when its bytes arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from paceline.bench.prompts.workload import WorkloadPrompt
from paceline.bench.server.answer import Answer, AnswerReading, BadAnswer
from paceline.bench.server.http import (
    LONGEST_WAIT_S,
    Address,
    Http,
    Passing,
    Patience,
    checked_url,
    said,
)
from paceline.bench.server.served import ServedModel, introduce, no_model
from paceline.errors import ServerError, SettingError
from paceline.monitor.counters import Counters, read_counters
from paceline.monitor.scrape import scrape
from paceline.types import Sampling

_IDLE_S = 4.0  # servers commonly close a connection after 5 s, perhaps as we send
WARM_UP = WorkloadPrompt(
    "warm-up", "warm-up", ({"role": "user", "content": "Name three rivers of Asia, and stop."},)
)


class ServerClient:
    """A server that has been found to answer. Made by `connect`.

    fields           sent with every request
    counts_tokens    whether it is asked for, and gives, the number of tokens
    counts_up        whether its counters reach the number of tokens that it gave
    """

    def __init__(self, http: Http, served: ServedModel) -> None:
        self.http, self.served = http, served
        self.fields: Mapping[str, Any] = {}
        self.counts_tokens = True
        self.counts_up = True

    def counters(self) -> Counters | None:
        """What the server has counted so far; None if it can't be read (now)."""
        metrics = self.served.metrics
        if metrics is None:
            return None
        try:
            return read_counters(
                scrape(metrics, headers=self.http.headers(metrics)), self.served.model
            )
        except (ServerError, SettingError):
            return None

    async def warm_up(self, *, raw: bool = False) -> Answer:
        """One short answer, apart from what is measured.

        raw    without a chat template, which the model may not have

        Raises ServerError if the server refuses such requests: then it would refuse all.
        """
        prompt, few = replace(WARM_UP, raw=raw), {"max_tokens": 8}
        answer = await self.ask(prompt, few)
        if answer.failure_kind == "http 4xx" and "stream_options" in (answer.failure or ""):
            self.counts_tokens = False
            answer = await self.ask(prompt, few)
        if answer.failure is not None:
            raise ServerError(
                f"{self.served.url} gives no answer to a first request: {answer.failure}.",
                "Repair that, then measure.",
            )
        self.counts_tokens = answer.output_tokens is not None
        return answer

    async def ask(self, prompt: WorkloadPrompt, options: Mapping[str, Any] | None = None) -> Answer:
        """One prompt's answer, or what went wrong with it.

        Raises ServerError where no prompt would fare better: nobody is there, or the key or model
        is wrong.
        """
        path, holding = path_and_body(prompt)
        body = {"model": self.served.model, **self.fields, **(options or {}), **holding}
        body["stream"] = True
        if self.counts_tokens:
            body["stream_options"] = {"include_usage": True}
        retries, asked = 0, time.perf_counter()
        scrape = AnswerReading(asked)
        while True:
            failure = await self._read(path, body, scrape)
            answer = scrape.answer(time.perf_counter(), retries=retries, asked=asked)
            if failure is None:
                return answer
            pause = self._pause(failure, retries)
            if pause is None:
                return self._failed(answer, failure)
            retries += 1
            await asyncio.sleep(pause)
            scrape = AnswerReading(time.perf_counter())

    async def _read(
        self, path: str, body: Mapping[str, Any], scrape: AnswerReading
    ) -> BadAnswer | None:
        """One attempt, read as it comes; gives what went wrong with it."""
        import httpx

        patience = self.http.patience
        began = asyncio.get_running_loop().time()
        first_s = min(patience.first_token_s, patience.total_s)
        try:
            async with asyncio.timeout_at(began + first_s) as limit:
                async with self.http.client.stream(
                    "POST",
                    f"{self.http.address.api}{path}",
                    json=body,
                    headers=self.http.headers(),
                ) as response:
                    if response.status_code != 200:
                        return await self.http.refusal(response)
                    if "event-stream" not in response.headers.get("content-type", ""):
                        scrape.take_whole((await response.aread()).decode(errors="replace"))
                    else:
                        async for data in response.aiter_raw():
                            scrape.take_bytes(data, time.perf_counter())
                            if scrape.first is not None:
                                limit.reschedule(began + patience.total_s)
        except TimeoutError:
            if scrape.first is None:
                return BadAnswer("timeout", f"no token within {first_s:g} s")
            return BadAnswer("timeout", f"not finished within {patience.total_s:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Passing("unreachable", self.http.unreachable(error).fact)
        except httpx.HTTPError as error:
            if scrape.first is None:
                return Passing("no answer", f"the connection broke: {said(error)}")
            return BadAnswer("cut off", f"cut off: {said(error)}")
        except BadAnswer as error:
            return error
        if not scrape.complete:
            return BadAnswer("cut off", "cut off: it ended without a finish reason")
        return None

    def _pause(self, failure: BadAnswer, retries: int) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if not isinstance(failure, Passing) or retries >= self.http.patience.retries:
            return None
        pause = self.http.pause(retries, failure.after_s)
        return pause if pause <= LONGEST_WAIT_S else None

    def _failed(self, answer: Answer, failure: BadAnswer) -> Answer:
        """What had come, without times that would be of no answer. Raises ServerError where every
        request would fail so."""
        sentence = self.http.clean(failure.sentence)
        if failure.kind == "unreachable":
            raise ServerError(sentence, "Check the address, and that the server runs.")
        if failure.kind == "http 404":
            if self.served.offered and "model" in sentence.lower():
                raise no_model(self.served.url, self.served.model, self.served.offered)
            raise ServerError(
                f"{self.served.url} {sentence}.",
                "Give the address of an OpenAI-compatible server, and a model it has (--model).",
            )
        return replace(
            answer, decode_s=None, total_s=None, failure=sentence, failure_kind=failure.kind
        )


@asynccontextmanager
async def connect(
    url: str,
    *,
    model: str | None = None,
    key: str | None = None,
    metrics: str | None = None,
    patience: Patience | None = None,
    option: str = "URL",
) -> AsyncIterator[ServerClient]:
    """A client of the server at `url`, introduced.

    model     which of its models; None if it has only one
    key       for its Authorization header
    metrics      of its counters; by default /metrics of the server, if there is one
    option    what the address is called in messages

    Raises ServerError, ModelError and SettingError, as `introduce` does.
    """
    for needed in ("httpx", "prometheus_client"):
        if find_spec(needed) is None:
            raise SettingError(
                f"Measuring a server needs {needed}, which is not installed.",
                "Run: pip install 'paceline[endpoint]'.",
            )
    import httpx

    patience = patience or Patience()
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S
    )
    timeout = httpx.Timeout(None, connect=patience.connect_s)
    async with httpx.AsyncClient(timeout=timeout, limits=limits) as client:
        if metrics is not None:
            checked_url(metrics, "--metrics" if option == "URL" else f"{option}-metrics")
        http = Http(client, Address.of(url, option), key, patience)
        yield ServerClient(http, await introduce(http, model, metrics))


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
