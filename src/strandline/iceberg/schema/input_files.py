"""Errors for unreadable input files, each with what to do about it. Light: loads neither Spark nor Arrow."""

from __future__ import annotations

import io
import shlex
import zlib
from collections import Counter
from pathlib import Path
from typing import Literal

import zstandard

from strandline.core.errors import InputError

HEAD_BYTES = 64 * 1024  # enough of a file to recognize the kind of text

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_PACKED = {".gz": "gzip", ".zst": "zstd"}  # the command that compresses and decompresses each

InputFormat = Literal["jsonl", "csv", "parquet"]
FORMATS: dict[str, InputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


def format_of(path: Path) -> tuple[InputFormat | None, str]:
    """The format that the file's name shows, if any, and the suffix of its compression, which may be empty."""
    suffixes = [s.lower() for s in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else ""
    return FORMATS.get(suffixes[-1] if suffixes else ""), packed


def folder_error(path: Path) -> InputError:
    """The error for a folder in place of a file. Its hint is a pattern for the readable files in the folder."""
    try:
        names = sorted(p.name for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError:
        names = []
    endings = Counter("".join(Path(n).suffixes[-2:] if Path(n).suffix in _PACKED else [Path(n).suffix]) for n in names)
    readable = [e for e, _ in endings.most_common() if e and "." + e.split(".")[1] in FORMATS]
    hint = "It has no file that can be read: JSON lines, CSV or Parquet."
    if readable:
        hint = f"Name the files in it: {shlex.quote(str(path))}/*{readable[0]}"
    elif names:
        hint = f"Name the files in it and their format: {shlex.quote(str(path))}/* --format csv"
    return InputError(f"{path} is a folder, not a file", hint=hint)


def unpacked(path: Path, head: bytes) -> bytes:
    """The beginning of the text, decompressed. Damaged data gives less text: reading the whole file reports the
    damage."""
    match path.suffix.lower():
        case ".gz":
            return _from_gzip(head)
        case ".zst":
            try:
                reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(head), read_across_frames=True)
                return reader.read(HEAD_BYTES)
            except zstandard.ZstdError:
                return b""
    return head


def _from_gzip(head: bytes) -> bytes:
    text = b""
    try:
        while head and len(text) < HEAD_BYTES:  # a file may consist of several members
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            text += member.decompress(head, HEAD_BYTES - len(text))
            head = member.unused_data
    except zlib.error:
        pass
    return text


def check_text(path: Path, format: str, head: bytes) -> None:
    """Raises InputError for an encoding or line ends that are not supported. Its hint is the command that converts the
    file. `head` is the decompressed beginning of the file."""
    if head.startswith(_UTF16) or b"\0" in head[:4]:
        raise InputError(
            f"{path} is UTF-16, and only UTF-8 is read",
            hint=how_to_convert(path, "iconv -f UTF-16 -t UTF-8", f"utf8-{shlex.quote(path.name)}"),
        )
    if b"\r" in head and b"\n" not in head and (format == "csv" or b"}\r" in head):
        raise InputError(
            f"{path} has carriage returns as line ends, and only newlines end a line",
            hint=how_to_convert(path, "tr '\\r' '\\n'", f"lines-{shlex.quote(path.name)}"),
        )


def how_to_convert(path: Path, command: str, to: str) -> str:
    """A hint with the command that converts the file. A compressed file is decompressed, and the result compressed."""
    packer, source = _PACKED.get(path.suffix.lower()), shlex.quote(str(path))
    if packer is None:
        return f"Convert it: {command} < {source} > {to}"
    return f"Convert it: {packer} -dc < {source} | {command} | {packer} > {to}"


def other_delimiter(header: str) -> str | None:
    """The likely delimiter of a line without commas."""
    counts = [(header.count(c), c) for c in ";\t|" if c in header]
    return max(counts)[1] if counts and "," not in header else None


def wrong_delimiter(path: Path, delimiter: str) -> str:
    """A hint with the command that replaces the delimiter by commas."""
    python = f"import csv,sys;csv.writer(sys.stdout).writerows(csv.reader(sys.stdin,delimiter={delimiter!r}))"
    packed = path.suffix if path.suffix.lower() in _PACKED else ""
    return f"Only commas are read. {how_to_convert(path, f'python3 -c {shlex.quote(python)}', f'NEW.csv{packed}')}"
