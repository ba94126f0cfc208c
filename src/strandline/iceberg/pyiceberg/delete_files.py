"""Positional delete files and deletion vectors: which apply to a data file, and which rows they delete. Importing this
imports PyIceberg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.typedef import Record

from strandline.iceberg.pyiceberg.internals import deleted_positions
from strandline.storage.s3_settings import S3Settings


class EqualityDeletes(Exception):
    """An equality delete file may apply to a data file, and PyIceberg cannot apply it."""


class SnapshotDeletes:
    """The delete files of a snapshot. They are few compared with the data files, so all of them are in memory."""

    def __init__(self, table: Table, manifests: Iterable[ManifestFile]) -> None:
        """`manifests` are the snapshot's, or none if no data file will be asked for."""
        self._index = DeleteFileIndex()
        self._equality_up_to = -1
        for manifest in manifests:
            if manifest.content != ManifestContent.DELETES:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    self._equality_up_to = max(self._equality_up_to, entry.sequence_number or 0)
                else:
                    self._index.add_delete_file(entry, partition_key=entry.data_file.partition)

    @property
    def has_equality_deletes(self) -> bool:
        return self._equality_up_to >= 0

    def of(self, entry: ManifestEntry) -> list[DataFile]:
        """The positional delete files and deletion vectors that apply to a data file. Raises EqualityDeletes if an
        equality delete file may apply to it."""
        sequence_number, file = entry.sequence_number or 0, entry.data_file
        # An equality delete applies to older data only. Its partition is not checked: raising is always safe.
        if sequence_number < self._equality_up_to:
            raise EqualityDeletes
        deletes = self._index.for_data_file(sequence_number, file, partition_key=file.partition)
        return sorted(deletes, key=lambda f: f.file_path)


def read_positions(location: str, deletes: Sequence[DataFile], store: S3Settings) -> npt.NDArray[np.int64]:
    """The positions of deleted rows in a data file. Spark tasks call it."""
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=location, file_format=FileFormat.PARQUET, partition=Record()
    )
    io = load_file_io(store.pyiceberg_options(), location)
    return deleted_positions(io, FileScanTask(file, delete_files=set(deletes)))
