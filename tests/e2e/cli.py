"""Running the command line for real: processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import python, start

TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    engine: bool | None = None
    """Whether Spark was loaded, where that can be told."""

    @property
    def document(self) -> dict[str, Any]:
        """The one document of --json."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def token(self) -> str:
        [said] = [line for line in self.err.splitlines() if line.startswith("next: ")]
        return said.removeprefix("next: ")


def strandline(home: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> Done:
    """One command in a process of its own."""
    process = start(
        ["strandline.cli.main", *arguments],
        cwd=home, env={**os.environ, **(environ or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    return Done(process.returncode, out, err)


def several(home: Path, *commands: Sequence[str], environ: Mapping[str, str] | None = None) -> list[Done]:
    """Several commands, one after another in one process, as quick as one.

    `@2` stands for the token that the command number 2 (from 0) printed; `rm FILE` removes a file, and has no result.
    """
    done = subprocess.run(
        python("tests.e2e.several_commands"),
        cwd=home, env={**os.environ, "TZ": "UTC", **(environ or {})}, input=json.dumps([list(c) for c in commands]),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Done(d["code"], d["out"], d["err"], d["engine"]) for d in json.loads(done.stdout)]
