"""Inventories as object stores export them: in several files, without a header, with escaped names."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.errors import InputError
from strandline.reconcile.on_spark.listing import FILE, InventoryLister
from strandline.reconcile.storage.inventory_file import count_parts, inventory_rows, read_inventory

BASE = "s3://b/wh"
AT, AT_NS = "2023-11-14T22:13:20.123Z", 1_700_000_000_123_000_000
SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"
PLAIN = [f'"b","wh/t/data/p%3D1/a%20b%2B{n}+c%25.parquet","{n}","{AT}","etag"' for n in range(3)]
NAMES = [f"{BASE}/t/data/p=1/a b+{n} c%.parquet" for n in range(3)]
VERSIONED = [
    f'"b","wh/t/now%0Aor+never","v1","true","false","7","{AT}","etag","STANDARD"',
    f'"b","wh/t/now%0Aor+never","v0","false","false","9","{AT}","etag","STANDARD"',
    f'"b","wh/t/deleted","v2","true","true","","{AT}","",""',
    f'"b","wh/t/0012","","true","false","8","{AT}","etag","STANDARD"',
    f'"other","wh/t/x","","true","false","8","{AT}","etag","STANDARD"',
]


def packed(file: Path, lines: Sequence[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file


def manifest(folder: Path, key_of: str, parts: Sequence[Path], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "sourceBucket": "b",
        "fileFormat": "CSV",
        "fileSchema": SCHEMA,
        "files": [{"key": key_of + file.name, "size": file.stat().st_size, "MD5checksum": ""} for file in parts],
    }
    (folder / "manifest.json").write_text(json.dumps(said | changes), "utf-8")
    return folder / "manifest.json"


def test_an_export_without_a_header_is_read_by_position_and_its_keys_are_unescaped(tmp_path: Path) -> None:
    file = packed(tmp_path / "part.csv.gz", PLAIN)
    assert list(inventory_rows(file, BASE)) == [(name, n, AT_NS) for n, name in enumerate(NAMES)]
    file = packed(tmp_path / "versions.csv.gz", VERSIONED)
    expected = [(f"{BASE}/t/now\nor never", 7, AT_NS), (f"{BASE}/t/0012", 8, AT_NS)]
    assert list(inventory_rows(file, BASE)) == expected
    file = packed(tmp_path / "deleted_first.csv.gz", VERSIONED[2:])
    assert list(inventory_rows(file, BASE)) == expected[1:]


def test_with_a_header_a_key_is_taken_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "i.csv"
    file.write_text(f"key,size,last_modified\nwh/a%20b+c,1,{AT}\nwh/0012,2,2023-11-14T22:13:20.123Z\n", "utf-8")
    assert list(inventory_rows(file, BASE)) == [(f"{BASE}/a%20b+c", 1, AT_NS), (f"{BASE}/0012", 2, AT_NS)]
    file.write_text("key,size,last_modified\nwh/a,1,2023-11-14 22:13:20\nwh/b,,\n", "utf-8")
    assert list(inventory_rows(file, BASE)) == [(f"{BASE}/a", 1, AT_NS // 10**9 * 10**9), (f"{BASE}/b", 0, 0)]


@pytest.mark.parametrize("place", ["beside", "as in the store"])
def test_a_manifest_leads_to_all_of_its_files(tmp_path: Path, place: str) -> None:
    key, folder = "inventory/b/nightly/data/", tmp_path / "inventory/b/nightly/2026-11-16T01-00Z"
    at = folder if place == "beside" else tmp_path / key
    files = [packed(at / f"{n}.csv.gz", VERSIONED[n : n + 2]) for n in (0, 2)] + [packed(at / "none.csv.gz", [])]
    file = manifest(folder, key, files)
    expected = {f"{BASE}/t/now\nor never", f"{BASE}/t/0012"}
    assert {path for path, _, _ in inventory_rows(file, BASE)} == expected
    assert count_parts(file) == 3
    assert [len(list(inventory_rows(file, BASE, piece))) for piece in range(3)] == [1, 1, 0]
    assert len(read_inventory(file, BASE)) == 2
    # As tasks on executors read it.
    ids = pa.RecordBatch.from_pydict({"id": list(range(count_parts(file)))})
    rows = [row for batch in InventoryLister(file, BASE).run([ids]) for row in batch.to_pylist()]
    assert {row["path"].decode() for row in rows} == expected and {row["kind"] for row in rows} == {FILE}


def test_a_manifest_of_parquet_files_is_read_and_nothing_in_them_is_unescaped(tmp_path: Path) -> None:
    files = []
    for n in range(2):
        at = pa.array([AT_NS // 10**6] * 2, pa.timestamp("ms", tz="UTC"))
        keys = [f"wh/t/a%20b+{n}", f"wh/t/{n}"]
        table = pa.table({"bucket": ["b"] * 2, "key": keys, "size": [1, 2], "last_modified_date": at})
        files.append(tmp_path / f"{n}.parquet")
        pq.write_table(table, files[-1])
    file = manifest(tmp_path, "x/data/", files, fileFormat="Parquet", fileSchema="message s3.inventory { }")
    assert [path for path, _, _ in inventory_rows(file, BASE)] == [
        f"{BASE}/t/a%20b+0", f"{BASE}/t/0", f"{BASE}/t/a%20b+1", f"{BASE}/t/1",
    ]  # fmt: skip
    assert count_parts(file) == 2


def test_an_export_that_is_not_whole_or_not_understood_is_refused(tmp_path: Path) -> None:
    whole = packed(tmp_path / "part.csv.gz", VERSIONED)
    file = manifest(tmp_path, "data/", [whole])
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(InputError, match="not as long"):
        read_inventory(file, BASE)
    with pytest.raises(InputError, match="cannot be read"):
        torn = packed(
            tmp_path / "torn.csv.gz", [*PLAIN, *(f"b,wh/{n},{n * 7919 % 104_729},{AT}," for n in range(9999))]
        )
        torn.write_bytes(torn.read_bytes()[:-5_000])
        read_inventory(torn, BASE)
    with pytest.raises(InputError, match="cannot be read"):
        read_inventory(torn.rename(tmp_path / "torn.json"), BASE)
    whole.unlink()
    with pytest.raises(InputError, match="not there"):
        read_inventory(file, BASE)
    for changes in ({"fileFormat": "ORC", "files": [{}]}, {"files": []}, {"files": ["x"]}, {"files": [{"key": "a/"}]}):
        with pytest.raises(InputError):
            read_inventory(manifest(tmp_path, "data/", (), **changes), BASE)
    with pytest.raises(InputError, match="no column for size"):
        packed(tmp_path / "part.csv.gz", VERSIONED)
        read_inventory(manifest(tmp_path, "data/", [tmp_path / "part.csv.gz"], fileSchema="Bucket, Key"), BASE)
    for line in ("b,wh/x,big,now", "b,wh/x,1,tomorrow", "b,wh/x,v,1,1,1,2023-11-14T22:13:20Z", ""):
        with pytest.raises(InputError, match="no column"):
            read_inventory(packed(tmp_path / "odd.csv.gz", [line]), BASE)
