"""A package index on the loopback interface that misbehaves as told, and wheels to serve."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.models.catalog import DemoModel, ModelPart


@dataclass
class FakeIndex:
    """`wheels` maps file names to contents. The rest is how it misbehaves."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    hashes: bool = True
    wrong_hashes: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    """What the next requests for wheels are answered; 200 is as usual."""
    gate: threading.Event | None = None
    """If given, wheels are sent once it is set."""
    seen: list[str] = field(default_factory=list)
    """The wheels that were asked for."""
    pages: int = 0
    authorizations: set[str | None] = field(default_factory=set)

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
        self.authorizations.add(handler.headers["Authorization"])
        files = [file for file in self.wheels if file.split("-")[0].replace("_", "-") == name]
        if not files:
            return _answer(handler, 404, "text/plain", b"no such project")
        body = f"<html><body>{''.join(map(self._link, files))}</body></html>".encode()
        return _answer(handler, 200, "text/html; charset=utf-8", body)

    def _link(self, file: str) -> str:
        right = hashlib.sha256(self.wheels[file]).hexdigest()
        fragment = f"#sha256={self.wrong_hashes.get(file, right)}" if self.hashes else ""
        return f'<a href="../../files/{file}{fragment}">{file}</a><br/>'

    def _send_wheel(self, handler: BaseHTTPRequestHandler, file: str) -> None:
        self.seen.append(file)
        if self.gate:
            self.gate.wait(20)
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return _answer(handler, status, "text/plain", b"no")
        return _answer(handler, 200, "application/zip", self.wheels[file])


def _answer(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def make_wheel(name: str, member: str, content: bytes) -> bytes:
    """A wheel with the member, of the distribution `name` 1.2.0."""
    file, info = io.BytesIO(), f"{name}-1.2.0.dist-info"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.0\n"
        )
        tag = "Root-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\n{tag}")
        archive.writestr(f"{info}/RECORD", "")
    return file.getvalue()


SIZES = (200_000, 150_000)


def make_model() -> tuple[DemoModel, bytes, dict[str, bytes]]:
    """A small model in two parts, its bytes, and the wheels that hold them."""
    content = random.Random(5).randbytes(sum(SIZES))
    parts, wheels, start = [], {}, 0
    for n, size in enumerate(SIZES, 1):
        part = ModelPart(
            f"tiny-model-part{n}", "1.2.0", f"tiny_model_part{n}/data/part{n:02}.bin", size
        )
        wheel = make_wheel(f"tiny_model_part{n}", part.member, content[start : start + size])
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
