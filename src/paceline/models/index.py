"""The package index: which one, and where in it the wheel of an exact version is.

Reads the simple API, in JSON (PEP 691) where the index has it and in HTML (PEP 503) where not.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from paceline.errors import DownloadError
from paceline.models.fetch import StatusError, get, read

DEFAULT_INDEX = "https://pypi.org/simple"

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in an index. The index may leave out `size` (bytes) and, if it must, `sha256`."""

    file: str
    url: str
    sha256: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class Index:
    """A package index. `authorization` is the header for its host, kept out of `url` and so out
    of every message."""

    url: str
    authorization: str | None = None

    @classmethod
    def from_url(cls, url: str) -> Index:
        """The index at `url`, which may hold a user name and password."""
        try:
            pieces = urlsplit(url.strip().rstrip("/"))
        except ValueError as fault:
            raise DownloadError(f"{url!r} is no address.", "Check PACELINE_INDEX_URL.") from fault
        user, found, host = pieces.netloc.rpartition("@")
        clean = urlunsplit(pieces._replace(netloc=host))
        if not found:
            return cls(clean)
        coded = base64.b64encode(unquote(user).encode()).decode()
        return cls(clean, f"Basic {coded}")

    def authorization_for(self, url: str) -> str | None:
        """The header for a file the index points to: only its own host gets it."""
        ours, theirs = urlsplit(self.url), urlsplit(url)
        same = (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)
        return self.authorization if same else None

    def find(self, distribution: str, version: str) -> Wheel:
        """The wheel of this version. Raises DownloadError if the index hasn't got it, Lost if the
        index can't be reached now."""
        wheels = list(self._wheels(distribution))
        for wheel in wheels:
            if _is_wheel_of(wheel.file, distribution, version):
                return wheel
        raise DownloadError(
            f"The index at {self.url} has no wheel of {distribution} {version}.",
            "Set PACELINE_INDEX_URL to an index that has it, such as " + DEFAULT_INDEX + ".",
        )

    def _wheels(self, distribution: str) -> Iterator[Wheel]:
        page = f"{self.url}/{_normal(distribution)}/"
        try:
            answer = get(page, {"Accept": _ACCEPT}, self.authorization)
        except StatusError as fault:
            if fault.status not in (404, 410):
                raise
            raise DownloadError(
                f"The index at {self.url} has no distribution named {distribution}.",
                "Set PACELINE_INDEX_URL to an index that has it, such as " + DEFAULT_INDEX + ".",
            ) from fault
        with answer:
            body, where = read(answer), answer.geturl()
            kind = answer.headers.get_content_type()
        try:
            text = body.decode()
            yield from _from_json(text, where) if kind.endswith("json") else _from_html(text, where)
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise DownloadError(
                f"The index at {self.url} sent a page about {distribution} that can't be read.",
                "Check that PACELINE_INDEX_URL is the address of a package index.",
            ) from fault


def chosen_index() -> Index:
    """The index to use: $PACELINE_INDEX_URL, $PIP_INDEX_URL, pip's configured one, or PyPI."""
    for variable in ("PACELINE_INDEX_URL", "PIP_INDEX_URL"):
        if url := os.environ.get(variable):
            return Index.from_url(url)
    return Index.from_url(_pip_setting() or DEFAULT_INDEX)


def _pip_setting() -> str | None:
    """pip's `global.index-url`: whoever installed us through a mirror gets the models there too."""
    # Not `pip config get`: that reads one of pip's files, `list` reads them all.
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^global\.index-url='(.+)'$", answer.stdout, re.MULTILINE)
    return found[1] if found else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_wheel_of(file: str, distribution: str, version: str) -> bool:
    if not file.endswith("-none-any.whl"):
        return False
    name, found = file.split("-")[:2]
    return _normal(name) == _normal(distribution) and found == version


def _from_json(text: str, where: str) -> Iterator[Wheel]:
    for file in json.loads(text)["files"]:
        size = file.get("size")
        yield Wheel(
            file["filename"],
            urljoin(where, file["url"]),
            file["hashes"].get("sha256", "").lower() or None,
            size if isinstance(size, int) else None,
        )


def _from_html(text: str, where: str) -> Iterator[Wheel]:
    parser = _Links()
    parser.feed(text)
    for href in parser.links:
        url, fragment = urldefrag(urljoin(where, href))
        file = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
        kind, _, digest = fragment.partition("=")
        yield Wheel(file, url, digest.lower() if kind == "sha256" and digest else None, None)


class _Links(HTMLParser):
    """The addresses of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
