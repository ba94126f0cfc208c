"""A listing out of a file: Parquet or CSV with key, size and time, as object stores export them.

Such a file is older than what it lists. That is safe: an entry that it does not have is looked for before it is called
missing, and a file that it has is looked at again before anything is done to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.errors import InputError
from strandline.reconcile.listing import Listing
from strandline.reconcile.paths import canonical

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = {
    "key": ("key", "path", "name", "object"),
    "size": ("size", "size_bytes", "content_length", "contentlength"),
    "modified": ("last_modified", "last_modified_date", "lastmodifieddate", "lastmodified", "modified", "mtime"),
    "bucket": ("bucket",),
    "latest": ("is_latest", "islatest"),
    "marker": ("is_delete_marker", "isdeletemarker"),
}


def read_inventory(file: Path, warehouse: str) -> Listing:
    """Of the lake's warehouse: other buckets and folders in it are left out."""
    base = canonical(warehouse).rstrip("/")
    listing = Listing((base,))
    for path, size, modified_ns in inventory_rows(file, base):
        folder, _, name = path.rpartition("/")
        listing.folder(folder).add(name, size, modified_ns)
    return listing


def inventory_pieces(file: Path) -> int:
    """How many pieces it can be read in, side by side."""
    import pyarrow.parquet as pq

    if not _is_parquet(file):
        return 1
    try:
        return max(1, pq.ParquetFile(file).num_row_groups)
    except (OSError, ValueError) as e:
        raise InputError(f"{file} cannot be read as an inventory: {e}") from e


def inventory_rows(file: Path, base: str, piece: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each file below `base`; of one piece, or of all."""
    start = f"{base}/"
    try:
        for batch in _batches(file, piece):
            columns = _columns(batch, file)
            rows = {name: batch.column(i).to_pylist() for name, i in columns.items()}
            count = batch.num_rows
            keys, sizes, times = rows["key"], rows["size"], _nanoseconds(batch.column(columns["modified"]))
            buckets = rows.get("bucket", [None] * count)
            latest, marker = rows.get("latest", [True] * count), rows.get("marker", [False] * count)
            for n in range(count):
                if not keys[n] or _is_false(latest[n]) or _is_true(marker[n]):
                    continue
                path = _path(str(keys[n]), buckets[n], base)
                if path.startswith(start) and not path.endswith("/"):
                    yield path, int(sizes[n] or 0), times[n]
    except (OSError, ValueError, TypeError) as e:
        raise InputError(f"{file} cannot be read as an inventory: {e}") from e


def _path(key: str, bucket: str | None, base: str) -> str:
    if key.startswith(("/", "file:")) or "://" in key:
        return canonical(key)
    home = f"s3://{bucket}" if bucket else "/".join(base.split("/")[:3]) if base.startswith("s3://") else base
    return f"{home}/{key}"


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _batches(file: Path, piece: int | None) -> Iterable[pa.RecordBatch]:
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    if _is_parquet(file):
        found = pq.ParquetFile(file)
        groups = None if piece is None else [piece] if piece < found.num_row_groups else []
        return found.iter_batches(batch_size=65_536, row_groups=groups)
    return pacsv.open_csv(file, parse_options=pacsv.ParseOptions(newlines_in_values=True))


def _columns(batch: pa.RecordBatch, file: Path) -> Mapping[str, int]:
    names = {name.strip().lower().replace("-", "_").replace(" ", "_"): i for i, name in enumerate(batch.schema.names)}
    found = {wanted: names[name] for wanted, known in _NAMES.items() for name in known if name in names}
    if missing := [wanted for wanted in ("key", "size", "modified") if wanted not in found]:
        raise InputError(
            f"{file} has no column for {', '.join(missing)}",
            hint="An inventory has a header, with columns such as key, size and last_modified.",
        )
    return found


def _nanoseconds(column: Any) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.cast(column, pa.timestamp("ns", tz="UTC"))
    elif pa.types.is_integer(column.type):
        # Milliseconds since 1970, as exports without a type for times have them.
        column = pc.cast(pc.cast(column, pa.int64()), pa.timestamp("ms"))
    elif not pa.types.is_timestamp(column.type):
        raise InputError(f"a column of times is of the type {column.type}")
    return [
        0 if value is None else value for value in pc.cast(pc.cast(column, pa.timestamp("ns")), pa.int64()).to_pylist()
    ]


def _is_false(value: object) -> bool:
    return value is False or (isinstance(value, str) and value.lower() == "false")


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")
