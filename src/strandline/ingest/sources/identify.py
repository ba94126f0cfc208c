"""Identifies a file's format, and the batch id of its bytes, without loading Spark or Arrow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from strandline.core.errors import InputError, UsageError
from strandline.iceberg.schema.input_files import (
    FORMATS,
    HEAD_BYTES,
    InputFormat,
    check_text,
    folder_error,
    format_of,
    unpacked,
)

Compression = Literal["none", "gz", "zst"]

COMPRESSIONS: dict[str, Compression] = {"": "none", ".gz": "gz", ".zst": "zst"}
_FORMAT_NAMES = ("jsonl", "csv", "parquet")

_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "Parquet": b"PAR1"}


@dataclass(frozen=True)
class SourceFile:
    path: Path  # as the user named it, for messages
    location: Path  # absolute: executors may have another working directory
    format: InputFormat
    compression: Compression
    size_bytes: int


def identify(path: Path, format: str | None = None) -> SourceFile:
    """The file's format, which its name shows unless `format` is given. Raises InputError if the file's first bytes
    contradict it or the file cannot be read, and UsageError if the format is unclear."""
    if path.is_dir():
        raise folder_error(path)
    by_name, packed = format_of(path)
    compression = COMPRESSIONS[packed]
    file_format = _format(path, by_name, format)
    if file_format == "parquet" and compression != "none":
        raise UsageError(
            f"{path}: a Parquet file is not compressed as a whole",
            hint="Decompress it first, or name it .parquet if it is not compressed.",
        )
    size_bytes, head = _read_head(path)
    if size_bytes:
        _check_magic(path, file_format, compression, head)
        if file_format != "parquet":
            check_text(path, file_format, unpacked(path, head))
    return SourceFile(path, path.absolute(), file_format, compression, size_bytes)


def file_batch_id(path: Path) -> str:
    """The batch id of the file's bytes, independent of its name."""
    try:
        with path.open("rb") as f:
            return "file-" + hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise unreadable(path, e) from e


def unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"there is no file {path}")
    if isinstance(error, IsADirectoryError):
        return folder_error(path)
    if isinstance(error, PermissionError):
        return InputError(f"no permission to read {path}")
    return InputError(f"{path} cannot be read: {error.strerror or error}")


def _format(path: Path, by_name: InputFormat | None, named: str | None) -> InputFormat:
    if named is not None:
        if named not in _FORMAT_NAMES:
            raise UsageError(f"unknown format {named}", hint=f"It is one of {', '.join(_FORMAT_NAMES)}.")
        return cast(InputFormat, named)
    if by_name is None:
        raise UsageError(
            f"{path}: the format is not clear from the name",
            hint=f"Use a name with {' '.join(FORMATS)}, for text formats also with .gz or .zst; or use --format.",
        )
    return by_name


def _read_head(path: Path) -> tuple[int, bytes]:
    try:
        with path.open("rb") as f:
            head = f.read(HEAD_BYTES)
            return f.seek(0, 2), head
    except OSError as e:
        raise unreadable(path, e) from e


def _check_magic(path: Path, format: InputFormat, compression: Compression, head: bytes) -> None:
    content = next((name for name, magic in _MAGIC.items() if head.startswith(magic)), None)
    claimed = {"gz": "gzip", "zst": "zstd", "none": "Parquet" if format == "parquet" else None}[compression]
    if claimed == "zstd" and content is None and head[1:4] == b"\x2a\x4d\x18":
        return  # a zstd stream may begin with a skippable frame
    if content != claimed:
        problem = f"the content is {content}" if content else f"the content is not {claimed}"
        raise InputError(f"{path} is not what its name suggests: {problem}", hint=_right_name(path, content, claimed))


def _right_name(path: Path, content: str | None, claimed: str | None) -> str:
    """A hint with a name that fits the content. (`--format` does not set the compression.)"""
    packed = {"gzip": ".gz", "zstd": ".zst"}
    if content in packed:
        return f"Rename it to {path.name}{packed[content]}."
    if claimed in packed.values() or claimed in packed:
        return f"It is not compressed: rename it to {path.stem}."
    if content == "Parquet":
        return f"Rename it to {path.stem}.parquet, or use --format parquet."
    return "Rename it so that the name shows the format, or use --format csv or --format jsonl."
