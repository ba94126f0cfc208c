"""What people see, from values alone."""

from __future__ import annotations

import io
import logging
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.progress import Progress, TextColumn

from strandline.cli.output import Output
from strandline.cli.render import ingest, lake, status
from strandline.cli.render import progress as render_progress
from strandline.cli.render.progress import IngestBars, bars_on, how_far, one_bar
from strandline.core.documents import json_text
from strandline.core.errors import InputError, InputRefused
from strandline.core.text.wording import age, duration, moment, plural, size, took
from strandline.core.types import Dataset, DatasetId, DatasetUuid, History, Seq, SeqRange, ShardId
from strandline.ingest.ingest_files import FileOutcome
from strandline.ingest.recover import Recovered
from strandline.ingest.reject_file import find_rejects, rejects_path
from strandline.status.documents import lake_documents
from strandline.status.problems.lake_problems import find_problems
from strandline.status.report import DatasetStatus, LakeStatus, OpenBlockStatus

NOW = datetime(2031, 4, 1, 12, tzinfo=UTC)


def text(*renderables: RenderableType) -> str:
    out = Console(file=io.StringIO(), width=200)
    for r in renderables:
        out.print(r)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def dataset(*blocks: OpenBlockStatus, **changes: object) -> DatasetStatus:
    values = {
        "name": "default.events", "allocated": 3_000, "sealed": 1_998, "rows": 1_998, "open_blocks": len(blocks),
        "unnumbered": 0, "foreign": 0, "adopted": False, "blocks": blocks, "problem": None,
    }  # fmt: skip
    return DatasetStatus(**(values | changes))  # type: ignore[arg-type]


def test_status_says_in_words_what_each_open_block_waits_for() -> None:
    since = NOW - timedelta(minutes=5)
    found = LakeStatus(
        "lake-id", 3_000, 3_000, 1, None,
        (
            dataset(
                OpenBlockStatus("1999-2500", "batch", "file-aaa", "staged", since, None),
                OpenBlockStatus("2501-2600", "batch", "file-bbb", "reserved", since, NOW + timedelta(seconds=60)),
                OpenBlockStatus("2601-2700", "batch", "file-ccc", "reserved", since, NOW - timedelta(seconds=60)),
                OpenBlockStatus("2701-2800", "adopted", "adopt-d", "reserved", since, NOW - timedelta(seconds=60)),
                OpenBlockStatus("2801-2900", "adopted", "adopt-e", "reserved", since, NOW + timedelta(seconds=60)),
            ),
        ),
    )  # fmt: skip
    said = text(status.status(found, NOW))
    lines = {line.split()[1]: line for line in said.splitlines() if line.startswith("default.events") and "-" in line}
    assert "committed, not visible yet" in lines["1999-2500"]
    assert "being written" in lines["2501-2600"]
    assert "the writer's lease has expired; `strandline recover` settles it" in lines["2601-2700"]
    assert "run `strandline dataset adopt default.events` again" in lines["2701-2800"]
    assert "recover" not in lines["2701-2800"], "recovery leaves adopted blocks alone"
    assert "being written" in lines["2801-2900"]
    assert "5 min" in lines["1999-2500"]
    assert "1,998" in said


def test_status_shows_what_is_not_known_as_unknown_and_never_as_zero() -> None:
    unknown = dataset(rows=None, unnumbered=None, foreign=None, sealed=None)
    line = next(
        line
        for line in text(status.status(LakeStatus("l", 1, 1, 1, None, (unknown,)))).splitlines()
        if line.startswith("default.events")
    )
    assert line.split()[1:] == ["?", "nothing", "yet", "3,000", "0", "?", "?"]


def test_status_names_every_problem_and_what_to_do() -> None:
    found = LakeStatus(
        "l", 10, 12, 1, "the witness stands at 12, the ledger at 10",
        (dataset(unnumbered=7, foreign=3, number_twice=11, problem="its metadata is gone"),),
    )  # fmt: skip
    problems = "\n".join(p.line for p in find_problems(found))
    assert "the witness stands at 12" in problems
    assert "its metadata is gone" in problems
    assert "7 rows have no sequence number" in problems
    assert "strandline dataset adopt default.events" in problems
    assert "3 foreign rows" in problems and "sequence number 11 is on two rows" in problems
    assert "witness at 12" in text(status.status(found, NOW))


def outcome(name: str, **changes: object) -> FileOutcome:
    values = {
        "paths": (Path(name),), "batch_id": "file-1", "rows": 0, "range": None, "rejected": 0, "rejects_path": None,
        "duplicate": False, "seconds": 2.0, "error": None,
    }  # fmt: skip
    return FileOutcome(**(values | changes))  # type: ignore[arg-type]


def test_ingest_tells_each_file_apart_and_counts_only_new_rows() -> None:
    found = [
        outcome(
            "new.jsonl",
            rows=1_000,
            range=SeqRange(Seq(1), Seq(1_000)),
            rejected=2,
            rejects_path=Path("r/x.jsonl"),
            absent=("a", "b"),
        ),
        outcome("old.jsonl", rows=500, range=SeqRange(Seq(2_001), Seq(2_500)), duplicate=True, rejected=None),
        outcome("empty.csv"),
        outcome("bad.csv", error=InputRefused("not one row fits", hint="look at it")),
        outcome("gone.csv", error=InputError("there is no file gone.csv")),
    ]
    said = text(*ingest.outcomes(found, 4.0))
    by_file = {line.split()[1]: line for line in said.splitlines()[:5]}
    assert "numbers 1..1000" in by_file["new.jsonl"]
    assert "500 rows/s" in by_file["new.jsonl"]
    assert "already ingested as 2001..2500" in by_file["old.jsonl"]
    assert "empty" in by_file["empty.csv"]
    assert "refused" in by_file["bad.csv"]
    assert "failed" in by_file["gone.csv"]
    assert "! new.jsonl: 2 rows did not fit" in said
    assert "! new.jsonl lacks 2 columns, null in all rows: a, b" in said
    assert "r/x.jsonl" in said
    assert "look at it" in said
    assert "5 files: 1,000 new rows in 4.0 s, 1 already ingested, 2 failed" in said
    assert lake_documents.ingest("default.events", found, 4.0)["rows"] == 1_000


def test_what_says_nothing_is_not_shown() -> None:
    said = text(*ingest.outcomes([outcome("a.csv", rows=1, range=SeqRange(Seq(1), Seq(1)), seconds=9.0)], 9.0))
    assert "1 row " in said and "rows/s" not in said
    assert [plural(n, "row", "is") for n in (0, 1, 2_000)] == ["0 rows are", "1 row is", "2,000 rows are"]
    assert [plural(2, noun) for noun in ("body", "batch", "day", "left-over branch")] == [
        "2 bodies", "2 batches", "2 days", "2 left-over branches"
    ]  # fmt: skip
    assert (how_far(0, None, None), how_far(5, 10, None), how_far(10, 10, 0)) == ("", "50 %", "100 %")
    assert how_far(1, 10, 75.2) == "10 %, about 1 min 15 s left"
    assert how_far(1, 10, 7300) == "10 %, about 2 h 1 min left"


def test_a_file_of_rejected_rows_is_named_after_its_input_and_found_by_its_batch(tmp_path: Path) -> None:
    dataset = Dataset(
        DatasetId(1), "default.events", "u", (), False, History.DELIVER, NOW, DatasetUuid("u"), ShardId(0), 1
    )
    path = rejects_path(tmp_path, dataset, "file-" + "ab" * 32, [Path("/in/new orders.csv")])
    assert re.fullmatch(r"new_orders\.csv-[0-9a-f]{12}\.jsonl", path.name)
    assert rejects_path(tmp_path, dataset, "../x/y", [Path("a.csv")]).name.startswith("_x_y-")
    assert find_rejects(tmp_path, dataset, "file-" + "ab" * 32) is None
    path.parent.mkdir()
    path.touch()
    assert find_rejects(tmp_path, dataset, "file-" + "ab" * 32) == path
    assert find_rejects(tmp_path, dataset, "file-" + "cd" * 32) is None


def test_names_in_square_brackets_are_shown_as_they_are() -> None:
    found = [outcome("[bold]x.jsonl", rows=1, range=SeqRange(Seq(1), Seq(1)))]
    assert "[bold]x.jsonl" in text(*ingest.outcomes(found, 1.0))


def test_recovery_says_what_became_of_each_block() -> None:
    found = Recovered(
        [SeqRange(Seq(1), Seq(2))],
        [SeqRange(Seq(3), Seq(4))],
        ["block 5..6 cannot be told"],
        [SeqRange(Seq(7), Seq(8))],
        2,
    )
    said = text(lake.recovered(found))
    for part in (
        "Published: 1..2",
        "Abandoned: 3..4",
        "Held: block 5..6",
        "may be alive: 7..8",
        "2 left-over branches",
    ):
        assert part in said
    assert "No block was open" in text(lake.recovered(Recovered()))


def test_times_and_sizes_are_written_as_people_read_them() -> None:
    for seconds, said in (
        (0, "0 s"),
        (59.9, "59 s"),
        (90, "1 min 30 s"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ):
        assert duration(seconds) == age(NOW - timedelta(seconds=seconds), NOW) == said
    assert [took(s) for s in (0.04, 59.5, 90.5)] == ["0.0 s", "59.5 s", "1 min 30 s"]
    assert [size(n) for n in (0, 1023, 1536, 5 << 30, 7 << 50)] == [
        "0 B", "1,023 B", "1.5 KiB", "5.0 GiB", "7,168.0 TiB",
    ]  # fmt: skip
    assert moment(datetime(2026, 3, 2, 1, tzinfo=timezone(timedelta(hours=-9)))) == "2026-03-02 10:00:00 UTC"


def test_a_time_in_a_document_is_written_as_in_a_row() -> None:
    assert json_text({"at": NOW.replace(microsecond=0)}) == f'{{"at": "{NOW:%Y-%m-%dT%H:%M:%S}.000000Z"}}'


def test_progress_counts_files_and_only_the_rows_that_are_new() -> None:
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with Progress(TextColumn("{task.fields[count]}|{task.fields[note]}"), console=out, auto_refresh=False) as progress:
        bars = IngestBars(progress, files=2)
        bars.on_step(Path("a.jsonl"), "waiting", None)
        bars.on_step(Path("a.jsonl"), "writing", 1_000)
        assert [t.fields["note"] for t in progress.tasks] == ["", "writing 1,000 rows"]
        bars.on_bytes(Path("a.jsonl"), 25, 100)
        bars.on_bytes(Path("unknown.jsonl"), 25, 100)
        one = progress.tasks[1]
        assert how_far(one.completed, one.total, None) == "25 %"
        bars.on_step(Path("a.jsonl"), "publishing", 1_000)
        assert how_far(one.completed, one.total, None) == "", "each step reads the file from its beginning"
        bars.on_done(outcome("a.jsonl", rows=1_000, range=SeqRange(Seq(1), Seq(1_000))))
        bars.on_done(outcome("b.jsonl", rows=500, range=SeqRange(Seq(1_001), Seq(1_500)), duplicate=True))
        [whole] = progress.tasks
        assert whole.fields["count"] == "2/2"
        assert whole.fields["note"].startswith("1,000 rows, ")
        assert whole.fields["note"].endswith("rows/s")


def test_one_bar_shows_the_share_where_the_total_is_known_and_begins_anew_with_another_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, out = io.StringIO(), Output(as_json=False)
    out.out = out.err = Console(file=written, force_terminal=True, width=200, color_system=None)
    shown: list[str] = []
    drawn: list[Progress] = []
    monkeypatch.setattr(render_progress, "bars_on", lambda out: drawn.append(bars_on(out)) or drawn[0])

    def look() -> None:
        drawn[0].refresh()
        shown.append(written.getvalue())
        written.seek(0)
        written.truncate()

    with one_bar(out, "Looking") as bar:
        bar.step("Listing storage", 1_234, None)
        look()
        bar.step("Orphan files", 25, 100)
        logging.getLogger("strandline.reconcile.act").warning("files quarantined: 25")
        look()
        bar.say("Comparing")
        look()
    assert "Listing storage" in shown[0] and "1,234" in shown[0] and "%" not in shown[0]
    assert "Orphan files" in shown[1] and "25/100" in shown[1] and "25 %" in shown[1]
    assert "Comparing" in shown[2] and "%" not in shown[2].rpartition("Comparing")[2]
    assert "files quarantined" not in "".join(shown) and "files quarantined: 25" in written.getvalue()
    with one_bar(Output(as_json=True), "Looking") as bar:
        bar.step("Orphan files", 25, 100)


def test_what_is_logged_while_a_spinner_turns_is_shown_whole_when_it_is_gone() -> None:
    written, out = io.StringIO(), Output(as_json=False)
    out.out = out.err = Console(file=written, force_terminal=True, width=40)
    warning = "run 2: entries of default.events whose files are gone were dropped: 1, with rows: 10"
    with out.working("Missing files"):
        logging.getLogger("strandline.reconcile.act").warning("%s", warning)
        assert warning not in written.getvalue()
    spun, _, after = written.getvalue().partition(warning)
    assert "Missing files" in spun and after and "Missing files" not in after
    assert not logging.getLogger("strandline").handlers
