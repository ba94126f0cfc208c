"""Running the command line for real: processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 240

_SEVERAL = """
import contextlib, io, json, os, sys
from strandline.cli.main import run
done = []
for arguments in json.load(sys.stdin):
    if arguments[0] == "rm":
        os.unlink(arguments[1])
        continue
    arguments = [done[int(a[1:])]["err"].split("next: ")[1].strip() if a.startswith("@") else a for a in arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    done.append({"code": code, "out": out.getvalue(), "err": err.getvalue(), "engine": "pyspark" in sys.modules})
json.dump(done, sys.stdout)
"""


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
    done = subprocess.run(
        [sys.executable, "-m", "strandline.cli.main", *arguments],
        cwd=home, env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def several(home: Path, *commands: Sequence[str], environ: Mapping[str, str] | None = None) -> list[Done]:
    """Several commands, one after another in one process: a JVM takes long to start, and they can share it.

    `@2` stands for the token that the command number 2 (from 0) printed; `rm FILE` removes a file, and has no result.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SEVERAL],
        cwd=home, env={**os.environ, "TZ": "UTC", **(environ or {})}, input=json.dumps([list(c) for c in commands]),
        capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Done(d["code"], d["out"], d["err"], d["engine"]) for d in json.loads(done.stdout)]
