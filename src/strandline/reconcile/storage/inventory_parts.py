"""Finds the files of an inventory, and the meaning of their columns.

Stores export in three ways: Parquet, which has column names; CSV with a header; and CSV without one, with URL-encoded
keys and a `manifest.json` that gives the order of the columns.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.core.errors import InputError

_NAMES = {
    "key": ("key", "path", "name", "object"),
    "size": ("size", "size_bytes", "content_length", "contentlength"),
    "modified": ("last_modified", "last_modified_date", "lastmodifieddate", "lastmodified", "modified", "mtime"),
    "bucket": ("bucket",),
    "latest": ("is_latest", "islatest"),
    "marker": ("is_delete_marker", "isdeletemarker"),
}
_NEEDED = ("key", "size", "modified")
_VERSIONED = {"bucket": 0, "key": 1, "latest": 3, "marker": 4, "size": 5, "modified": 6}
_PLAIN = {"bucket": 0, "key": 1, "size": 2, "modified": 3}  # positions of columns in an export that does not name them
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_BOOLEANS = ("true", "false")
_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class InventoryPart:
    file: Path
    is_parquet: bool
    is_packed: bool
    columns: Mapping[str, int]
    width: int  # number of columns; 0 without rows
    has_header: bool
    is_escaped: bool  # whether keys are URL-encoded
    bucket: str | None = None  # of rows that do not name one


def inventory_parts(file: Path) -> list[InventoryPart]:
    """The file itself, or all files that a `manifest.json` names. Raises InputError."""
    try:
        return _exported(file) if file.suffix.lower() == ".json" else [_part(file)]
    except (OSError, EOFError, ValueError, csv.Error) as e:
        raise InputError(f"{file} cannot be read as an inventory: {e}") from e


def _exported(manifest: Path) -> list[InventoryPart]:
    said: Any = json.loads(manifest.read_text("utf-8"))
    if not isinstance(said, dict) or not isinstance(said.get("files"), list) or not said["files"]:
        raise InputError(f"{manifest} names no files of an inventory")
    form, bucket = str(said.get("fileFormat", "")).upper(), said.get("sourceBucket")
    if form not in ("CSV", "PARQUET"):
        raise InputError(f"{manifest} is of an inventory as {form or 'nothing'}", hint="Export it as Parquet or CSV.")
    schema = [name.strip() for name in str(said.get("fileSchema", "")).split(",")] if form == "CSV" else None
    parts: list[InventoryPart] = []
    for named in said["files"]:
        about: dict[str, Any] = named if isinstance(named, dict) else {}
        file = _beside(manifest, str(about.get("key", "")))
        if isinstance(size := about.get("size"), int) and size != file.stat().st_size:
            raise InputError(f"{file} is not as long as {manifest} says", hint="Fetch it again.")
        parts.append(_part(file, schema, None if bucket is None else str(bucket)))
    return parts


def _beside(manifest: Path, key: str) -> Path:
    """In the manifest's folder, or where the store puts it, if folders were copied unchanged. Raises InputError."""
    name = key.rpartition("/")[2]
    places = [manifest.parent / name, manifest.parent / "data" / name, manifest.parent.parent / "data" / name]
    places += [above / key for above in manifest.resolve().parents]
    for place in places if name else ():
        if place.is_file():
            return place
    raise InputError(
        f"{manifest} names {key or 'a file without a name'}, which is not there",
        hint="Put all files that it names beside it.",
    )


def _part(file: Path, schema: Sequence[str] | None = None, bucket: str | None = None) -> InventoryPart:
    with file.open("rb") as raw:
        start = raw.read(len(_PARQUET))
    if start == _PARQUET:
        import pyarrow.parquet as pq

        names = pq.ParquetFile(file).schema_arrow.names
        columns = _checked(_by_name(names), file)
        return InventoryPart(file, True, False, columns, len(names), True, False, bucket)
    is_packed = start.startswith(_GZIP)
    row = _first_row(file, is_packed)
    if schema is not None:
        columns = _checked(_by_name(schema), file)
        return InventoryPart(file, False, is_packed, columns, len(schema) if row else 0, False, True, bucket)
    named = _by_name(row)
    if not set(named) & set(_NEEDED) and (found := _by_content(row)) is not None:
        return InventoryPart(file, False, is_packed, found, len(row), False, True)
    return InventoryPart(file, False, is_packed, _checked(named, file), len(row), True, False)


def _first_row(file: Path, is_packed: bool) -> list[str]:
    opened = gzip.open if is_packed else open
    with opened(file, "rt", encoding="utf-8-sig", newline="") as text:
        return next(csv.reader(text), [])


def _by_name(names: Sequence[str]) -> dict[str, int]:
    plain = {name.strip().lower().replace("-", "_").replace(" ", "_"): i for i, name in enumerate(names)}
    return {wanted: plain[name] for wanted, known in _NAMES.items() for name in known if name in plain}


def _by_content(row: Sequence[str]) -> dict[str, int] | None:
    """Bucket and key, perhaps version columns, then size and time. None if the row does not look like that."""
    for columns in (_PLAIN, _VERSIONED):
        if len(row) <= columns["modified"]:
            continue
        size, modified = row[columns["size"]], row[columns["modified"]]
        flags = [row[columns[name]].lower() in _BOOLEANS for name in ("latest", "marker") if name in columns]
        is_size = size.isdecimal() or (not size and bool(flags))  # a delete marker has no size
        if row[0] and row[1] and is_size and _TIME.fullmatch(modified) and all(flags):
            return columns
    return None


def _checked(columns: dict[str, int], file: Path) -> dict[str, int]:
    if missing := [wanted for wanted in _NEEDED if wanted not in columns]:
        raise InputError(
            f"{file} has no column for {', '.join(missing)}",
            hint="An inventory has a header, with columns such as key, size and last_modified. If there is a "
            "manifest.json, pass that instead.",
        )
    return columns
