"""A model's chat template, where the library that runs the model doesn't apply it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from paceline.engines.tokenizer import Message
from paceline.errors import PromptError


class _Generation(jinja2.ext.Extension):  # type: ignore[misc]
    """Templates may mark what the assistant said, for training; here the mark means nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, messages: Sequence[Message], begin: str, end: str) -> str:
    """A chat as text, with the names and filters that chat templates are written for. Templates
    come with models from anywhere, so they run in a sandbox. Raises PromptError where the template
    refuses the messages."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        text: str = environment.from_string(template).render(
            messages=[dict(message) for message in messages],
            tools=None,  # templates ask whether they are none, which an unknown name isn't
            documents=None,
            add_generation_prompt=True,
            bos_token=begin,
            eos_token=end,
        )
        return text
    except Exception as error:  # whatever a template does with messages it wasn't made for
        raise PromptError(
            f"The model's chat template refuses the messages: {error}.",
            "Change them, or give a raw prompt.",
        ) from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
