"""How servers are talked to: addresses, patience, keys that stay secret, and refusals."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from paceline.bench.server.answer import BadAnswer, message_of, parsed
from paceline.errors import ServerError, SettingError

if TYPE_CHECKING:
    import httpx

LONGEST_WAIT_S = 60.0
"""A server that wants to be asked again later than this is not asked again."""
_PASSING = frozenset({408, 429, *range(500, 600)})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, and how often is tried again.

    first_token_s, total_s    from sending the request
    look_s                    for the list of models and the like
    retries                   after a refusal for now (429, 5xx), or a connection that failed
    pause_s                   before the first of them, unless the server says; then twice as long
    """

    connect_s: float = 10.0
    first_token_s: float = 120.0
    total_s: float = 600.0
    look_s: float = 30.0
    retries: int = 4
    pause_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """`api` is where /chat/completions hangs; `root` the server itself."""

    api: str
    root: str

    @classmethod
    def of(cls, url: str, option: str = "URL") -> Address:
        """From what a user writes: http://host:8000, with /v1 or without.

        Raises SettingError for what is no such address, and for one that holds a password.
        """
        parts = checked_url(url if "://" in url else f"http://{url}", option)
        path = parts.path.rstrip("/")
        for tail in ("/chat/completions", "/completions", "/models"):
            path = path.removesuffix(tail)
        last = path.rpartition("/")[2]
        versioned = last[:1] == "v" and last[1:].isdecimal()
        root = path.removesuffix(f"/{last}") if versioned else path
        api = path if versioned else f"{path}/v1"
        base = (parts.scheme, parts.netloc)
        return cls(urlunsplit((*base, api, "", "")), urlunsplit((*base, root, "", "")))


def checked_url(url: str, option: str) -> SplitResult:
    """An address in its parts. Raises SettingError for what is none, and for one that holds a
    password or a query, which would be written and shown with it."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise SettingError(f"{option} is no address.", "Write http://HOST:PORT.") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SettingError(
            f"{option} has more than an address in it.",
            "Write http://HOST:PORT; a key goes into a variable: --api-key-env NAME.",
        )
    if not valid:
        raise SettingError(f"{option} is {url!r}.", "Write http://HOST:PORT.")
    return parts


class Passing(BadAnswer):
    """A refusal that may not last; `after_s` when the server wants to be asked again."""

    def __init__(self, kind: str, sentence: str, after_s: float | None = None) -> None:
        super().__init__(kind, sentence)
        self.after_s = after_s


class Http:
    """A client of one server: its address, the key for it, and how patient to be."""

    def __init__(
        self, client: httpx.AsyncClient, address: Address, key: str | None, patience: Patience
    ) -> None:
        self.client, self.address, self.patience = client, address, patience
        self._key = key
        self._rng = random.Random(0)

    def headers(self, url: str | None = None) -> dict[str, str]:
        """Of a request to the server, or to another address: the key goes to no other server."""
        headers = {"Accept-Encoding": "identity"}  # a compressor would hold pieces back
        same = url is None or urlsplit(url)[:2] == urlsplit(self.address.root)[:2]
        if self._key is not None and same:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    async def get(self, url: str) -> httpx.Response:
        """GET, patient with a server that is still loading. Raises ServerError if nobody is
        there."""
        import httpx

        for attempt in range(self.patience.retries + 1):
            try:
                answer = await self.client.get(
                    url, headers=self.headers(), timeout=self.patience.look_s
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = self.unreachable(error)
            else:
                if answer.status_code not in _PASSING:
                    return answer
                words = message_of(json_or_none(answer.text), answer.text)
                failure = ServerError(
                    self.clean(f"{url} answers {answer.status_code}: {words}."), "Try again later."
                )
            if attempt < self.patience.retries:
                await asyncio.sleep(self.pause(attempt, None))
        raise failure

    async def refusal(self, response: httpx.Response) -> BadAnswer:
        """What a status other than 200 means for one request.

        Raises ServerError where it is the same for every request.
        """
        text = (await response.aread()).decode("utf-8", errors="replace")
        status = response.status_code
        self.refuse_for_good(status, text, str(response.url))
        sentence = f"answered {status}: {message_of(json_or_none(text), text)}"
        if status in _PASSING:
            return Passing(
                f"http {status}", sentence, _seconds(response.headers.get("retry-after"))
            )
        return BadAnswer("http 404" if status == 404 else "http 4xx", sentence)

    def refuse_for_good(self, status: int, text: str, url: str) -> None:
        """Raise ServerError for a wrong key, and for a server that has moved."""
        if status in (401, 403):
            given = "the key that was given" if self._key else "a request without a key"
            words = message_of(json_or_none(text), text)
            raise ServerError(
                self.clean(f"{url} refuses {given} ({status}: {words})."),
                "Name the variable that holds the key: --api-key-env NAME.",
            )
        if 300 <= status < 400:
            raise ServerError(f"{url} answers {status}, a redirection.", "Give the new address.")

    def unreachable(self, error: Exception) -> ServerError:
        """The error for a server that can't be reached."""
        return ServerError(
            self.clean(f"{self.address.api} can't be reached: {said(error)}."),
            "Check the address, and that the server runs.",
        )

    def pause(self, attempt: int, asked_s: float | None) -> float:
        """Seconds before the next attempt: what the server asks for, or twice as long each time,
        scattered so that clients don't come back together."""
        if asked_s is not None:
            return asked_s
        return min(self.patience.pause_s * 2.0**attempt, 20.0) * self._rng.uniform(0.75, 1.25)

    def clean(self, text: str) -> str:
        """A server's words without the key, which some repeat."""
        return text.replace(self._key, "***") if self._key else text


def json_or_none(text: str) -> object:
    """The parsed value of a text; None where it is not JSON."""
    try:
        return parsed(text)
    except BadAnswer:
        return None


def said(error: Exception) -> str:
    """What an exception says, or else its name."""
    return str(error) or type(error).__name__


def _seconds(header: str | None) -> float | None:
    """Of a Retry-After header: seconds, or a date."""
    if header is None:
        return None
    try:
        return max(float(header), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except ValueError:
        return None
