"""What the steps of `strandline demo` share, and what they claimed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from strandline.cli.output import Output
from strandline.cli.render.elements import BAD, OK
from strandline.core.errors import FailedError
from strandline.core.settings.lake_config import CONFIG_NAME
from strandline.ingest.ingest_files import FileOutcome
from strandline.lake import Lake

DATASET = "events"
CHILD_TIMEOUT_SECONDS = 180


@dataclass
class Demo:
    out: Output
    home: Path
    lake: Lake
    say: Callable[[str], None]
    claims: list[tuple[str, bool]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def note(self, text: str, style: str = "") -> None:
        self.show(Text(text, style))

    def show(self, what: RenderableType) -> None:
        if not self.out.as_json:
            self.out.out.print(Padding(what, (0, 0, 0, 3), expand=False))

    def claim(self, text: str, holds: bool) -> None:
        self.claims.append((text, holds))
        self.show(Text.assemble(OK if holds else BAD, " ", text))

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        if not self.out.as_json:
            self.out.out.print(Text.assemble("\n", (f"{len(self.titles) + 1}  ", "bold cyan"), (title, "bold")))
        self.titles.append(title)
        yield


def events(first_id: int, count: int) -> list[str]:
    people, actions = ("ada", "grace", "alan", "edsger"), ("order", "cancel", "return")
    start = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
    return [
        json.dumps(
            {
                "id": i,
                "at": (start + timedelta(seconds=7 * i)).isoformat().replace("+00:00", "Z"),
                "who": people[i % len(people)],
                "action": actions[i % len(actions)],
                "amount": round(i * 37 % 10_000 / 100, 2),
            }
        )
        for i in range(first_id, first_id + count)
    ]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def ingest(demo: Demo, name: str) -> FileOutcome:
    [done] = demo.lake.ingest(DATASET, [demo.home / name])
    if done.error is not None:
        raise done.error
    return done


def count(lake: Lake) -> tuple[int, int]:
    """Rows that a reader gets, and how many distinct ids they have."""
    found = lake.read_since(DATASET).df.selectExpr("count(*)", "count(DISTINCT id)").collect()[0]
    return int(found[0]), int(found[1])


def start_child(
    home: Path, *words: str, failpoint: str, settings: Mapping[str, str] | None = None, stderr: int | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", *words, "--config", str(home / CONFIG_NAME)],
        env={**os.environ, **(settings or {}), "STRANDLINE_FAILPOINT": failpoint},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def killed_child(home: Path, *words: str, failpoint: str, settings: Mapping[str, str] | None = None) -> int:
    """Runs a command in a process of its own that is killed for real at the failpoint; returns its process id."""
    child = start_child(home, *words, failpoint=failpoint, settings=settings, stderr=subprocess.STDOUT)
    try:
        said, _ = child.communicate(timeout=CHILD_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as e:
        child.kill()
        child.wait()
        raise FailedError(f"the process that was to be killed did not get there in {CHILD_TIMEOUT_SECONDS} s") from e
    if child.returncode != -signal.SIGKILL:
        raise FailedError(f"the process that was to be killed ended with {child.returncode}: {said.strip()[-500:]}")
    return child.pid
