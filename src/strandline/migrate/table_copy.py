"""The steps of a migration that concern tables: their files are copied, and the new catalog gets to know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core import failpoints
from strandline.core.errors import StorageError, StrandlineError
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.text.wording import plural
from strandline.iceberg.metadata.identifier import parse_identifier
from strandline.iceberg.metadata.table_files import (
    Copied,
    NewPlace,
    Rewritten,
    TableIdentity,
    list_table_files,
    respell_document,
)
from strandline.migrate.plan import Moves
from strandline.storage.copy_to_bucket import BucketCopy, check_size

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.pyiceberg.move_tables import TableThatMoves

_OWN = "_strandline"
_STAYS = frozenset({"_strandline/witness"})  # the new one is written when everything is copied
_UNFINISHED = (".tmp", ".part")

OnCopiedBytes = Callable[[int], None]


@dataclass
class FileCount:
    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.bytes += size


@dataclass
class TableCopy:
    """`tables` are those of the old catalog, as it names them now."""

    old: LakeConfig
    new: LakeConfig
    moves: Moves
    move_id: str | None
    tables: list[TableThatMoves] = field(default_factory=list)

    def __post_init__(self) -> None:
        from strandline.iceberg.pyiceberg.move_tables import list_tables

        with self._catalog(self.old) as catalog:
            self.tables = list_tables(catalog, self.old, self.move_id)

    @property
    def place(self) -> NewPlace:
        folder = self.old.warehouse_folder
        assert folder is not None
        return NewPlace(folder, self.new.warehouse_url)

    def count_files(self) -> FileCount:
        """What `copy_files` would copy. Raises TableUnfit and StorageError as it does."""
        found = FileCount()
        for path, piece in self._pieces():
            if isinstance(piece, Copied):
                check_size(path, piece.size)
            found.add(len(piece.body) if isinstance(piece, Rewritten) else piece.size)
        return found

    def check(self) -> None:
        """Raises StrandlineError for tables that cannot move, and for new places that do not answer."""
        with self._catalog(self.new) as catalog:
            catalog.ping()
        if self.moves.warehouse:
            BucketCopy(self.new.settings.warehouse).list_present()
            self.count_files()

    def copy_files(self, on_bytes: OnCopiedBytes) -> FileCount:
        """Everything that the tables reach is in the bucket then, and the lake's own objects; what is there already is
        not sent again. Returns what was sent."""
        bucket, expected = BucketCopy(self.new.settings.warehouse), dict[str, int]()
        bucket.list_present()

        def jobs() -> Iterator[Callable[[], int]]:
            for path, piece in self._pieces():
                failpoints.hit("move.between_files")
                if isinstance(piece, Rewritten):
                    expected[piece.name] = len(piece.body)
                    yield partial(bucket.put, piece.name, piece.body)
                else:
                    expected[piece.name] = piece.size
                    yield partial(bucket.copy_file, path, piece.name)

        bucket.run(jobs(), on_bytes)
        present = bucket.list_present()
        if wrong := sorted(name for name, size in expected.items() if present.get(name) != size):
            raise StorageError(
                f"{plural(len(wrong), 'file')} of {len(expected)} did not arrive whole, such as {wrong[0]}",
                hint="Run the migration again: it sends what is not there.",
            )
        return FileCount(bucket.sent_files, bucket.sent_bytes)

    def _pieces(self) -> Iterator[tuple[Path, Rewritten | Copied]]:
        place = self.place
        for table in self.tables:
            try:
                for piece in list_table_files(table.location, place):
                    yield place.folder / piece.name, piece
            except FileNotFoundError as e:
                raise StorageError(
                    f"{table.name} names a file that is not there: {e.filename}",
                    hint="`strandline reconcile` shows what is missing. Restore it, or drop the entry with `strandline "
                    "reconcile --act`, and expire the snapshots that name it.",
                ) from e
            except StrandlineError as e:
                e.add_note(f"It is about the table {table.name}.")
                raise
        for path in sorted((place.folder / _OWN).rglob("*")):
            name = path.relative_to(place.folder).as_posix()
            if path.is_file() and name not in _STAYS and not name.endswith(_UNFINISHED):
                yield path, Copied(name, path.stat().st_size)

    def register(self) -> None:
        """The new catalog names the tables as the old one does."""
        from strandline.iceberg.pyiceberg.move_tables import register

        with self._catalog(self.old) as old, self._catalog(self.new) as new:
            needed = {parse_identifier(table.name)[:-1] for table in self.tables}
            for namespace, properties in sorted(old.namespaces().items()):
                given = {k: v for k, v in properties.items() if k not in ("exists", "location")}
                new.ensure_namespace(namespace, given)
                needed.discard(namespace)
            for namespace in sorted(needed):  # a SQL catalog knows some by their tables only
                new.ensure_namespace(namespace, {})
            for table in self.tables:
                location, document, earlier = self._at_new_place(old, table)
                register(new, table.name, location, TableIdentity.of(document), earlier)
                failpoints.hit("move.between_tables")

    def _at_new_place(self, old: PyIcebergCatalog, table: TableThatMoves) -> tuple[str, dict[str, Any], frozenset[str]]:
        """The metadata file, its content, and that and all earlier metadata files."""
        document = old.read_metadata(table.location)
        assert isinstance(document, dict)
        location = table.location
        if self.moves.warehouse:
            location, document = self.place.respell(location), respell_document(document, self.place)
        earlier = frozenset(entry["metadata-file"] for entry in document.get("metadata-log", ()))
        return location, document, earlier | {location}

    def take_out(self, move_id: str, check: Callable[[], None]) -> None:
        """`check` raises if the migration was called off meanwhile."""
        from strandline.iceberg.pyiceberg.move_tables import take_out

        with self._catalog(self.old) as catalog:
            for _ in take_out(catalog, self.tables, move_id, check):
                failpoints.hit("move.between_old_names")

    @contextmanager
    def _catalog(self, config: LakeConfig) -> Iterator[PyIcebergCatalog]:
        from strandline.iceberg.pyiceberg.catalog import open_catalog

        catalog = open_catalog(config)
        try:
            yield catalog
        finally:
            catalog.close()


def put_tables_back(config: LakeConfig, move_id: str | None) -> list[str]:
    """Returns the tables that get their names back: those of one migration that is called off, or (None) of all."""
    from strandline.iceberg.pyiceberg.move_tables import put_back

    with _moved_tables(config) as catalog:
        return [] if catalog is None else put_back(catalog, move_id)


def drop_tables(config: LakeConfig, move_id: str) -> None:
    """Behind the commit point: the old catalog names the tables no more. Their files stay."""
    from strandline.iceberg.pyiceberg.move_tables import drop_moved

    with _moved_tables(config) as catalog:
        if catalog is not None:
            drop_moved(catalog, move_id)


@contextmanager
def _moved_tables(config: LakeConfig) -> Iterator[PyIcebergCatalog | None]:
    """The embedded catalog; None if it has no tables."""
    from strandline.iceberg.metadata.metadata_peek import read_locations
    from strandline.iceberg.pyiceberg.catalog import open_catalog

    if config.settings.catalog.kind != "sqlite" or not read_locations(config):
        yield None
        return
    catalog = open_catalog(config)
    try:
        yield catalog
    finally:
        catalog.close()
