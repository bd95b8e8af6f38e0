"""The runner's end of the channel: starts a worker, asks it, and measures what it costs idle."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from config import Process


class WorkerLost(Exception):
    """The process is gone, or did not answer in time and was ended."""


class Worker:
    """A running worker. Its stderr, and all that its libraries print, goes to a file."""

    def __init__(self, process: Process, log: Path, start_timeout: float) -> None:
        self.name = process.name
        self._log = log
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    process.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **process.environment},
                    text=True,
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerLost(f"{self.name} can't be started: {error}") from None
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            started = self._next(start_timeout)
            if "ready" not in started:
                raise WorkerLost(f"{self.name} did not start: {started.get('error')}. See {log}")
        except BaseException:
            self.close()
            raise
        self.metadata: dict[str, Any] = started["ready"]

    def ask(
        self,
        id: str,
        mode: str,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        timeout: float,
    ) -> dict[str, Any]:
        """The worker's answer, which may be an `error`. Raises WorkerLost."""
        request = {
            "id": id,
            "mode": mode,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
        }
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError:
            raise WorkerLost(f"{self.name} is gone. See {self._log}") from None
        answer = self._next(timeout)
        if answer.pop("id", None) != id:
            self.close()
            raise WorkerLost(f"{self.name} answered another question. See {self._log}")
        return answer

    def cpu_seconds(self) -> float:
        """CPU time that the process and its children have used."""
        try:
            whole = psutil.Process(self.pid)
            every = [whole, *whole.children(recursive=True)]
        except psutil.NoSuchProcess:
            return 0.0
        return sum(map(_cpu_seconds, every))

    def close(self, patience: float = 5) -> None:
        """End it and whatever it started; a moment is given to end by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(patience)
        # The worker leads a session of its own, so that its children end with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            self.close(patience=0)
            raise WorkerLost(
                f"{self.name} said nothing for {timeout:g} s. See {self._log}"
            ) from None
        if line is None:
            raise WorkerLost(f"{self.name} ended. See {self._log}")
        found: dict[str, Any] = json.loads(line)
        return found


def cpu_seconds(workers: Iterable[Worker]) -> float:
    return sum(worker.cpu_seconds() for worker in workers)


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
