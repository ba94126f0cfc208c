"""What a file is, and which batch its bytes are."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from strandline.core.errors import InputError, UsageError
from strandline.iceberg.schema.infer import infer
from strandline.ingest.sources.identify import file_batch_id, identify


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"{}\n", ("jsonl", "none")),
        ("a.ndjson", b"{}\n", ("jsonl", "none")),
        ("a.json", b"{}\n", ("jsonl", "none")),
        ("a.JSONL.GZ", gzip.compress(b"{}", mtime=0), ("jsonl", "gz")),
        ("a.b.jsonl.zst", zstandard.compress(b"{}"), ("jsonl", "zst")),
        ("a.csv", b"x\n", ("csv", "none")),
        ("a.csv.gz", gzip.compress(b"x\n", mtime=0), ("csv", "gz")),
        ("part-0.gz.parquet", b"PAR1....PAR1", ("parquet", "none")),
        ("empty.jsonl.gz", b"", ("jsonl", "gz")),
    ],
)
def test_a_file_is_known_by_its_name(tmp_path: Path, name: str, content: bytes, expected: tuple[str, str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    source = identify(path)
    assert (source.format, source.compression, source.size_bytes) == (*expected, len(content))


def test_a_named_format_overrides_the_name(tmp_path: Path) -> None:
    path = tmp_path / "export.txt"
    path.write_bytes(b"a,b\n")
    assert identify(path, "csv").format == "csv"


@pytest.mark.parametrize(("name", "format"), [("a.txt", None), ("a", None), ("a.gz", None), ("a.csv", "xml")])
def test_an_unknown_format_is_wrong_usage_with_a_hint(tmp_path: Path, name: str, format: str | None) -> None:
    path = tmp_path / name
    path.write_bytes(b"x")
    with pytest.raises(UsageError) as e:
        identify(path, format)
    assert e.value.hint


def test_packed_parquet_is_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1", mtime=0))
    with pytest.raises(UsageError, match="not compressed as a whole"):
        identify(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "gzip"),
        ("a.csv", zstandard.compress(b"{}"), "zstd"),
        ("a.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("a.csv", b"PAR1xxxx", "Parquet"),
        ("a.jsonl.gz", b"{}\n", "not gzip"),
        ("a.jsonl.zst", b"{}\n", "not zstd"),
        ("a.parquet", b"id,name\n", "not Parquet"),
    ],
)
def test_content_that_contradicts_the_name_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        identify(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*gone\.jsonl"):
        identify(tmp_path / "gone.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(InputError, match="folder"):
        identify(tmp_path / "folder.jsonl")
    with pytest.raises(InputError, match="no file"):
        file_batch_id(tmp_path / "gone.jsonl")


def test_a_folder_is_named_with_the_pattern_of_the_files_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    with pytest.raises(InputError, match="folder") as e:
        identify(folder)
    assert "no file that can be read" in (e.value.hint or "")
    for name in ("a.csv.gz", "b.csv.gz", "c.jsonl", ".hidden", "notes.txt"):
        (folder / name).write_bytes(b"")
    with pytest.raises(InputError) as e:
        identify(folder)
    assert e.value.hint == f"Name the files in it: '{folder}'/*.csv.gz"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a b.csv", "id,name\n1,é\n".encode("utf-16")),
        ("a b.csv", "\ufeffid,name\n1,é\n".encode("utf-16-be")),
        ("a b.csv", b"id,name\r1,\xc3\xa9\r"),
        ("a b.csv.gz", gzip.compress("id,name\n1,é\n".encode("utf-16"), mtime=0)),
        ("a b.csv.gz", gzip.compress(b"", mtime=0) + gzip.compress(b"id,name\r1,\xc3\xa9\r", mtime=0)),
    ],
)
def test_text_that_is_not_read_here_comes_with_the_command_that_converts_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as e:
        identify(path)
    command = (e.value.hint or "").partition("Convert it: ")[2]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    (converted,) = [p for p in tmp_path.iterdir() if p != path]
    assert identify(converted).format == "csv"
    with (gzip.open if name.endswith(".gz") else open)(converted, "rt", encoding="utf-8-sig") as text:
        assert text.read().splitlines() == ["id,name", "1,é"]


def test_packed_text_that_is_not_read_here_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    lines = b"".join(b'{"n": %d}\r' % n for n in range(100_000))
    utf16 = lines.decode().encode("utf-16-le")
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
    for content, said in ((lines, "carriage returns"), (utf16, "UTF-16")):
        for name, packed in (
            ("a.jsonl.gz", gzip.compress(content)),
            ("a.jsonl.zst", zstandard.compress(content)),
            ("b.jsonl.zst", skipped + zstandard.compress(content)),
        ):
            path = tmp_path / name
            path.write_bytes(packed)
            for look in (identify, infer):
                with pytest.raises(InputError, match=said) as e:
                    look(path)
                packer = "gzip" if name.endswith(".gz") else "zstd"
                assert f"Convert it: {packer} -dc < {path} | " in (e.value.hint or "")
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(lines.replace(b"\r", b"\n"))[:15])
    assert identify(path).compression == "gz", "what is damaged is told by whoever reads it"
    path.write_bytes(gzip.compress(b"{}\n") + b"\0" * 20)
    assert identify(path).compression == "gz"


def test_utf_16_without_a_mark_is_known_by_its_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,name\n".encode("utf-16-le"))
    with pytest.raises(InputError, match="UTF-16"):
        identify(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}")
    path.chmod(0)
    with pytest.raises(InputError, match="permission"):
        identify(path)


def test_the_same_bytes_are_the_same_batch_under_any_name(tmp_path: Path) -> None:
    content = b'{"a": 1}\n' * 100_000
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(content)
    expected = "file-" + hashlib.sha256(content).hexdigest()
    assert file_batch_id(tmp_path / "a.jsonl") == file_batch_id(tmp_path / "b.jsonl") == expected
    (tmp_path / "b.jsonl").write_bytes(content + b"\n")
    assert file_batch_id(tmp_path / "b.jsonl") != expected


def test_identifying_a_file_loads_neither_spark_nor_arrow() -> None:
    code = (
        "import sys, strandline.ingest.sources.identify;"
        "sys.exit(any(m in sys.modules for m in ('pyspark', 'pyarrow', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
