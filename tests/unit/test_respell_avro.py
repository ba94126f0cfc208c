"""Paths in Iceberg's Avro files are spelled anew, and every other value stays as it was."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, read_manifest_list
from pyiceberg.table import StaticTable

from strandline.core.errors import TableUnfit
from strandline.iceberg.metadata.respell_avro import Record, Wanted, respell_avro
from strandline.iceberg.metadata.table_files import (
    Copied,
    NewPlace,
    Rewritten,
    TableIdentity,
    list_table_files,
    parse_document,
)

CODECS = ("gzip", "null", "zstd")


@pytest.fixture(params=CODECS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """With a partition, several snapshots, a tag, and a deleted file."""
    folder = tmp_path / "old place"
    folder.mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("default")
    schema = pa.schema([("n", pa.int64()), ("k", pa.string()), ("x", pa.list_(pa.float64()))])
    made = catalog.create_table(
        "default.events", schema, properties={"write.avro.compression-codec": request.param, "owner": str(folder)}
    )
    with made.update_spec() as spec:
        spec.add_identity("k")
    for lo in (0, 10, 20):
        rows = [{"n": lo + i, "k": f"k{i % 3}", "x": [0.5, float(i)]} for i in range(10)]
        made.append(pa.Table.from_pylist(rows, schema=schema))
    made.manage_snapshots().create_tag(made.current_snapshot().snapshot_id, "kept").commit()
    made.delete("k = 'k1'")
    yield made
    catalog.close()


def entries(table: Any) -> list[dict[str, Any]]:
    found = []
    for snapshot in table.metadata.snapshots:
        for manifest in read_manifest_list(table.io.new_input(snapshot.manifest_list)):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                found.append(_plain(entry) | {"of": snapshot.snapshot_id, "spec": manifest.partition_spec_id})
    return found


def _plain(entry: ManifestEntry) -> dict[str, Any]:
    file = entry.data_file
    return {
        "status": entry.status, "path": file.file_path, "rows": file.record_count, "size": file.file_size_in_bytes,
        "sequence": entry.sequence_number, "lower": file.lower_bounds, "upper": file.upper_bounds,
        "counts": file.value_counts, "partition": repr(file.partition), "splits": file.split_offsets,
    }  # fmt: skip


def test_a_table_that_is_written_anew_elsewhere_reads_as_before(table: Any, tmp_path: Path) -> None:
    old, new = tmp_path / "old place", tmp_path / "new place, of another length"
    place = NewPlace(old, f"file://{new}")
    pieces = list(list_table_files(table.metadata_location, place))
    again = list(list_table_files(table.metadata_location, place))
    assert pieces == again  # the same bytes each time: an interrupted copy goes on
    for piece in pieces:
        path = new / piece.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(piece.body if isinstance(piece, Rewritten) else (old / piece.name).read_bytes())
    last = pieces[-1]
    assert isinstance(last, Rewritten) and f"file://{old}/{last.name}" == table.metadata_location
    moved = StaticTable.from_metadata(f"file://{new}/{last.name}")
    old.rename(tmp_path / "gone")  # nothing of the copy refers to it
    assert sorted(moved.scan().to_arrow()["n"].to_pylist()) == [n for n in range(30) if n % 10 % 3 != 1]
    assert moved.scan(snapshot_id=moved.metadata.refs["kept"].snapshot_id).to_arrow().num_rows == 30
    (tmp_path / "gone").rename(old)
    before, after = entries(table), entries(moved)
    assert after == [e | {"path": place.respell(e["path"])} for e in before] and len(before) > 20
    names = [piece.name for piece in pieces]
    assert len(names) == len(set(names))
    live = {place.name(e["path"]) for e in before if e["status"] != 2}
    assert {piece.name for piece in pieces if isinstance(piece, Copied)} == live
    for snapshot in moved.metadata.snapshots:
        for manifest in read_manifest_list(moved.io.new_input(snapshot.manifest_list)):
            stored = Path(manifest.manifest_path.removeprefix("file://"))
            assert manifest.manifest_length == stored.stat().st_size


def test_what_a_table_is_stays_the_same(table: Any, tmp_path: Path) -> None:
    place = NewPlace(tmp_path / "old place", "s3://bucket/lake")
    last = list(list_table_files(table.metadata_location, place))[-1]
    assert isinstance(last, Rewritten)
    document, before = (
        json.loads(last.body),
        parse_document(table.metadata_location, Path(table.metadata_location.removeprefix("file://")).read_bytes()),
    )
    assert TableIdentity.of(document) == TableIdentity.of(before)
    assert document["location"].startswith("s3://bucket/lake/")
    assert document["properties"]["owner"] == str(tmp_path / "old place")  # a user's own text is no location
    for changed in ("location", "snapshots", "metadata-log"):
        document.pop(changed), before.pop(changed)
    assert document == before


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


@pytest.mark.parametrize("name", ["v9.gz.metadata.json", "00009-a.metadata.json.gz", "00009-a.gz.metadata.json"])
def test_metadata_that_was_compressed_stays_so_under_either_name(table: Any, tmp_path: Path, name: str) -> None:
    metadata = path_of(table.metadata_location)
    packed = metadata.with_name(name)
    packed.write_bytes(gzip.compress(metadata.read_bytes()))
    last = list(list_table_files(f"file://{packed}", NewPlace(tmp_path / "old place", "s3://bucket/lake")))[-1]
    assert isinstance(last, Rewritten) and json.loads(gzip.decompress(last.body))["location"].startswith("s3://")


def test_damaged_files_of_a_table_are_refused_by_name(table: Any, tmp_path: Path) -> None:
    """Earlier metadata, a manifest, and a list that ends behind its header, which would look empty."""
    snapshot = table.current_snapshot()
    listed = path_of(snapshot.manifest_list)
    manifest = path_of(read_manifest_list(table.io.new_input(snapshot.manifest_list)).__next__().manifest_path)
    earlier = path_of(table.metadata.metadata_log[0].metadata_file)
    header = listed.read_bytes()
    header = header[: header.index(header[-16:]) + 16]
    for path, body in ((earlier, b'{"a": '), (manifest, manifest.read_bytes() + b"x"), (listed, header)):
        before = path.read_bytes()
        path.write_bytes(body)
        with pytest.raises(TableUnfit, match=re.escape(path.name)):
            list(list_table_files(table.metadata_location, NewPlace(tmp_path / "old place", "s3://bucket/lake")))
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_a_name_that_no_reader_of_a_bucket_takes_is_refused(name: str) -> None:
    with pytest.raises(TableUnfit, match="has a # or a"):
        NewPlace(Path("/a/b"), "s3://c").respell(f"file:///a/b/t/{name}")


@pytest.mark.parametrize("spelled", ["file:///a/b/t/x", "file:/a/b/t/x", "/a/b/t/x", "file:////a/b/t/x"])
def test_a_folder_has_several_spellings(spelled: str) -> None:
    assert NewPlace(Path("/a/b"), "s3://c").respell(spelled) == "s3://c/t/x"


@pytest.mark.parametrize("elsewhere", ["file:///a/bc/x", "s3://a/b/x", "/a/x", "file:///a/b/../x"])
def test_what_is_outside_of_the_warehouse_does_not_move(elsewhere: str) -> None:
    with pytest.raises(TableUnfit, match="outside of the warehouse"):
        NewPlace(Path("/a/b"), "s3://c").respell(elsewhere)


def test_a_damaged_file_is_refused(table: Any) -> None:
    listed = Path(table.current_snapshot().manifest_list.removeprefix("file://")).read_bytes()
    wanted, ignore = Wanted(frozenset({500}), {}), lambda _: None
    found: list[Record] = []
    assert respell_avro(listed, Wanted(frozenset({500}), {}), found.append) and len(found) >= 1
    for damaged in (b"", b"Obj\x01", listed[:-5], listed[: len(listed) // 2], listed[:-20] + b"\0" * 20):
        with pytest.raises(TableUnfit, match="cannot be read"):
            respell_avro(damaged, wanted, ignore)
