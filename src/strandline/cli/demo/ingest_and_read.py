"""`strandline demo`: the main job end to end, on a lake of its own, with every claim checked.

Each step is a function that does something and says what it proves. A claim that does not hold is shown, and the demo
ends with exit code 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from strandline.cli.demo.delivery import add_sinks, go_on_delivering, kill_a_deliverer, verify_sinks
from strandline.cli.demo.follower import begin_to_follow, go_on_following
from strandline.cli.demo.forward import SETTINGS, forward
from strandline.cli.demo.maintain import go_on_after_maintenance, maintain_between_ticks
from strandline.cli.demo.scene import DATASET, Demo, count, events, ingest, killed_child, write
from strandline.cli.demo.take_over import take_over
from strandline.cli.output import Output
from strandline.core.errors import RefusedError
from strandline.core.roles import Role
from strandline.core.text.wording import plural
from strandline.core.types import Seq
from strandline.lake_admin import init_lake

VISITOR = "visitor"
MONDAY_ROWS, BAD_ROWS, TUESDAY_ROWS, WEDNESDAY_ROWS = 2_000, 2, 1_000, 500


def run_demo(out: Output, folder: Path | None, *, keep: bool, serve: Callable[[Path], None] | None = None) -> bool:
    """Returns whether every claim is true. `serve` gets the lake's folder; without `keep` it is removed at the end."""
    began = time.monotonic()
    home = _home(folder)
    before = dict(os.environ)
    os.environ.update(SETTINGS)  # as the settings files of both lakes would have it
    try:
        with out.working("Making a lake") as say:
            _head(out, home)
            with init_lake(home) as lake:
                lake.on_start = say
                demo = Demo(out, home, lake, say)
                for step in STEPS:
                    step(demo)
                secret = lake.receiver.create_token(VISITOR, role=Role.ADMIN)[1] if keep or serve else None
        _verdict(demo, time.monotonic() - began, kept=keep, served=serve is not None, secret=secret)
        if serve is not None:
            serve(home)
    finally:
        os.environ.clear()
        os.environ.update(before)
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
    return all(holds for _, holds in demo.claims)


def _home(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise RefusedError(f"{folder} is not empty", hint="The demo wants a folder of its own: name a new one.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _head(out: Output, home: Path) -> None:
    if not out.as_json:
        out.out.print(
            Text.assemble(("Strandline demo", "bold"), (f" · a lake of its own in {home}", "dim")), soft_wrap=True
        )


def _verdict(demo: Demo, seconds: float, *, kept: bool, served: bool, secret: str | None) -> None:
    false = [text for text, holds in demo.claims if not holds]
    document = {
        "ok": not false,
        "seconds": round(seconds, 1),
        "folder": demo.home if kept else None,
        "steps": demo.titles,
        "claims": [{"claim": text, "holds": holds} for text, holds in demo.claims],
    }
    if not false:
        verdict = Text(f"\nAll {len(demo.claims)} claims were checked and hold. {seconds:.0f} s.", "bold green")
    else:
        verdict = Text(
            f"\n{plural(len(false), 'claim')} of {len(demo.claims)} did not hold. {seconds:.0f} s.", "bold red"
        )
    demo.out.show(document, verdict, *_where(demo, kept=kept, served=served, secret=secret))


def _where(demo: Demo, *, kept: bool, served: bool, secret: str | None) -> list[Text]:
    """How to look at the lake, if it is still there."""
    settings = demo.lake.config.settings.serve
    lines = [f"Look around: strandline status --config {demo.home}"] if kept else []
    if secret is not None:
        first = f"strandline serve --config {demo.home}, then " if kept and not served else ""
        lines.append(f"In a browser: {first}http://{settings.host}:{settings.port} with the token {secret}")
    return [Text(line, "dim") for line in lines]


def make_dataset(demo: Demo) -> None:
    from strandline.iceberg.schema.infer import infer

    with demo.step("A dataset, its columns read off a sample"):
        sample = write(demo.home / "sample.jsonl", events(1, 5))
        columns = infer(sample).columns
        made = demo.lake.create_dataset(DATASET, columns)
        names = ", ".join(c.name for c in columns)
        demo.note(f"{made.name} with {names}; ledger and catalog are SQLite files, no server runs", "dim")
        demo.claim("nothing is settled yet, so nothing could be read", demo.lake.sealed(DATASET) is None)


def ingest_with_bad_rows(demo: Demo) -> None:
    with demo.step(f"Ingest {MONDAY_ROWS:,} lines, two of them broken"):
        lines = events(1, MONDAY_ROWS)
        lines[499] = lines[499][:40]
        lines[1499] = json.dumps(json.loads(lines[1499]) | {"amount": "a lot"})
        write(demo.home / "monday.jsonl", lines)
        demo.say("Starting Spark")
        done = ingest(demo, "monday.jsonl")
        demo.note(f"monday.jsonl → sequence numbers {done.range}, {plural(done.rejected or 0, 'row')} rejected", "dim")
        rejects = [] if done.rejects_path is None else done.rejects_path.read_text("utf-8").splitlines()
        for entry in map(json.loads, rejects):
            demo.note(f"  line {entry['line']}: {entry['reason']}", "yellow")
        good = MONDAY_ROWS - BAD_ROWS
        demo.claim(
            f"{plural(good, 'row', 'is')} in, {BAD_ROWS} are in the reject file with line and reason: none is missing",
            done.rows == good == count(demo.lake)[0] and len(rejects) == BAD_ROWS,
        )


def ingest_again(demo: Demo) -> None:
    with demo.step("Ingest the same file again"):
        before = demo.lake.status().sequence
        done = ingest(demo, "monday.jsonl")
        demo.claim(
            "it is recognised by its bytes: no row came in, no sequence number was used",
            done.duplicate and demo.lake.status().sequence == before,
        )


def kill_a_writer(demo: Demo) -> None:
    with demo.step("Kill a writer (kill -9) between its commit and its publication"):
        sealed = demo.lake.sealed(DATASET)
        write(demo.home / "tuesday.jsonl", events(MONDAY_ROWS + 1, TUESDAY_ROWS))
        demo.say("Another process ingests, and is about to be killed")
        path = str(demo.home / "tuesday.jsonl")
        pid = killed_child(demo.home, "ingest", DATASET, path, failpoint="stage.after_mark=kill")
        open_block = next(iter(demo.lake.status().datasets[0].blocks), None)
        where = "no open block" if open_block is None else f"block {open_block.range} is {open_block.state}"
        demo.note(f"process {pid} died of signal {signal.SIGKILL.value}; {where}", "dim")
        demo.claim("it died, and left an open block behind", open_block is not None)
        demo.claim(
            f"none of its rows is visible, and the seal stays at {_text(sealed)}",
            count(demo.lake)[0] == MONDAY_ROWS - BAD_ROWS and demo.lake.sealed(DATASET) == sealed,
        )


def recover(demo: Demo) -> None:
    with demo.step("Recover"):
        demo.say("Settling the open block")
        found = demo.lake.recover()
        demo.note(f"published: {', '.join(map(str, found.published)) or 'nothing'}", "dim")
        rows, ids = count(demo.lake)
        expected = MONDAY_ROWS - BAD_ROWS + TUESDAY_ROWS
        demo.claim(f"{plural(rows, 'row')}, {ids:,} different ids: each exactly once", rows == ids == expected)
        again = ingest(demo, "tuesday.jsonl")
        demo.claim("the killed ingest, run again, adds nothing", again.duplicate and count(demo.lake)[0] == expected)


def read_on(demo: Demo) -> None:
    with demo.step("Read, and read on after new rows"):
        first = demo.lake.read_since(DATASET)
        token = first.continuation
        write(demo.home / "wednesday.jsonl", events(MONDAY_ROWS + TUESDAY_ROWS + 1, WEDNESDAY_ROWS))
        demo.say("Ingesting more rows")
        ingest(demo, "wednesday.jsonl")
        demo.note(f"the first read gave the token {token[:24]}…; then {WEDNESDAY_ROWS} new rows came in", "dim")
        new = demo.lake.read_since(DATASET, token)
        ids = [row["id"] for row, _ in new]
        start = MONDAY_ROWS + TUESDAY_ROWS + 1
        demo.claim(
            f"continuing from the token gives the {WEDNESDAY_ROWS} new rows, in order, and no other",
            ids == list(range(start, start + WEDNESDAY_ROWS)),
        )
        rest = demo.lake.read_since(DATASET, new.continuation).df.isEmpty()
        demo.claim("and then there is nothing more", rest)


STEPS: tuple[Callable[[Demo], None], ...] = (
    make_dataset,
    ingest_with_bad_rows,
    ingest_again,
    kill_a_writer,
    recover,
    read_on,
    add_sinks,
    kill_a_deliverer,
    go_on_delivering,
    verify_sinks,
    maintain_between_ticks,
    go_on_after_maintenance,
    begin_to_follow,
    forward,
    go_on_following,
    take_over,
)


def _text(seq: Seq | None) -> str:
    return "nothing" if seq is None else f"{seq:,}"
