"""One line of a file of prompts, whatever its form: what was asked, and what was answered.

The form is told from the line itself. Forms, where they are documented:

    {"prompt": …} or {"messages": […]}                    ours; with "completion", or a last
                                                          assistant message, as for fine-tuning
    {"request": {…}, "response": {…}}                     what proxies in front of a server keep
    {"custom_id": …, "body": {…}}                         OpenAI's batch input, and its output
    {"custom_id": …, "response": {"body": {…}}}           (API reference, "Batch")
    {"messages": […], "response": {…}, "call_type": …}    LiteLLM's standard logging payload
    {"question_id": …, "category": …, "turns": […]}       Spec-Bench and MT-bench

Every function here raises ValueError with what a line does wrong, to go behind "Line 7".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.engines.tokenizer import Message

SETTINGS = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed")
"""Settings of a request that measuring replaces by its own."""

NOTES = {
    "failed": "got an error in place of an answer; what they asked is kept",
    "no text": "got an answer that is no text; what they asked is kept",
    "several": "got several answers; the first is taken",
    "reasoning": "got an answer with reasoning before it, of which only the answer is taken",
    "format": "asked for a response_format, which is not enforced here",
}

_REQUESTS = ("prompt", "messages", "input")
_RESPONSES = ("choices", "output", "error")
_TEXT_PARTS = {"text", "input_text", "output_text"}
_REDACTED = "redacted-by-litellm"
_STREAMED = "is a streaming chunk; log whole responses"


@dataclass(frozen=True, slots=True)
class PromptLine:
    """What a line asks.

    turns        each question after the first, of a benchmark that asks in turns
    answer       None: the line holds none, or one that is no text
    cut          the answer ended at its most tokens
    raw          the prompt was continued as it stood; None: the line doesn't say
    settings     names of the request's own settings
    notes      keys of NOTES: what has to be said of such lines, once for the file
    """

    messages: tuple[Message, ...]
    turns: tuple[str, ...] = ()
    answer: str | None = None
    cut: bool = False
    raw: bool | None = None
    id: str | None = None
    category: str = "all"
    model: str | None = None
    settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """What a response holds: its text, if it is text, whether it was cut, and what must be said
    of it."""

    text: str | None
    notes: tuple[str, ...] = ()
    model: str | None = None
    raw: bool | None = None
    cut: bool = False


def batch_id(row: Any) -> str | None:
    """The `custom_id` by which a batch's input and output lines belong together."""
    return _text_of(row, "custom_id") if isinstance(row, dict) else None


def is_batch_output(row: Any) -> bool:
    """Whether a line only holds the response to another one."""
    asks = {"body", "request", "messages", "prompt"}
    return batch_id(row) is not None and "response" in row and not asks & set(row)


def read_line(row: Any, response: Any = None) -> PromptLine:
    """A line's content. `response` is the one of its batch output line, if that was found."""
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")
    if "turns" in row:
        return _named(_question(row), row)
    if is_batch_output(row):
        raise ValueError("is a batch output without its input; put both into one file")
    request = _request(row)
    given = response if response is not None else _response(row)
    answer = read_answer(given)
    messages = _asked(request, nested=request is not row)
    if messages[-1]["role"] == "assistant":
        if given is not None:
            raise ValueError("ends in an assistant message and has an answer too")
        answer, messages = PromptAnswer(messages[-1]["content"]), messages[:-1]
    if not any(message["content"].strip() for message in messages):
        raise ValueError("has an empty prompt")
    if any(message["content"] == _REDACTED for message in messages):
        raise ValueError("was redacted when it was logged")
    line = PromptLine(
        messages,
        answer=answer.text or None,
        cut=answer.cut,
        raw=_is_raw(row, request, messages, answer),
        model=_sound(answer.model or _text_of(request, "model") or "") or None,
        settings=tuple(name for name in SETTINGS if request.get(name) is not None),
        notes=answer.notes + _constraints(request),
    )
    return _named(line, row)


def _named(line: PromptLine, row: Mapping[str, Any]) -> PromptLine:
    keys = ("id", "question_id", "custom_id", "request_id")
    found = [_sound(str(row[key])) for key in keys if isinstance(row.get(key), str | int)]
    category = row.get("category")
    category = "all" if category is None else _sound(str(category))
    return replace(line, id=found[0] if found else None, category=category)


def _question(row: Mapping[str, Any]) -> PromptLine:
    """One question of Spec-Bench; its `reference` is a person's answer, so nothing to replay."""
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise ValueError("has turns that are no list of texts")
    if not all(turn.strip() for turn in turns):
        raise ValueError("has an empty turn")
    if len(turns) > 2:
        raise ValueError(f"has {len(turns)} turns, and at most 2 can be asked")
    return PromptLine(
        ({"role": "user", "content": _sound(turns[0])},), tuple(map(_sound, turns[1:]))
    )


def _request(row: dict[str, Any]) -> dict[str, Any]:
    """The part of a line that holds the request; the line itself in the plain forms."""
    found = row
    for key in ("request", "body"):
        if key in found:
            inner = _unpacked(found[key], _REQUESTS)
            if not isinstance(inner, dict):
                raise ValueError(f"has a {key} that is not a JSON object")
            found = inner
    if isinstance(row.get("model_parameters"), dict):  # LiteLLM keeps tools and settings there
        found = {**row["model_parameters"], **found}
    url = row.get("url")
    if isinstance(url, str) and not url.endswith(("/completions", "/responses")):
        raise ValueError(f"asks {url}, which answers no prompt")
    return found


def _unpacked(value: Any, keys: tuple[str, ...]) -> Any:
    """The object in a text of JSON, as some logs keep bodies, if it has one of these keys; else
    the value itself, for an answer may be JSON too."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return inner if any(key in inner for key in keys) else value
    return value


def _response(row: Mapping[str, Any]) -> Any:
    """What a line says was answered, behind what it asks."""
    if _is_chunk(row):
        raise ValueError(_STREAMED)
    if row.get("status") == "failure":
        return {"error": row.get("error_str") or "failure"}
    for key in ("response", "completion"):
        if row.get(key) not in (None, {}, ""):
            return _unpacked(row[key], _RESPONSES) if "request" in row else row[key]
    if isinstance(row.get("output"), str):
        return row["output"]
    return row if "choices" in row or "output" in row else None


def _asked(request: Mapping[str, Any], nested: bool) -> tuple[Message, ...]:
    if request.get("tools") or request.get("functions"):
        raise ValueError("asks with tools, whose descriptions would be missing from the prompt")
    if request.get("previous_response_id") is not None:
        raise ValueError("goes on from an earlier response that it doesn't hold")
    # `input` is the Responses API's; in the line itself it may be anything.
    keys = _REQUESTS if nested else ("prompt", "messages")
    given = {key: request[key] for key in keys if request.get(key) is not None}
    if len(given) > 1:
        raise ValueError(f"has both a {' and '.join(given)}")
    if not given:
        if request.get("choices") is not None:
            raise ValueError("is a response without its request")
        raise ValueError("has neither a prompt text nor messages")
    [(key, value)] = given.items()
    if key != "messages" and isinstance(value, str):
        messages: tuple[Message, ...] = ({"role": "user", "content": _sound(value)},)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        messages = tuple(map(_message, value))
    elif key == "prompt" and isinstance(value, list):
        raise ValueError("has several prompts, or tokens in place of text")
    else:
        raise ValueError("has neither a prompt text nor messages")
    instructions = request.get("instructions")
    if key == "input" and isinstance(instructions, str):
        messages = ({"role": "system", "content": _sound(instructions)}, *messages)
    return messages


def _message(message: Mapping[str, Any]) -> Message:
    role, content = message.get("role"), message.get("content")
    if message.get("tool_calls") or message.get("function_call") or role in ("tool", "function"):
        raise ValueError("has a tool call among its messages, and only text can be measured")
    if not isinstance(role, str) or content is None:
        raise ValueError("has a message without role and content texts")
    # OpenAI's newer name of the system role, which chat templates don't know.
    return {"role": "system" if role == "developer" else role, "content": _content(content)}


def _content(content: Any) -> str:
    """A message's text; parts of it are joined by a line break, as servers do for templates that
    take texts only."""
    if isinstance(content, str):
        return _sound(content)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError("has a message without role and content texts")
    for part in content:
        if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError(f"has a part of type {part.get('type')}, and only text is measured")
    return "\n".join(_sound(part["text"]) for part in content)


def _sound(text: str) -> str:
    """The text, unless it holds half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("has a character that is no text") from None
    return text


def read_answer(response: Any) -> PromptAnswer:
    """The answer in a response: a text, a message, a server's response, or a batch's with its
    `body`. None where the request failed or the answer isn't text."""
    if response is None or isinstance(response, str):
        return PromptAnswer(response and _sound(response))
    if isinstance(response, list):
        if response and all(isinstance(each, dict) and "role" in each for each in response):
            return _of_message(response[-1])
        raise ValueError(_STREAMED if any(map(_is_chunk, response)) else _no_answer(response))
    if not isinstance(response, dict):
        raise ValueError(_no_answer(response))
    if response.get("error") is not None or _failed(response):
        return PromptAnswer(None, ("failed",))
    if "body" in response:
        return read_answer(_unpacked(response["body"], _RESPONSES))
    if _is_chunk(response):
        raise ValueError(_STREAMED)
    if "role" in response and "choices" not in response:
        return _of_message(response)
    if isinstance(response.get("output"), list):
        answer = _of_output(response["output"], cut=response.get("status") == "incomplete")
    elif isinstance(response.get("choices"), list) and response["choices"]:
        answer = _of_choices(response["choices"])
    else:
        raise ValueError(_no_answer(response))
    raw = True if response.get("object") == "text_completion" else answer.raw
    return replace(answer, model=_text_of(response, "model"), raw=raw)


def _no_answer(response: Any) -> str:
    return f"has a response of another form ({type(response).__name__})"


def _failed(response: Mapping[str, Any]) -> bool:
    status = response.get("status_code", response.get("status"))
    return isinstance(status, int) and status >= 400


def _is_chunk(response: Any) -> bool:
    if not isinstance(response, dict):
        return False
    choices = response.get("choices")
    return response.get("object") == "chat.completion.chunk" or (
        isinstance(choices, list) and any(isinstance(c, dict) and "delta" in c for c in choices)
    )


def _of_choices(choices: list[Any]) -> PromptAnswer:
    first = choices[0]
    if not isinstance(first, dict):
        raise ValueError("has a choice that is not a JSON object")
    some = ("several",) if len(choices) > 1 else ()
    cut = first.get("finish_reason") == "length"
    if isinstance(first.get("text"), str):
        return PromptAnswer(_sound(first["text"]), some, raw=True, cut=cut)
    message = first.get("message")
    if not isinstance(message, dict):
        raise ValueError("has a choice without a message or a text")
    answer = _of_message(message)
    return replace(answer, notes=some + answer.notes, cut=cut)


def _of_message(message: Mapping[str, Any]) -> PromptAnswer:
    if message.get("tool_calls") or message.get("function_call"):
        return PromptAnswer(None, ("no text",))
    content = message.get("content")
    if not content:
        return PromptAnswer(None, ("no text",))
    thought = message.get("reasoning_content") or message.get("reasoning")
    return PromptAnswer(_content(content), ("reasoning",) if thought else ())


def _of_output(output: list[Any], *, cut: bool) -> PromptAnswer:
    """The message among a Responses API answer's items."""
    items = [item for item in output if isinstance(item, dict)]
    messages = [item for item in items if item.get("type") == "message"]
    if not messages:
        return PromptAnswer(None, ("no text",))
    answer = _of_message(messages[-1])
    thought = any(item.get("type") == "reasoning" for item in items)
    return replace(answer, notes=answer.notes + (("reasoning",) if thought else ()), cut=cut)


def _is_raw(
    row: Mapping[str, Any],
    request: Mapping[str, Any],
    messages: tuple[Message, ...],
    answer: PromptAnswer,
) -> bool | None:
    """Whether a request went to the endpoint that continues a text as it stands, by what it was
    answered with or where it went; None if neither is known."""
    if answer.raw and len(messages) == 1:
        return True
    if not isinstance(request.get("prompt"), str):
        return False
    url = row.get("url")
    return True if isinstance(url, str) and url.endswith("/completions") else None


def _constraints(request: Mapping[str, Any]) -> tuple[str, ...]:
    form = request.get("response_format")
    return ("format",) if isinstance(form, dict) and form.get("type") != "text" else ()


def _text_of(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    return value if isinstance(value, str) else None
