"""The content of a quarantined row: the table that the sink refused, as it was offered, in Arrow's file format. Each is
an object in the warehouse:

    _strandline/quarantine/<sink's instance>/<generation>/<hash of the lane>/<sequence number>.arrow

An object is durable before the ledger records it. An object that the ledger does not know is from a deliverer that died
in between; the next deliverer replaces it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.errors import FailedError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.text.wording import plural
from strandline.core.types import SEQ_COLUMN
from strandline.deliver.sink import Address
from strandline.iceberg.java_numbers import SHORTEST_SINCE
from strandline.storage import objects
from strandline.storage.objects import ObjectStore, explained

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = b"strandline.columns"
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class RowContent:
    rows: pa.Table  # what a chunk holds
    columns: tuple[str, ...]  # the dataset's columns that it was made of, in order: a text line does not say


def packed(rows: pa.Table, columns: Sequence[str]) -> bytes:
    """Arrow's file format, not its stream format: a truncated file cannot pass for a complete one."""
    import pyarrow as pa

    noted = rows.replace_schema_metadata({_COLUMNS: json.dumps(list(columns)).encode()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, noted.schema) as writer:
        writer.write_table(noted)
    return out.getvalue().to_pybytes()


def unpacked(body: bytes, name: str) -> RowContent:
    import pyarrow as pa

    try:
        with pa.ipc.open_file(pa.BufferReader(body)) as reader:
            rows = reader.read_all()
        columns = tuple(json.loads((rows.schema.metadata or {})[_COLUMNS]))
    except (pa.ArrowException, KeyError, ValueError) as e:
        raise FailedError(
            f"{name} is damaged: the quarantined row cannot be read",
            hint="The row is still in the lake under its sequence number, unless it was deleted there.",
        ) from e
    if rows.num_rows != 1:
        raise FailedError(f"{name} holds {plural(rows.num_rows, 'row')} where one was quarantined")
    return RowContent(rows.replace_schema_metadata(None), columns)


def in_json(content: RowContent, form: str) -> Any:
    """The row's values by column, as JSON lines spell them, or the line that was made of them. Raises ValueError for
    values that only the JVM can spell."""
    from strandline.iceberg.row_json import json_lines

    if form == "rows":
        [batch] = content.rows.combine_chunks().to_batches()
        return json.loads(json_lines(batch, SHORTEST_SINCE)[0])
    [row] = content.rows.to_pylist()
    line = row["line"]
    if form == "jsonl":
        try:
            return json.loads(line)
        except ValueError:
            return line
    return {SEQ_COLUMN: row[SEQ_COLUMN], "line": line}


def object_name(address: Address, number: int) -> str:
    """Relative to the warehouse."""
    lane = hashlib.sha256(f"{address.dataset}\0{address.partition}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{folder_name(address.instance)}/{address.generation}/{lane}/{number}.arrow"


def folder_name(instance: str) -> str:
    return f"_strandline/quarantine/{instance}"


@dataclass(frozen=True, slots=True)
class QuarantineObjects:
    """All methods raise `StorageError`."""

    objects: ObjectStore

    def put(self, name: str, body: bytes) -> None:
        """Durable when it returns; replaces an existing object."""
        with self._explained(name):
            self.objects.put(name, body)

    def get(self, name: str) -> bytes | None:
        with self._explained(name):
            return self.objects.get(name)

    def remove(self, name: str) -> None:
        """Does nothing if there is no such object."""
        with self._explained(name):
            self.objects.remove([name])

    def names(self, instance: str) -> list[str]:
        """The names of all objects of a sink, known to the ledger or not, and of files that a killed put left."""
        with self._explained(folder_name(instance)):
            return [stored.name for stored in self.objects.list_below(folder_name(instance))]

    def place(self, name: str) -> str:
        return self.objects.url(name)

    def _explained(self, name: str) -> AbstractContextManager[None]:
        return explained(f"{self.place(name)} cannot be read or written")


def open_objects(config: LakeConfig) -> QuarantineObjects:
    return QuarantineObjects(objects.open_objects(config))
