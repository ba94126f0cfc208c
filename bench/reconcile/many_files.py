"""A table of very many files, and files that it does not know, without writing rows.

Spark writes one row; the manifest that Iceberg's Java library makes of it is the template. Its header and its entry are
repeated with other paths and other statistics of the same columns, so that the manifests are what Java writes and pack
as badly as those of real tables. The files themselves are empty: neither side opens them.
"""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from strandline.lake import Lake

_V = TypeVar("_V")

SYNC_BYTES = 16
FOLDERS = 100
ENTRIES_PER_MANIFEST = 5_000
BLOCK_BYTES = 64_000
AGE_DAYS = 10
_WORDS = ("red", "green", "small", "large", "open", "closed", "north", "south", "first", "second", "paid", "refused")
VARIETIES = 500
"""Of statistics. An entry that is like another is far behind it: farther than deflate looks."""


def make_table(lake: Lake, name: str, *, live: int, stray: int, columns: int, on_disk: bool = True) -> str:
    """Name in the catalog. All of `stray` are old enough for either side to report. Without `on_disk`, the table alone
    knows the live files."""
    spark = lake.spark
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.many")
    fields = ", ".join(f"c{n} {'string' if n % 3 else 'bigint'}" for n in range(columns))
    spark.sql(
        f"CREATE TABLE lake.many.{name} ({fields}) USING iceberg TBLPROPERTIES "
        "('write.metadata.metrics.default' = 'full', 'write.metadata.metrics.max-inferred-column-defaults' = '1000')"
    )
    values = ", ".join(f"'value {n:06d} of a column'" if n % 3 else str(10**12 + n) for n in range(columns))
    spark.sql(f"INSERT INTO lake.many.{name} VALUES ({values})")
    table = lake.catalog.load(f"many.{name}")
    folder = Path(_local(table.location())) / "data"
    paths = make_files(folder, live, stray, on_disk=on_disk)
    _register(table, paths)
    return f"many.{name}"


def make_files(folder: Path, live: int, stray: int, *, on_disk: bool = True) -> Iterator[str]:
    """Makes all of them, and gives the paths of those that are to be live."""
    folders = [folder / f"p={n:03d}" for n in range(FOLDERS)]
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    old = time.time() - AGE_DAYS * 86_400
    for n in range(stray):
        path = f"{folders[n % FOLDERS]}/{n:05d}-stray-0b1d2f3a-4c5e-6789-abcd-ef{n:010d}-00001.parquet"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        os.utime(path, (old, old))
    for n in range(live):
        path = live_path(folder, n)
        if on_disk:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        yield path


def live_path(folder: Path, n: int) -> str:
    """Of the nth live file of the table."""
    return f"{folder}/p={n % FOLDERS:03d}/{n % 1000:05d}-{n}-0b1d2f3a-4c5e-6789-abcd-ef{n:010d}-00001.parquet"


def _register(table: Table, paths: Iterator[str]) -> None:
    """One more snapshot, with manifests made from the first one's."""
    from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

    current = table.current_snapshot()
    if current is None:
        raise RuntimeError("the table has no snapshot to take the template from")
    (first,) = current.manifests(table.io)
    template = _Template(_read(first.manifest_path))
    scheme = template.path[: template.path.index("/data/")].removesuffix(_local(table.location()))
    number, sequence = current.snapshot_id + 1, (current.sequence_number or 0) + 1
    made = [first]
    folder = table.location() + "/metadata"
    while batch := [path for _, path in zip(range(ENTRIES_PER_MANIFEST), paths, strict=False)]:
        where = f"{folder}/made-{len(made):06d}-m0.avro"
        length = template.write(_local(where), [scheme + path for path in batch])
        made.append(
            ManifestFile.from_args(
                manifest_path=where,
                manifest_length=length,
                partition_spec_id=first.partition_spec_id,
                content=ManifestContent.DATA,
                sequence_number=sequence,
                min_sequence_number=sequence,
                added_snapshot_id=number,
                added_files_count=len(batch),
                existing_files_count=0,
                deleted_files_count=0,
                added_rows_count=len(batch),
                existing_rows_count=0,
                deleted_rows_count=0,
                partitions=[],
                key_metadata=None,
            )
        )
    listed = f"{folder}/snap-{number}-1-made.avro"
    with write_manifest_list(2, table.io.new_output(listed), number, current.snapshot_id, sequence, "gzip") as writer:
        writer.add_manifests(made)
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=current.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=int(time.time() * 1000),
        manifest_list=listed,
        summary=Summary(Operation.APPEND),
        schema_id=table.metadata.current_schema_id,
    )
    table.catalog.commit_table(
        table,
        (),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=number,
                max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
            ),
        ),
    )  # fmt: skip


class _Template:
    """A manifest of one entry, taken apart at its path."""

    def __init__(self, content: bytes) -> None:
        self._sync = content[-SYNC_BYTES:]
        at = content.index(self._sync) + SYNC_BYTES
        self._head = content[:at]
        _, at = _read_long(content, at)
        size, at = _read_long(content, at)
        record = zlib.decompress(content[at : at + size], -15)
        end = record.index(b".parquet") + len(b".parquet")
        begin = next(
            at
            for at in range(record.rindex(b"/data/", 0, end), 0, -1)
            if record.startswith((b"/", b"file:"), at) and _length_before(record, at, end - at) is not None
        )
        length = _length_before(record, begin, end - begin)
        if length is None:
            raise RuntimeError("the path was not found in the template")
        self.path = record[begin:end].decode()
        self._before = record[: begin - length]
        self._after = _varieties(record[end:])
        self._written = 0

    def write(self, path: str, paths: list[str]) -> int:
        with open(path, "wb") as file:
            file.write(self._head)
            block, count = bytearray(), 0
            for each in paths:
                name = each.encode()
                block += self._before + _long(len(name)) + name + self._after[self._written % VARIETIES]
                self._written += 1
                count += 1
                if len(block) >= BLOCK_BYTES:
                    self._write_block(file, block, count)
                    block, count = bytearray(), 0
            if count:
                self._write_block(file, block, count)
            return file.tell()

    def _write_block(self, file: object, block: bytearray, count: int) -> None:
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        packed = packer.compress(block) + packer.flush()
        file.write(_long(count) + _long(len(packed)) + packed + self._sync)  # type: ignore[attr-defined]


def _varieties(after: bytes) -> list[bytes]:
    """What follows a path in an entry, with other numbers: its format, an empty partition, how many rows and bytes it
    has, four maps of counts, lower and upper bounds, and what is left as it is."""
    size, at = _read_long(after, 0)
    start = at + size
    _, at = _read_long(after, start)
    _, at = _read_long(after, at)
    counts = []
    for _ in range(4):
        found, at = _read_map(after, at, _read_long)
        counts.append(found)
    lower, at = _read_map(after, at, _read_bytes)
    _, at = _read_map(after, at, _read_bytes)
    chance = random.Random(7)
    return [after[:start] + _statistics(chance, counts, lower) + after[at:] for _ in range(VARIETIES)]


def _statistics(chance: random.Random, counts: list[dict[int, int]], lower: dict[int, bytes]) -> bytes:
    rows = chance.randint(1_000, 1_000_000)
    sizes, _, nulls, nans = counts
    out = _long(rows) + _long(chance.randint(1 << 20, 1 << 29))
    out += _map({k: _long(chance.randint(100, 1 << 24)) for k in sizes})
    out += _map(dict.fromkeys(counts[1], _long(rows)))
    out += _map({k: _long(chance.choice((0, 0, 0, chance.randint(0, rows)))) for k in nulls})
    out += _map(dict.fromkeys(nans, _long(0)))
    bounds = {k: sorted(_like(chance, k, value) for _ in range(2)) for k, value in lower.items()}
    for side in (0, 1):
        out += _map({k: _long(len(pair[side])) + pair[side] for k, pair in bounds.items()})
    return out


def _like(chance: random.Random, column: int, value: bytes) -> bytes:
    """A number not far from that of other files; a text of words, and in every second column of any length."""
    if len(value) == 8:
        return (10**12 * column + chance.randrange(10**7)).to_bytes(8, "little")
    text = " ".join(chance.choice(_WORDS) for _ in range(4)).encode()[: len(value)]
    return text[: chance.randint(3, len(text))] if column % 2 else text


def _read_map(content: bytes, at: int, read: Callable[[bytes, int], tuple[_V, int]]) -> tuple[dict[int, _V], int]:
    """An optional one, as Avro has maps with keys that are numbers: blocks of pairs."""
    found: dict[int, _V] = {}
    branch, at = _read_long(content, at)
    if branch != 1:
        raise RuntimeError("the template has no statistics")
    count, at = _read_long(content, at)
    while count:
        for _ in range(count):
            key, at = _read_long(content, at)
            found[key], at = read(content, at)
        count, at = _read_long(content, at)
    return found, at


def _map(values: dict[int, bytes]) -> bytes:
    pairs = b"".join(_long(key) + value for key, value in values.items())
    return _long(1) + (_long(len(values)) + pairs if values else b"") + _long(0)


def _read_bytes(content: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(content, at)
    return content[at : at + size], at + size


def _length_before(record: bytes, at: int, length: int) -> int | None:
    """How many bytes before `at` are the length of what begins there, if they are."""
    spelled = _long(length)
    return len(spelled) if record[at - len(spelled) : at] == spelled else None


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_long(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at


def _local(path: str) -> str:
    return "/" + path.removeprefix("file:").lstrip("/")


def _read(path: str) -> bytes:
    return Path(_local(path)).read_bytes()
