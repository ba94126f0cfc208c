"""Files of this machine for PyIceberg: every spelling of Iceberg's writers, and nothing but Python to open them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.iceberg.metadata.metadata_peek import local_path
from strandline.iceberg.pyiceberg.local_files import LocalFiles


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b c", "/a/b c"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b#1?x=%20", "/a/b#1?x=%20"),
        ("FILE://localhost/a", "/a"),
        ("s3://bucket/a", None),
        ("file://other/a", None),
        ("//other/a", None),
        ("a/b", None),
    ],
)
def test_what_lies_here_is_told_from_what_does_not(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


def test_files_are_written_once_read_and_deleted(tmp_path: Path) -> None:
    files = pickle.loads(pickle.dumps(LocalFiles({})))
    location = f"file://{tmp_path}/new/folder/x y.avro"
    with files.new_output(location).create() as out:
        out.write(b"abc")
    assert (tmp_path / "new/folder/x y.avro").read_bytes() == b"abc"
    with pytest.raises(FileExistsError):
        files.new_output(location).create()
    with files.new_output(location).create(overwrite=True) as out:
        out.write(b"abcd")
    found = files.new_input(location)
    assert found.exists() and len(found) == 4 and found.open().read() == b"abcd"
    files.delete(found)
    assert not found.exists()
    with pytest.raises(FileNotFoundError):
        files.new_input(location).open()


def test_what_lies_elsewhere_goes_through_arrow() -> None:
    from pyiceberg.io.pyarrow import PyArrowFile

    assert isinstance(LocalFiles({"s3.region": "x"}).new_input("s3://bucket/key"), PyArrowFile)


def test_a_report_of_a_lake_on_this_machine_waits_neither_for_arrow_nor_for_a_jvm(tmp_path: Path) -> None:
    from strandline.iceberg.schema.schema_file import parse_columns
    from strandline.lake_admin import init_lake

    lake = init_lake(tmp_path)
    lake.create_dataset("events", parse_columns([{"name": "id", "type": "long"}]))
    lake.close()
    look = (
        "import sys, strandline; run = strandline.open(sys.argv[1]).reconcile(); assert run.aborted is None; "
        "print(sorted({'pyarrow', 'pandas', 'pyspark', 'py4j'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", look, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_module_of_the_package_is_imported_without_the_rest() -> None:
    look = (
        "import sys, strandline.reconcile.storage.worker; print('sqlalchemy' in sys.modules, 'pydantic' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False False"
    import strandline

    assert strandline.open and strandline.Lake and strandline.init_lake
    with pytest.raises(AttributeError, match="nothing"):
        _ = strandline.nothing  # type: ignore[attr-defined]
