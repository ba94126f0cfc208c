"""Reads positional delete files and deletion vectors, in a task. Importing this imports PyIceberg."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.typedef import Record

from strandline.iceberg.pyiceberg.internals import deleted_positions
from strandline.storage.s3_settings import S3Settings


def read_positions(location: str, deletes: Sequence[DataFile], store: S3Settings) -> npt.NDArray[np.int64]:
    """Which rows of a data file are deleted: their positions in the file."""
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=location, file_format=FileFormat.PARQUET, partition=Record()
    )
    io = load_file_io(store.pyiceberg_options(), location)
    found = deleted_positions(io, FileScanTask(file, delete_files=set(deletes)))
    return np.concatenate([p.to_numpy() for p in found]) if found else np.empty(0, np.int64)
