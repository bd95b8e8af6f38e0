"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command line; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))

    def command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(list(arguments))
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command
