"""HTTP as pulling needs it: continue a file where it stopped, try again after a lost connection."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from paceline.errors import DownloadError
from paceline.models.catalog import file_size

RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each new try after a lost connection. After the last, pulling gives up."""

TIMEOUT_S = 60.0
CHUNK = 1 << 20
_ENOUGH = 1 << 20
"""Bytes an attempt must bring for the connection to count as working again."""

_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses that say "later", so they are tried again."""

Result = TypeVar("Result")


class Lost(Exception):
    """The connection failed in a way that another try may mend."""


class Busy(Lost):
    """The server answered that it can't answer now."""


class StatusError(DownloadError):
    """The server answered with an error status that won't go away by itself."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(
            f"{_host(url)} answered {status} {reason} for {_name(url)}.",
            "Check the index in PACELINE_INDEX_URL, or try again later.",
        )
        self.status = status


def get(url: str, headers: Mapping[str, str], authorization: str | None) -> HTTPResponse:
    """The open answer to a GET. Raises Lost, StatusError or DownloadError.

    `authorization` stays with the host it is for: redirects don't carry it.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"{url!r} is no http or https address.", "Check PACELINE_INDEX_URL.")
    request = urllib.request.Request(url, headers=dict(headers))
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as fault:
        fault.close()
        if fault.code in _PASSING:
            raise Busy(f"{_host(url)} answered {fault.code} {fault.reason}") from fault
        raise StatusError(url, fault.code, fault.reason) from fault
    except (ValueError, http.client.InvalidURL) as fault:
        raise DownloadError(f"{url!r} is no address.", "Check PACELINE_INDEX_URL.") from fault
    except (http.client.HTTPException, OSError) as fault:
        raise _connection_fault(url, fault) from fault
    return answer


def _connection_fault(url: str, fault: Exception) -> Exception:
    cause = fault.reason if isinstance(fault, urllib.error.URLError) else fault
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DownloadError(
            f"The certificate of {_host(url)} can't be verified ({cause.verify_message}).",
            "Set SSL_CERT_FILE to the file of the authorities to trust.",
        )
    reason = (isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__
    return Lost(f"{_host(url)}: {reason}")


def read(answer: HTTPResponse, amount: int = -1) -> bytes:
    """The next bytes of an answer as they come, at most `amount`; all of them for -1."""
    try:
        return answer.read() if amount < 0 else answer.read1(amount)
    except (http.client.HTTPException, OSError) as fault:
        raise Lost(str(fault) or type(fault).__name__) from fault


def persist(
    action: Callable[[], Result],
    delays: Sequence[float],
    brought: Callable[[], int] = lambda: 0,
) -> Result:
    """Run `action`, again after each delay while it is Lost; the last Lost goes to the caller.

    brought     bytes the action has brought so far. A try that brings a good many shows that the
                connection works, and the delays start over: a long pull survives many breaks.
    """
    tries, before = 0, brought()
    while True:
        try:
            return action()
        except Lost:
            if brought() - before >= _ENOUGH:
                tries = 0
            if tries == len(delays):
                raise
            time.sleep(delays[tries])
            tries, before = tries + 1, brought()


def resume(
    url: str,
    path: Path,
    size: int | None,
    authorization: str | None,
    at: Callable[[int, int | None], None],
) -> None:
    """One try at bringing the file at `path` to its full length, keeping the bytes it has.

    size    length the index tells, None if it doesn't
    at      told (bytes so far, bytes in all) after every chunk

    Raises Lost when the connection ends early. What came is kept. A server that ignores the
    request for the rest sends all: the file starts over.
    """
    have = file_size(path)
    if size is not None and have > size:
        have = 0
    if size is not None and have == size:
        return at(have, size)
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = get(url, asked, authorization)
    except StatusError as fault:
        if have and fault.status == 416:
            return None  # nothing is left to send; the checksum judges what is here
        raise
    with answer:
        if not _continues(answer, have):
            have = 0
        total = _total(answer, have, size)
        with path.open("ab" if have else "wb") as file:
            while chunk := read(answer, CHUNK):
                file.write(chunk)
                have += len(chunk)
                at(have, total)
    if total is not None and have < total:
        raise Lost(f"{_host(url)} closed the connection")
    return None


def _continues(answer: HTTPResponse, have: int) -> bool:
    return (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")


def _total(answer: HTTPResponse, have: int, size: int | None) -> int | None:
    length = answer.headers.get("Content-Length") or ""
    return have + int(length) if length.isdigit() else size


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _name(url: str) -> str:
    return urlsplit(url).path.rstrip("/").rsplit("/", 1)[-1] or "/"
