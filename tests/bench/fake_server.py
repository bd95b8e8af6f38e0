"""A small OpenAI-compatible server on this machine that behaves, or misbehaves, as told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Handler = Any
Behaviour = Callable[["FakeServer", Handler, dict[str, Any]], None]


@dataclass
class FakeServer:
    """Answers "w0 w1 …": as many words as `words` of the prompt's text gives, `per_piece` a piece.

    behave      what a POST gets instead; called with the server, the handler, and the request
    metrics        text of /metrics; None: 404
    """

    words: Callable[[str], int] = lambda text: 6
    per_piece: int = 2
    pause_s: float = 0.0
    usage: bool = True
    reasoning: int = 0
    behave: list[Behaviour] = field(default_factory=list)
    models: Any = field(default_factory=lambda: {"data": [{"id": "m", "owned_by": "vllm"}]})
    models_status: int = 200
    metrics: Callable[[FakeServer], str] | None = None
    key: str | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tokens: int = 0
    running: int = 0
    most_running: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prompts(self) -> list[Any]:
        """What was asked, the warm-up left out."""
        return [body for body in self.seen if body["max_tokens"] != 8]


def text_of(body: dict[str, Any]) -> str:
    return body["prompt"] if "prompt" in body else body["messages"][-1]["content"]


def send(handler: Handler, status: int, body: Any, **headers: str) -> None:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) and body.startswith("<") else "application/json"
    handler.send_response(status)
    for name, value in {"Content-Type": kind, **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def start_stream(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True


def event(handler: Handler, document: Any) -> None:
    data = document if isinstance(document, str) else json.dumps(document)
    handler.wfile.write(f"data: {data}\n\n".encode())
    handler.wfile.flush()


def piece(body: dict[str, Any], text: str, *, thought: bool = False) -> dict[str, Any]:
    if "prompt" in body:
        return {"choices": [{"text": text, "finish_reason": None}]}
    name = "reasoning_content" if thought else "content"
    return {"choices": [{"delta": {name: text}, "finish_reason": None}]}


def stream(server: FakeServer, handler: Handler, body: dict[str, Any]) -> None:
    """A well-behaved answer."""
    count = min(server.words(text_of(body)), body["max_tokens"])
    start_stream(handler)
    if "messages" in body:
        event(handler, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for first in range(0, count, server.per_piece):
        time.sleep(server.pause_s)
        words = range(first, min(first + server.per_piece, count))
        text = "".join(f"w{i} " for i in words)
        event(handler, piece(body, text, thought=first < server.reasoning))
    end = piece(body, "")
    end["choices"][0]["finish_reason"] = "length" if count == body["max_tokens"] else "stop"
    event(handler, end)
    with server.lock:
        server.tokens += count
    if server.usage and (body.get("stream_options") or {}).get("include_usage"):
        event(handler, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})
    event(handler, "[DONE]")


class _Handler(BaseHTTPRequestHandler):
    server_version, protocol_version = "fake", "HTTP/1.1"

    @property
    def fake(self) -> FakeServer:
        return self.server.fake  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.fake.headers.append(dict(self.headers))
        if self.path == "/v1/models":
            send(self, self.fake.models_status, self.fake.models)
        elif self.path == "/metrics" and self.fake.metrics is not None:
            send(self, 200, self.fake.metrics(self.fake))
        else:
            send(self, 404, {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            fake.headers.append(dict(self.headers))
            fake.seen.append(body)
            fake.running += 1
            fake.most_running = max(fake.most_running, fake.running)
            behave = fake.behave.pop(0) if fake.behave else stream
        try:
            behave(fake, self, body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with fake.lock:
                fake.running -= 1


@contextmanager
def serving(**how: Any) -> Iterator[FakeServer]:
    fake = FakeServer(**how)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.fake = fake  # type: ignore[attr-defined]
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
