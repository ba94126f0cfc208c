"""Runs a migration, step by step, and calls one off. `plan.py` says which steps are left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core import failpoints
from strandline.core.errors import ConfigError, LedgerMissing, RefusedError, StorageError, StrandlineError
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.environment import variables_of
from strandline.core.settings.lake_config import LakeConfig, load_config
from strandline.ledger import closed_ledger, move_steps
from strandline.ledger.copy_ledger_rows import Respelled, check_place, check_texts, copy_rows, digest_ledger
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.live_writers import LiveWriter
from strandline.ledger.move_steps import Leaving
from strandline.ledger.witness import S3Witness, close_local_witness, open_witness
from strandline.migrate.plan import (
    BEFORE_LEAVING,
    FoundLedger,
    MigrateStep,
    MigrationPlaces,
    Moves,
    changed_settings,
    check_settings,
    find_moves,
    remaining_steps,
)
from strandline.migrate.table_copy import TableCopy, drop_tables, put_tables_back
from strandline.storage.durable import write_file

OnProgress = Callable[[str, int, int | None], None]
_MEBIBYTE = 1 << 20


@dataclass
class MoveReport:
    """What a migration did, or would do."""

    ledger: tuple[str, str]  # from where to where
    warehouse: tuple[str, str] | None  # None: it stays
    catalog: tuple[str, str] | None
    steps: tuple[MigrateStep, ...]
    dry_run: bool
    resumed: bool
    tables: tuple[str, ...] = ()  # that another catalog has then
    files: int = 0  # that were sent, or would be
    bytes: int = 0
    rows: int = 0  # of the ledger
    obstacles: tuple[LiveWriter, ...] = ()  # of a dry run: why it would be refused
    settings: tuple[str, ...] = ()  # others that differ, by name
    settings_before: Path | None = None  # a copy of the old settings file


@dataclass
class Migration:
    """From the lake of a settings file to the places that another one names, which replaces it at the end."""

    settings: Path
    to: Path
    accept_settings: bool = False  # also those by which the lake promises less
    on_progress: OnProgress = lambda *_: None
    old: LakeConfig = field(init=False)
    new: LakeConfig = field(init=False)
    moves: Moves = field(init=False)
    is_done: bool = field(init=False)  # the settings are the last step
    _content: bytes = field(init=False, repr=False)  # of the new settings file: what is checked is what is written

    def __post_init__(self) -> None:
        self.settings, self.to = self.settings.resolve(), self.to.resolve()
        if not self.to.is_file():
            raise ConfigError(f"there is no settings file at {self.to}", hint="Write one that names the new places.")
        if self.to.parent != self.settings.parent:
            raise ConfigError(
                f"{self.to} is not in the folder of {self.settings}",
                hint="Put it there: relative paths in it are relative to that folder, and it replaces the other file.",
            )
        if set_there := variables_of(("ledger", "catalog", "warehouse"), os.environ):
            raise ConfigError(
                f"the environment sets {', '.join(set_there)}, which would hold for the old place and for the new one",
                hint="Unset it, and write the places into the two settings files.",
            )
        self._content = self.to.read_bytes()
        self.is_done = self.to == self.settings or self._content == self.settings.read_bytes()
        self.old, self.new = load_config(self.settings), load_config(self.to, self._content)
        self.moves = Moves(catalog=False, warehouse=False) if self.is_done else find_moves(self.old, self.new)

    @property
    def _leaving(self) -> Leaving:
        catalog = self.old.path(self.old.settings.catalog.path) if self.moves.catalog else None
        return Leaving(self.old.settings.ingest.lease_seconds, files=self.moves.warehouse, catalog=catalog)

    def run(self, *, dry_run: bool = False) -> MoveReport:
        """Continues a migration that was interrupted. Raises RefusedError while anybody writes to the lake."""
        with _alone(self.settings), closing(Ledger(self.old)) as old, closing(Ledger(self.new)) as new:
            if self.is_done:
                old.query(sequence.read)
                return self._report(old, new, (), dry_run=dry_run, resumed=True)
            left, there = self._states(old, new)
            known = left.move
            if known is not None and known.state is not MoveState.ARRIVING:
                self._places(old, new).check(known)
            steps = remaining_steps(self.moves, left, there)
            report = self._report(old, new, steps, dry_run=dry_run, resumed=known is not None)
            if dry_run:
                self._preview(old, new, known, report)
            else:
                self._walk(old, new, known, report)
        return report

    @property
    def changed_settings(self) -> tuple[str, ...]:
        return changed_settings(self.old, self.new)

    def _check_settings(self) -> None:
        if not self.accept_settings:
            check_settings(self.changed_settings)

    def _places(self, old: Ledger, new: Ledger) -> MigrationPlaces:
        return MigrationPlaces.of(self.old, old.place, self.new, new.place)

    def _states(self, old: Ledger, new: Ledger) -> tuple[FoundLedger, FoundLedger]:
        if not old.exists():
            raise LedgerMissing(f"there is no ledger at {old.place}", hint="Name the settings file of the lake.")
        old.open()
        try:
            return _found(old), _found(new)
        except LedgerMissing as e:
            raise LedgerMissing(e.message, hint="Create the empty database first.") from e

    def _report(
        self, old: Ledger, new: Ledger, steps: tuple[MigrateStep, ...], *, dry_run: bool, resumed: bool
    ) -> MoveReport:
        warehouse = (self.old.warehouse_url, self.new.warehouse_url) if self.moves.warehouse else None
        catalog = (_catalog_place(self.old), _catalog_place(self.new)) if self.moves.catalog else None
        return MoveReport(
            (old.place, new.place), warehouse, catalog, steps, dry_run, resumed, settings=self.changed_settings
        )

    def _preview(self, old: Ledger, new: Ledger, known: LedgerMove | None, report: MoveReport) -> None:
        found: list[LiveWriter] = []
        if known is None:
            found += move_steps.find_obstacles(old, open_witness(self.old), self._leaving)
        report.rows = sum(table.rows for table in digest_ledger(old).values())

        def count_tables() -> None:
            copy = TableCopy(self.old, self.new, self.moves, None if known is None else known.id)
            report.tables = tuple(t.name for t in copy.tables)
            if self.moves.warehouse:
                count = copy.count_files()
                report.files, report.bytes = count.files, count.bytes

        checks = [self._check_settings, *(self._checks(old, new) if known is None else ())]
        for check in checks + ([count_tables] if MigrateStep.REGISTER in report.steps else []):
            try:
                check()
            except StrandlineError as e:
                found.append(LiveWriter(e.message, e.hint or "see above"))
        report.obstacles = tuple(found)

    def _checks(self, old: Ledger, new: Ledger) -> Iterator[Callable[[], None]]:
        """What neither closes nor changes anything, and raises StrandlineError for what is in the way."""
        yield self._check_folder
        if self.moves.warehouse:
            yield self._check_witness
        if old.is_sqlite and not new.is_sqlite:
            yield lambda: check_texts(old)

    def _walk(self, old: Ledger, new: Ledger, known: LedgerMove | None, report: MoveReport) -> None:
        self._check_settings()
        move = known or LedgerMove(MoveState.LEAVING, self._places(old, new).new_id(), new.place)
        if MigrateStep.CLOSE in report.steps:
            self._check_beforehand(old, new)
        try:
            self._take_steps(old, new, move, report)
        except StrandlineError as e:
            if (found := move_steps.find_move(old)) is not None and found.state is MoveState.LEAVING:
                e.add_note(
                    "The lake is closed. Run the same command again to go on, or `strandline migrate --abort` to open "
                    "it where it was."
                )
            raise

    def _check_beforehand(self, old: Ledger, new: Ledger) -> None:
        """What can be refused is refused while the lake is open still."""
        check_place(new)
        move_steps.refuse_for(move_steps.find_obstacles(old, open_witness(self.old), self._leaving))
        for check in self._checks(old, new):
            check()
        if self.moves.catalog:
            self.on_progress("read the tables", 0, None)
            TableCopy(self.old, self.new, self.moves, None).check()

    def _take_steps(self, old: Ledger, new: Ledger, move: LedgerMove, report: MoveReport) -> None:
        copy: TableCopy | None = None
        for step in report.steps:
            self.on_progress(step.value, 0, None)
            if step in BEFORE_LEAVING:
                old.query(move_steps.check_leaving, move)
            if step in (MigrateStep.COPY_FILES, MigrateStep.REGISTER) and copy is None:
                # Behind `close`: from there on no process of ours commits to a table.
                copy = TableCopy(self.old, self.new, self.moves, move.id)
                report.tables = tuple(t.name for t in copy.tables)
            match step:
                case MigrateStep.CLOSE:
                    move = move_steps.close(old, open_witness(self.old), move, self._leaving)
                    self._places(old, new).check(move)  # another process may have just begun another one
                    failpoints.hit("move.after_close")
                case MigrateStep.COPY_FILES:
                    assert copy is not None
                    self._copy_files(copy, report)
                    failpoints.hit("move.after_files")
                case MigrateStep.REGISTER:
                    assert copy is not None
                    copy.register()
                    failpoints.hit("move.after_tables")
                case MigrateStep.COPY_LEDGER:
                    self._copy_ledger(old, new, move, report)
                    failpoints.hit("move.after_copy")
                case MigrateStep.WITNESS:
                    S3Witness(self.new).write_arriving(open_witness(self.old).read(), move.id)
                    failpoints.hit("move.after_witness")
                case MigrateStep.CLOSE_CATALOG:
                    assert copy is not None
                    with move_steps.keep_under_way(old, move) as check:
                        copy.take_out(move.id, check)
                    failpoints.hit("move.after_old_catalog")
                case MigrateStep.LEAVE:
                    move_steps.leave(old, move)
                    failpoints.hit("move.after_leave")
                case MigrateStep.OPEN:
                    if self.moves.warehouse:
                        S3Witness(self.new).settle(open_witness(self.old).read())
                    move_steps.reopen(new, move.id, MoveState.ARRIVING)
                    failpoints.hit("move.after_reopen")
                case MigrateStep.CLOSE_WITNESS:
                    assert self.old.warehouse_folder is not None
                    close_local_witness(self.old.warehouse_folder, self.new.warehouse_url)
                    failpoints.hit("move.after_old_witness")
                case MigrateStep.DROP_OLD:
                    drop_tables(self.old, move.id)
                    failpoints.hit("move.after_drop")
                case MigrateStep.SETTINGS:
                    report.settings_before = self._write_settings()
                    failpoints.hit("move.after_settings")

    def _copy_files(self, copy: TableCopy, report: MoveReport) -> None:
        done = 0

        def on_bytes(size: int) -> None:
            nonlocal done
            done += size
            self.on_progress("copy the files (MiB)", done // _MEBIBYTE, None)

        sent = copy.copy_files(on_bytes)
        report.files, report.bytes = sent.files, sent.bytes

    def _copy_ledger(self, old: Ledger, new: Ledger, move: LedgerMove, report: MoveReport) -> None:
        respelled: Respelled = {}
        if self.moves.warehouse:
            folder, url = str(self.old.warehouse_folder), self.new.warehouse_url

            def respell(place: str) -> str:
                return url + place.removeprefix(folder) if place.startswith(f"{folder}/") else place

            respelled = {("set_aside", "place"): respell}
        copied = copy_rows(
            old,
            new,
            move,
            respelled=respelled,
            on_rows=lambda table, rows: self.on_progress(f"copy {table}", rows, None),
        )
        report.rows = sum(table.rows for table in copied.values())

    def _check_folder(self) -> None:
        if not os.access(self.settings.parent, os.W_OK):
            raise StorageError(
                f"the folder of {self.settings} cannot be written", hint="The new settings go there at the end."
            )

    def _check_witness(self) -> None:
        """Raises RefusedError if a lake is in the new warehouse, which may also be a newer state of this one."""
        S3Witness(self.new).check_free(open_witness(self.old).read().lake)

    def _write_settings(self) -> Path:
        """Nobody may read the new file who could not read both."""
        before = self.settings.with_name(f"{self.settings.name}.before-migration")
        mode = self.settings.stat().st_mode & 0o777
        write_file(before, self.settings.read_bytes(), mode=mode)
        new_mode = self.to.stat().st_mode if self.to.exists() else mode
        write_file(self.settings, self._content, mode=mode & new_mode)
        return before


@contextmanager
def _alone(settings: Path) -> Iterator[None]:
    """Raises RefusedError while another process migrates a lake of this folder, or calls a migration off. A process
    that dies lets it go. The folder is locked: an editor puts another file into the place of one that is locked."""
    import fcntl  # missing on Windows, where the command must still start to say that it does not run there

    folder = os.open(settings.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"another process migrates the lake of {settings}", hint="Wait for its end, or end that process."
            ) from None
        yield
    finally:
        os.close(folder)


def call_off(settings: Path) -> list[str]:
    """The lake continues where it was. Returns the tables that have their names in the catalog again. Raises
    RefusedError if no migration is under way, or if it can only be finished."""
    config = load_config(settings)

    def put_back(move: LedgerMove | None) -> list[str]:
        # Without one: a process that slept while it was called off may have renamed a table after that.
        tables = put_tables_back(config, None if move is None else move.id)
        if move is None and not tables:
            raise RefusedError("no migration is under way")
        return tables

    with _alone(settings), closing(Ledger(config)) as ledger:
        ledger.open()
        return move_steps.call_off(ledger, put_back)


def _found(ledger: Ledger) -> FoundLedger:
    """A file in which nothing was committed yet is no ledger."""
    if not ledger.exists() or not ledger.query(move_steps.has_ledger):
        return FoundLedger(exists=False, move=None, place=ledger.place)
    return FoundLedger(True, move_steps.find_move(ledger), ledger.query(closed_ledger.read_lake), ledger.place)


def _catalog_place(config: LakeConfig) -> str:
    catalog = config.settings.catalog
    return str(config.path(catalog.path)) if catalog.kind == "sqlite" else str(catalog.uri)
