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
    """The format in a file's name, if it has one, and the suffix of its compression, which may be empty."""
    suffixes = [s.lower() for s in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else ""
    return FORMATS.get(suffixes[-1] if suffixes else ""), packed


def is_folder(path: Path) -> InputError:
    """Suggests the pattern that names the readable files in it."""
    try:
        found = sorted(p.name for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError:
        found = []
    endings = Counter("".join(Path(n).suffixes[-2:] if Path(n).suffix in _PACKED else [Path(n).suffix]) for n in found)
    known = [e for e, _ in endings.most_common() if e and "." + e.split(".")[1] in FORMATS]
    hint = "There is no file in it that can be read: JSON lines, CSV or Parquet."
    if known:
        hint = f"Name the files in it: {shlex.quote(str(path))}/*{known[0]}"
    elif found:
        hint = f"Name the files in it and their format: {shlex.quote(str(path))}/* --format csv"
    return InputError(f"{path} is a folder, not a file", hint=hint)


def unpacked(path: Path, head: bytes) -> bytes:
    """The beginning of the text, decompressed. Damaged data gives less; reading the whole file reports that."""
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
    """Refuses encodings and line ends that are not supported, with the command that converts them. `head` is
    decompressed. Raises InputError."""
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
    """For a compressed file, the command decompresses it and compresses the result."""
    packer, source = _PACKED.get(path.suffix.lower()), shlex.quote(str(path))
    if packer is None:
        return f"Convert it: {command} < {source} > {to}"
    return f"Convert it: {packer} -dc < {source} | {command} | {packer} > {to}"


def other_delimiter(header: str) -> str | None:
    """The likely delimiter of a line without commas."""
    found = [(header.count(c), c) for c in ";\t|" if c in header]
    return max(found)[1] if found and "," not in header else None


def wrong_delimiter(path: Path, found: str) -> str:
    """A hint: the command that replaces the delimiter by commas."""
    python = f"import csv,sys;csv.writer(sys.stdout).writerows(csv.reader(sys.stdin,delimiter={found!r}))"
    packed = path.suffix if path.suffix.lower() in _PACKED else ""
    return f"Only commas are read. {how_to_convert(path, f'python3 -c {shlex.quote(python)}', f'NEW.csv{packed}')}"
