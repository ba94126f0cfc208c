"""The command line in the process of a test: a lake that commands make, and what commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.main import run

WIDE = "200"
"""Columns of the terminal; whoever runs the tests may have set it to something narrow."""


def init_lake_here(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A new lake in the folder, which is the working folder from now on."""
    patch.delenv("STRANDLINE_CONFIG", raising=False)
    patch.setenv("COLUMNS", WIDE)
    patch.chdir(folder)
    assert run(["init"]) == 0
    return folder


def create_dataset_here(name: str = "events", *options: str, row: str = '{"id": 1, "who": "ada"}') -> None:
    """A dataset with the columns of the row, which is in `sample.jsonl` from now on."""
    Path("sample.jsonl").write_text(row + "\n")
    assert run(["dataset", "create", name, "--like", "sample.jsonl", *options]) == 0


def add_files_sink_here(name: str, path: str, dataset: str = "events") -> None:
    assert run(["sink", "add", name, "--dataset", dataset, "--kind", "files", "--option", f"path={path}"]) == 0


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command printed on standard output."""
    capsys.readouterr()
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """What --json printed: one document and nothing else, and nothing on standard error either."""
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert isinstance(found, dict)
    return found


def error(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> dict[str, Any]:
    """The error of a command with --json."""
    found = document(capsys, *arguments, code=code)
    assert set(found) == {"error"}
    assert set(found["error"]) == {"type", "message", "hint", "retryable"}
    return dict(found["error"])


def plain_error(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """The error of a command as a person sees it."""
    capsys.readouterr()
    assert run(list(arguments)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    return printed.err
