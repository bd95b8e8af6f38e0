"""What every manifest shares: names and amounts that a cluster takes, and YAML that reads back as
it was meant.

The rules are Kubernetes' own (apimachinery's `validation` package); what breaks one is refused
here, with the rule, and not by the cluster.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from paceline.errors import SettingError

LABEL = 63
"""Most characters of a name that becomes a part of a host's name, and of a label's value."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?", re.ASCII)
# The reference grammar of container images: a registry, which has a dot or a port or is
# `localhost`; a path of lower-case names; a tag; a digest.
_HOST_PART = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})+(?::\d{{1,5}})?|{_HOST_PART}:\d{{1,5}}|localhost)"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
    r"(?::(?P<tag>[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}))?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def label_name(text: str, what: str, most: int = LABEL) -> str:
    """A name as RFC 1123 has a label: of namespaces. Raises SettingError."""
    return _named(text, what, _LABEL, most, "lower-case letters, digits and inner dashes")


def service_name(text: str, what: str, most: int = LABEL) -> str:
    """The same, beginning with a letter (RFC 1035): of Services, and of what shares their name."""
    _named(text, what, _LABEL, most, "lower-case letters, digits and inner dashes")
    if text[0].isdigit():
        raise SettingError(
            f"{what} {text!r} begins with a digit, which a Service's may not.",
            "Let it begin with a letter.",
        )
    return text


def object_name(text: str, what: str) -> str:
    """A name as RFC 1123 has a subdomain: of Secrets and PersistentVolumeClaims."""
    return _named(text, what, _SUBDOMAIN, 253, "lower-case letters, digits and inner - or .")


def _named(text: str, what: str, rule: re.Pattern[str], most: int, of: str) -> str:
    if not rule.fullmatch(text):
        raise SettingError(
            f"{what} {text!r} is not one that Kubernetes takes.", f"It may have {of}."
        )
    if len(text) > most:
        raise SettingError(
            f"{what} {text!r} has {len(text)} characters, and {most} are the most.", "Shorten it."
        )
    return text


def short_name(text: str, most: int = LABEL) -> str:
    """What comes nearest to a text and is a Service's name: `Qwen/Qwen2.5-1.5B` gives
    `qwen2-5-1-5b`."""
    last = re.sub(r"\.gguf$", "", text.rstrip("/").rsplit("/", 1)[-1], flags=re.IGNORECASE)
    name = re.sub(r"[^a-z0-9]+", "-", last.lower(), flags=re.ASCII).strip("-")
    if not name[:1].isalpha():
        name = f"model-{name}"
    return name[:most].strip("-")


def label(text: str, what: str) -> tuple[str, str]:
    """A label from `KEY=VALUE`. Raises SettingError for one that Kubernetes would refuse."""
    key, equals, value = text.partition("=")
    prefix, slash, name = key.rpartition("/")
    if not equals:
        raise SettingError(f"{what} {text!r} has no value.", "Write KEY=VALUE.")
    if slash:
        _named(prefix, f"{what}'s prefix", _SUBDOMAIN, 253, "what a domain has")
    _named(name, f"{what}'s key", _LABEL_NAME, LABEL, "letters, digits and inner - _ .")
    return key, label_value(value, f"{what}'s value")


def label_value(text: str, what: str) -> str:
    """A label's value, which may be empty."""
    if not text:
        return text
    return _named(text, what, _LABEL_NAME, LABEL, "letters, digits and inner - _ .")


def image_name(text: str) -> str:
    """A reference to a container image. Raises SettingError."""
    if not _IMAGE.fullmatch(text):
        raise SettingError(
            f"Image {text!r} is no reference to a container image.",
            "Write it as registry/path:tag, or with @sha256: and its digest.",
        )
    return text


def image_tag(text: str) -> str | None:
    """The tag of an image's reference; None if it has none."""
    found = _IMAGE.fullmatch(text)
    return found["tag"] if found else None


def quantity(text: str, what: str, *, whole: bool = False) -> str:
    """An amount of CPU or (`whole`) of memory, above 0. Raises SettingError."""
    found = _QUANTITY.fullmatch(text)
    if not found or Decimal(found[1]) == 0:
        raise SettingError(
            f"{what} {text!r} is no amount that Kubernetes takes.",
            "Write a number above 0, with a unit: 500m or 4 of CPU, 16Gi of memory.",
        )
    if whole and found[2] == "m":
        raise SettingError(
            f"{what} {text!r} means thousandths of a byte.", f"Write {found[1]}Mi for mebibytes."
        )
    return text


def plain_text(text: str, what: str) -> str:
    """A text that a command line can hold. Raises SettingError for one with characters that no
    terminal and no YAML shows."""
    for character in text:
        if not character.isprintable():
            raise SettingError(
                f"{what} {text!r} has the character U+{ord(character):04X} in it.", "Leave it out."
            )
    return text


def literal(arguments: Iterable[str]) -> list[str]:
    """Arguments that reach the program as they are: the kubelet reads `$(NAME)` as a variable, and
    `$$` as a dollar."""
    return [plain_text(argument, "Argument").replace("$", "$$") for argument in arguments]


def written(objects: Sequence[Mapping[str, Any]], notes: Iterable[str]) -> str:
    """Objects as YAML documents under their remarks. Raises SettingError if PyYAML is missing."""
    documents = (as_yaml(one) for one in objects)
    return "\n".join(comment(notes)) + "\n" + "---\n".join(documents)


def as_yaml(value: Mapping[str, Any]) -> str:
    """A mapping as block YAML. Strings that any reader could take for something else are quoted:
    Kubernetes reads YAML 1.1 with Go's rules, where `1e3`, `y` and `0o17` are no strings."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise SettingError(
            "Manifests are written with PyYAML, which isn't installed.",
            "Install it: pip install 'paceline[export]'.",
        ) from None

    def indented(writer: Any, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG001
        yaml.SafeDumper.increase_indent(writer, flow, False)

    def text(writer: Any, data: str) -> Any:
        return writer.represent_scalar("tag:yaml.org,2002:str", data, style=_style(data))

    # A part that is used twice is written twice, and lists stand under their key's text.
    own = {"ignore_aliases": lambda *_: True, "increase_indent": indented}
    writer: Any = type("Writer", (yaml.SafeDumper,), own)
    writer.add_representer(str, text)
    found: str = yaml.dump(
        value,
        Dumper=writer,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=10**6,
    )
    return found


def _style(text: str) -> str | None:
    """How a string is written: bare, as lines, in single or in double quotes, which alone have
    escapes."""
    if _UNMISTAKABLE.fullmatch(text) and text.lower().lstrip("-") not in _WORDS:
        return None
    if not text.replace("\n", "").isprintable():
        return '"'
    return "|" if "\n" in text else "'"


_WORDS = frozenset(
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"]
)
_UNMISTAKABLE = re.compile(r"(--?)?[A-Za-z/]([-A-Za-z0-9_./:]*[-A-Za-z0-9_./])?", re.ASCII)


def comment(notes: Iterable[str], width: int = 98) -> list[str]:
    """Lines of a comment, a paragraph a remark, each as `one_line` has it."""
    lines: list[str] = []
    for note in notes:
        paragraph = textwrap.wrap(
            one_line(note), width - 2, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"# {line}" for line in paragraph]
    return lines


def one_line(text: str) -> str:
    """A text that neither leaves its line nor tells a terminal anything: every run of spaces, line
    ends among them, is one space, and what can't be printed is `?`."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
