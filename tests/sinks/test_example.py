"""The sink in examples/ keeps what every sink promises, and is found as a package's sink is found."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.errors import StorageError
from strandline.core.types import Seq
from strandline.deliver.sink import Address, Sink, SinkContext
from strandline.deliver.sink_kinds import find_kind, kind_names, resolve
from tests.sinks.contract import (
    ADDRESS,
    DATASET,
    TOKEN,
    Made,
    RefusesLowerTerms,
    SinkContract,
    landed,
    parcel,
    ready,
    seqs,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "strandline-sink-sqlite"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As an installer leaves it: the module, and a folder with the entry points that pyproject.toml names."""
    import tomllib

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    record = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (record / "entry_points.txt").write_text("\n".join(lines))
    for folder in (EXAMPLE / "src", tmp_path / "site"):
        monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("strandline_sink_sqlite", None)


def lines(sink: Sink, question: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(sink.destination.removeprefix("file://"))
    try:
        with connection:
            return connection.execute(question, values).fetchall()
    finally:
        connection.close()


class TestSqlite(RefusesLowerTerms, SinkContract):
    @pytest.fixture
    def made(self, tmp_path: Path) -> Made:
        def opened(place: str = "one", generation: int = 1) -> Sink:
            kind = find_kind("sqlite")
            return kind.open(SinkContext(tmp_path, DATASET, generation, resolve(kind, {"path": f"{place}.db"})))

        def numbers(sink: Sink, address: Address) -> list[int]:
            found = lines(
                sink,
                "SELECT json FROM delivered_row r JOIN lane l ON l.id = r.lane WHERE instance = ? AND generation = ? "
                "AND partition = ? ORDER BY number",
                address.instance,
                address.generation,
                address.partition,
            )
            return [json.loads(str(text))["_ingest_seq"] for (text,) in found]

        return Made(opened, numbers, take_away=None)

    def test_the_kind_is_found_by_its_entry_point(self, made: Made) -> None:
        assert "sqlite" in kind_names()

    def test_consumers_see_rows_up_to_the_mark_of_the_newest_generation(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 6, 10))
        assert lines(sink, "SELECT * FROM settled") == []
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        sink.set_watermarks([(ADDRESS, Seq(10))])
        sink.set_watermarks([(ADDRESS, Seq(7))])
        assert [n for (n,) in lines(sink, "SELECT _ingest_seq FROM settled ORDER BY 1")] == list(range(1, 11))
        ready(made, generation=2)
        assert lines(sink, "SELECT * FROM settled") == []

    def test_a_row_that_was_changed_or_removed_is_seen_when_it_is_read_back(self, made: Made) -> None:
        sink = ready(made)
        before = landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        for change in ("UPDATE delivered_row SET json = '{}' WHERE number = 3", "DELETE FROM delivered_row"):
            lines(sink, change)
            assert sink.inspector().inspect(ADDRESS, seqs(1, 5)).digest != before.digest

    def test_the_file_itself_refuses_ranges_that_overlap(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        with pytest.raises(sqlite3.IntegrityError, match="overlaps"):
            lines(sink, "INSERT INTO delivered_range VALUES (1, 5, 6, 1, '', 0)")

    def test_a_file_that_is_gone_is_not_made_again_by_a_sender(self, made: Made) -> None:
        sink = ready(made)
        landed(sink.sender(TOKEN), parcel(sink.form, ADDRESS, 1, 5))
        file = Path(sink.destination.removeprefix("file://"))
        file.unlink()
        assert "unable to open" in repr(sink.sender(TOKEN).send(parcel(sink.form, ADDRESS, 6, 9)))
        with pytest.raises(StorageError):
            sink.inspector().inspect(ADDRESS, seqs(1, 5))
        assert not file.exists()
