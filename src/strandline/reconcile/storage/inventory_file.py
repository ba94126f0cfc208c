"""Reads a listing from files: Parquet or CSV with key, size and time, as object stores export them.

Such a file is older than the storage it lists. That is safe: an entry that it lacks is checked before it is reported
missing, and a file that it has is checked again before anything is done to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from strandline.core.errors import InputError
from strandline.reconcile.paths import canonical
from strandline.reconcile.storage.inventory_parts import InventoryPart, inventory_parts
from strandline.reconcile.storage.listing import Listing

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 65_536
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"


def read_inventory(file: Path, warehouse: str) -> Listing:
    """Only the lake's warehouse: rows of other buckets and folders are skipped."""
    base = canonical(warehouse).rstrip("/")
    return Listing.of(inventory_rows(file, base), roots=(base,))


def count_parts(file: Path) -> int:
    """How many pieces can be read in parallel: the files of an export, or the row groups of a single file."""
    import pyarrow.parquet as pq

    parts = inventory_parts(file)
    if len(parts) == 1 and parts[0].is_parquet:
        return max(1, int(pq.ParquetFile(parts[0].file).num_row_groups))
    return len(parts)


def inventory_rows(file: Path, base: str, piece: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each file below `base`; of one piece, or of all."""
    parts = inventory_parts(file)
    for n, part in enumerate(parts):
        if piece is None or len(parts) == 1 or piece == n:
            yield from _rows(part, base, piece if len(parts) == 1 else None)


def _rows(part: InventoryPart, base: str, group: int | None) -> Iterator[tuple[str, int, int]]:
    start = f"{base}/"
    try:
        for batch in _batches(part, group):
            rows = {name: batch.column(i).to_pylist() for name, i in part.columns.items() if name != "modified"}
            count = batch.num_rows
            keys: list[Any] = rows["key"]
            sizes, times = rows["size"], _nanoseconds(batch.column(part.columns["modified"]))
            buckets = rows.get("bucket", [part.bucket] * count)
            latest, marker = rows.get("latest", [True] * count), rows.get("marker", [False] * count)
            for n in range(count):
                # Booleans, or words of a CSV file.
                if not keys[n] or str(latest[n]).lower() == "false" or str(marker[n]).lower() == "true":
                    continue
                key = unquote_plus(keys[n], errors="surrogateescape") if part.is_escaped else str(keys[n])
                path = _path(key, buckets[n], base)
                if path.startswith(start) and not path.endswith("/"):
                    yield path, int(sizes[n] or 0), times[n]
    except (OSError, ValueError, TypeError) as e:
        raise InputError(f"{part.file} cannot be read as an inventory: {e}") from e


def _path(key: str, bucket: str | None, base: str) -> str:
    if bucket:
        return f"s3://{bucket}/{key}"
    if key.startswith(("/", "file:")) or "://" in key:
        return canonical(key)
    home = "/".join(base.split("/")[:3]) if base.startswith("s3://") else base
    return f"{home}/{key}"


def _batches(part: InventoryPart, group: int | None) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    if part.is_parquet:
        found = pq.ParquetFile(part.file)
        groups = None if group is None else [group] if group < found.num_row_groups else []
        return found.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=groups)
    if part.width == 0:
        return ()
    names = [str(n) for n in range(part.width)]
    packing: Any = "gzip" if part.is_packed else None
    content: Any = pa.input_stream(str(part.file), compression=packing)
    return pacsv.open_csv(
        content,
        read_options=pacsv.ReadOptions(column_names=names, skip_rows=1 if part.has_header else 0),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        # As text: a key that looks like a number is not one.
        convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


def _nanoseconds(column: Any) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = _of_text(pc.replace_with_mask(column, pc.equal(column, pa.scalar("")), pa.scalar(None, column.type)))
    if pa.types.is_integer(column.type):
        # Milliseconds since 1970, in exports that have no type for times.
        column = pc.cast(pc.cast(column, pa.int64()), pa.timestamp("ms"))
    elif not pa.types.is_timestamp(column.type):
        raise InputError(f"a column of times is of the type {column.type}")
    return [
        0 if value is None else value for value in pc.cast(pc.cast(column, pa.timestamp("ns")), pa.int64()).to_pylist()
    ]


def _of_text(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.utf8_is_digit(column)).as_py():
        return pc.cast(column, pa.int64())
    has_zones = pc.any(pc.match_substring_regex(column, _ZONE)).as_py()
    return pc.cast(column, pa.timestamp("ns", tz="UTC") if has_zones else pa.timestamp("ns"))
