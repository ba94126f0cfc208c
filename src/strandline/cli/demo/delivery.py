"""The second part of `strandline demo`: two sinks, a deliverer that is killed on the way, and the proof."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from strandline.cli.demo.scene import DATASET, Demo, events, ingest, killed_child, write
from strandline.core.errors import FailedError
from strandline.core.text.wording import plural

SINKS = {"archive": "parquet", "partner": "jsonl"}
FOLDER = "delivered"
CHUNK_ROWS, THURSDAY_ROWS, THURSDAY_ID = 500, 250, 100_001
LEASE_SECONDS = 3  # of the deliverer that is killed: the next one must not have to wait for a minute
GO_ON_SECONDS_MAX = 180

_OBJECT = re.compile(r"(\d{19})-(\d{19})\.\w+")


# A sink as a consumer sees it: folders, names and files, without Strandline's code.


@dataclass(frozen=True, slots=True)
class Delivered:
    path: Path
    lo: int
    hi: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def ids(self) -> list[int]:
        if self.path.suffix == ".parquet":
            import pyarrow.parquet as pq

            return [int(n) for n in pq.read_table(self.path, columns=["id"])["id"].to_pylist() if n is not None]
        return [json.loads(line)["id"] for line in self.path.read_text("utf-8").splitlines()]


def _lane(demo: Demo, sink: str) -> Path:
    return demo.home / FOLDER / sink / f"default.{DATASET}" / "all"


def _objects(demo: Demo, sink: str) -> list[Delivered]:
    folder = _lane(demo, sink)
    names = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    found = ((p, _OBJECT.fullmatch(p.name)) for p in names)
    return [Delivered(p, int(m[1]), int(m[2])) for p, m in found if m is not None]


def _watermark(demo: Demo, sink: str) -> int:
    return max((int(p.stem) for p in (_lane(demo, sink) / "_marks").glob("*.json")), default=0)


def consumed(demo: Demo, sink: str) -> Iterator[int]:
    """What a consumer reads: objects at or below the watermark."""
    watermark = _watermark(demo, sink)
    for one in _objects(demo, sink):
        if one.hi <= watermark:
            yield from one.ids()


def add_sinks(demo: Demo) -> None:
    with demo.step("Add two sinks: a folder of Parquet, and a folder of JSON lines"):
        for name, form in SINKS.items():
            place = demo.home / FOLDER / name  # in full: whichever site leads delivers to the same folder
            options = {"path": str(place), "format": form, "chunk_rows_max": str(CHUNK_ROWS)}
            demo.lake.delivery.add(name, DATASET, "files", options)
            demo.note(f"{name}: {form}, at most {CHUNK_ROWS} rows an object, in {FOLDER}/{name}", "dim")
        behind = [s.sink_lag_rows for s in demo.lake.status().sinks]
        demo.claim(f"both are {rows_text(behind[0])} behind", behind == [rows_in_lake(demo)] * len(SINKS))


def kill_a_deliverer(demo: Demo) -> None:
    with demo.step("Kill a deliverer (kill -9) when its first object has landed, before anybody knows of it"):
        demo.say("Another process delivers, and is about to be killed")
        lease = {"STRANDLINE_DELIVER__LEASE_SECONDS": str(LEASE_SECONDS)}
        pid = killed_child(demo.home, "tick", failpoint="files.after_link=kill", settings=lease)
        landed = {name: _objects(demo, name) for name in SINKS}
        words = ", ".join(f"{plural(len(found), 'object')} in {name}" for name, found in landed.items())
        demo.note(f"process {pid} died of signal {signal.SIGKILL.value}; {words}", "dim")
        acknowledged = sum(s.exported or 0 for s in demo.lake.status().sinks)
        demo.claim(
            "rows are at a sink, and the ledger knows of none of them",
            any(landed.values()) and acknowledged == 0,
        )
        demo.claim(
            "no watermark covers them, so no consumer has read them yet",
            not any(id_ for name in SINKS for id_ in consumed(demo, name)),
        )


def go_on_delivering(demo: Demo) -> None:
    with demo.step(f"{THURSDAY_ROWS} new rows arrive; then deliver again"):
        before = {one.path: one.digest for name in SINKS for one in _objects(demo, name)}
        write(demo.home / "thursday.jsonl", events(THURSDAY_ID, THURSDAY_ROWS))
        demo.say("Ingesting more rows")
        ingest(demo, "thursday.jsonl")
        demo.say("Delivering")
        deliver(demo)
        rows = rows_in_lake(demo)
        for name in SINKS:
            ids = list(consumed(demo, name))
            demo.claim(
                f"{name}: {plural(len(ids), 'row')} in {plural(len(_objects(demo, name)), 'object')}, each once",
                len(ids) == len(set(ids)) == rows,
            )
        demo.claim(
            "what had landed before the kill is there, byte for byte, and no two objects overlap",
            all(path.exists() and Delivered(path, 0, 0).digest == digest for path, digest in before.items())
            and all(a.hi < b.lo for name in SINKS for a, b in itertools.pairwise(_objects(demo, name))),
        )
        began = time.perf_counter()
        idle = demo.lake.tick()
        demo.claim(
            f"another tick finds nothing to do, in {1000 * (time.perf_counter() - began):.0f} ms",
            all(s.did == "idle" for s in idle.sinks),
        )


def deliver(demo: Demo) -> None:
    """The killed deliverer holds its leases a moment longer: until then its sinks are busy."""
    deadline, shown = time.monotonic() + GO_ON_SECONDS_MAX, set()
    while True:
        report = demo.lake.tick()
        for s in report.sinks:
            if s.did == "delivered":
                demo.note(f"{s.name}: {rows_text(s.rows)} delivered in {plural(s.chunks, 'chunk')}", "dim")
            elif s.reason is not None and s.reason not in shown:
                shown.add(s.reason)
                demo.note(f"{s.name}: {s.reason}", "yellow")
        if all(s.did == "idle" for s in report.sinks):
            return
        if time.monotonic() > deadline:
            raise FailedError(f"delivery did not get through in {GO_ON_SECONDS_MAX} s")
        time.sleep(0.2)


def verify_sinks(demo: Demo) -> None:
    from strandline.cli.commands.verify import rendered

    with demo.step("Verify: read the sinks back, build every chunk again from the lake, and compare"):
        demo.say("Reading what the sinks hold")
        report = demo.lake.delivery.verify()
        for line in rendered(report):
            demo.show(line)
        rows = rows_in_lake(demo)
        demo.claim(
            f"at neither sink a gap or an overlap, and each of {rows_text(rows)} is as the lake has it",
            report.ok and [s.rows for s in report.sinks] == [rows] * len(SINKS),
        )
        spoilt = _objects(demo, "partner")[1]
        body = spoilt.path.read_bytes()
        demo.say("Spoiling an object")
        spoilt.path.write_bytes(body.replace(b'"who":"ada"', b'"who":"eve"', 1))
        found = [f for s in demo.lake.delivery.verify("partner").sinks for f in s.findings]
        spoilt.path.write_bytes(body)
        demo.note("one name in one row of one object was changed by hand (and changed back)", "dim")
        for f in found:
            demo.show(Text.assemble(("  found: ", "yellow"), f"{f.what}: {f.detail}"))
        demo.claim("verify finds it, and names the object", any(spoilt.path.name in f.what for f in found))


def rows_in_lake(demo: Demo) -> int | None:
    return demo.lake.status().datasets[0].rows


def rows_text(number: int | None) -> str:
    return "? rows" if number is None else plural(number, "row")
