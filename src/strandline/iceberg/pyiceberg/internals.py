"""The only module that uses private interfaces of PyIceberg. Importing this does not import PyIceberg.

`tests/unit/test_internals.py` fails with a plain sentence if an upgrade removes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.update import TableRequirement, UpdatesAndRequirements
    from pyiceberg.table.update.snapshot import _OverwriteFiles


def compiled_decoder() -> type[CythonBinaryDecoder] | None:
    """PyIceberg's compiled Avro decoder. None if PyIceberg was built without it."""
    try:
        from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
    except ImportError:
        return None
    return CythonBinaryDecoder


def checked_avro_file() -> Any:
    """PyIceberg's Avro reader, with a decoder that checks where its input ends. The compiled decoder does not check it,
    so a damaged manifest could crash this process."""
    from pyiceberg.avro.decoder import StreamingBinaryDecoder
    from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block
    from pyiceberg.avro.resolver import resolve_reader

    class CheckedFile(AvroFile[Any]):
        def __enter__(self) -> CheckedFile:
            with self.input_file.open() as file:
                self.decoder = StreamingBinaryDecoder(file.read())
            self.header = self._read_header()
            self.schema = self.header.get_schema()
            self.reader = resolve_reader(self.schema, self.read_schema or self.schema, self.read_types, self.read_enums)
            return self

        def _read_block(self) -> int:
            if self.block and self.decoder.read(SYNC_SIZE) != self.header.sync:
                raise ValueError("a block does not end with the sync marker of this file")
            count, content = self.decoder.read_int(), self.decoder.read_bytes()
            codec = self.header.compression_codec()
            unpacked = content if codec is None else codec.decompress(content)
            self.block = Block(self.reader, count, StreamingBinaryDecoder(unpacked))
            return count

    return CheckedFile


def removal_from_main(
    table: Table, transaction: Transaction, summary: Mapping[str, str], requirement: TableRequirement
) -> _OverwriteFiles:
    """An overwrite of main that adds no file, and lands only if the requirement holds."""
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Removal(_OverwriteFiles):
        def _commit(self) -> UpdatesAndRequirements:
            updates, requirements = super()._commit()
            return updates, (*requirements, requirement)

    return Removal(
        operation=Operation.DELETE,
        transaction=transaction,
        io=table.io,
        branch=MAIN_BRANCH,
        snapshot_properties=dict(summary),
    )


def keep_written_files(transaction: Transaction) -> None:
    """Keeps files that were written for the transaction, even if its commit is refused."""
    transaction._snapshot_producers.clear()


def projected(schema: Schema, file_schema: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a data file with the columns and types of the table: matched by field ids, with nulls for columns
    that the file does not have."""
    from pyiceberg.io.pyarrow import _to_requested_schema

    return _to_requested_schema(schema, file_schema, batch, downcast_ns_timestamp_to_us=True)


def deleted_positions(io: FileIO, task: FileScanTask) -> npt.NDArray[np.int64]:
    """The positions in a data file whose rows its delete files and deletion vectors delete."""
    import numpy as np
    from pyiceberg.io.pyarrow import _read_all_delete_files

    parts = _read_all_delete_files(io, [task]).get(task.file.file_path, []) if task.delete_files else []
    return np.concatenate([p.to_numpy() for p in parts]) if parts else np.empty(0, np.int64)


def file_may_match(schema: Schema, condition: BooleanExpression, file: DataFile) -> bool:
    """Whether the file may have rows that meet the condition, by the bounds of its columns."""
    from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator

    return bool(_InclusiveMetricsEvaluator(schema, condition).eval(file))


REST_CONNECT_SECONDS_MAX = 10
REST_ANSWER_SECONDS_MAX = 60


def rest_catalog(
    name: str, options: Mapping[str, str], *, answer_seconds_max: float = REST_ANSWER_SECONDS_MAX
) -> Catalog:
    """A REST catalog whose requests have a time limit: PyIceberg's own would wait forever."""
    from pyiceberg.catalog.rest import RestCatalog
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            connect_seconds_max = min(REST_CONNECT_SECONDS_MAX, answer_seconds_max)
            options["timeout"] = options.get("timeout") or (connect_seconds_max, answer_seconds_max)
            return super().send(request, *args, **options)

    class BoundedCatalog(RestCatalog):
        def _create_session(self) -> Session:
            session = super()._create_session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, BoundedAdapter())
            return session

    return BoundedCatalog(name, **options)
