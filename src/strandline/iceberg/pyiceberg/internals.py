"""Private interfaces of PyIceberg that we need: the only module that uses them. Importing this imports nothing.

`tests/unit/test_internals.py` says in a sentence what an upgrade has removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.update import TableRequirement, UpdatesAndRequirements
    from pyiceberg.table.update.snapshot import _OverwriteFiles


def compiled_decoder() -> type[CythonBinaryDecoder] | None:
    """Of Avro; None if PyIceberg was built without it."""
    try:
        from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
    except ImportError:
        return None
    return CythonBinaryDecoder


def checked_avro_file() -> Any:
    """PyIceberg's reader, on a decoder that checks where its input ends. The compiled decoder does not: a damaged
    manifest could crash this process."""
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
                raise ValueError("a block does not end with the mark of this file")
            count, content = self.decoder.read_int(), self.decoder.read_bytes()
            codec = self.header.compression_codec()
            unpacked = content if codec is None else codec.decompress(content)
            self.block = Block(self.reader, count, StreamingBinaryDecoder(unpacked))
            return count

    return CheckedFile


def removal_from_main(
    table: Table, transaction: Transaction, summary: Mapping[str, str], requirement: TableRequirement
) -> _OverwriteFiles:
    """An overwrite that adds nothing, and lands only if the requirement holds."""
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
    """Files that were written for the transaction stay, even if its commit is refused."""
    transaction._snapshot_producers.clear()
