"""Runs a migration, step by step, and calls one off. `plan.py` says which steps are left."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core import failpoints
from strandline.core.errors import ConfigError, LedgerMissing, RefusedError, StrandlineError, WitnessUnreadable
from strandline.core.records.ledger_moves import LedgerMove, MoveState
from strandline.core.settings.lake_config import LakeConfig, load_config
from strandline.ledger import move_steps
from strandline.ledger.copy_ledger_rows import Respelled, check_place, copy_rows, digest_ledger
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.live_writers import LiveWriter
from strandline.ledger.move_steps import Leaving
from strandline.ledger.witness import close_local_witness, open_witness
from strandline.migrate.plan import Moves, NewLedger, Step, find_moves, remaining_steps
from strandline.migrate.table_copy import TableCopy, put_tables_back
from strandline.storage.durable import write_file

OnProgress = Callable[[str, int, int | None], None]
_MEBIBYTE = 1 << 20


@dataclass
class MoveReport:
    """What a migration did, or would do."""

    ledger: tuple[str, str]  # from where to where
    warehouse: tuple[str, str] | None  # None: it stays
    catalog: tuple[str, str] | None
    steps: tuple[Step, ...]
    dry_run: bool
    resumed: bool
    tables: tuple[str, ...] = ()  # that another catalog has then
    files: int = 0  # that were sent, or would be
    bytes: int = 0
    rows: int = 0  # of the ledger
    obstacles: tuple[LiveWriter, ...] = ()  # of a dry run: why it would be refused
    settings_before: Path | None = None  # a copy of the old settings file


@dataclass
class Migration:
    """From the lake of a settings file to the places that another one names, which replaces it at the end."""

    settings: Path
    to: Path
    on_progress: OnProgress = lambda *_: None
    old: LakeConfig = field(init=False)
    new: LakeConfig = field(init=False)
    moves: Moves = field(init=False)

    def __post_init__(self) -> None:
        self.settings, self.to = self.settings.resolve(), self.to.resolve()
        if not self.to.is_file():
            raise ConfigError(f"there is no settings file at {self.to}", hint="Write one that names the new places.")
        if self.to.parent != self.settings.parent:
            raise ConfigError(
                f"{self.to} is not in the folder of {self.settings}",
                hint="Put it there: relative paths in it are relative to that folder, and it replaces the other file.",
            )
        self.old, self.new = load_config(self.settings), load_config(self.to)
        self.moves = Moves(catalog=False, warehouse=False) if self.is_done else find_moves(self.old, self.new)

    @property
    def is_done(self) -> bool:
        """The settings are the last step."""
        return self.to == self.settings or self.to.read_bytes() == self.settings.read_bytes()

    @property
    def _leaving(self) -> Leaving:
        catalog = self.old.path(self.old.settings.catalog.path) if self.moves.catalog else None
        return Leaving(self.old.settings.ingest.lease_seconds, files=self.moves.warehouse, catalog=catalog)

    def run(self, *, dry_run: bool = False) -> MoveReport:
        """Continues a migration that was interrupted. Raises RefusedError while anybody writes to the lake."""
        with _alone(self.to), closing(Ledger(self.old)) as old, closing(Ledger(self.new)) as new:
            if self.is_done:
                old.query(sequence.read)
                return self._report(old, new, (), dry_run=dry_run, resumed=True)
            known, there = self._states(old, new)
            steps = remaining_steps(self.moves, known, there)
            if known is not None and known.place != new.place:
                raise known.refusal()
            report = self._report(old, new, steps, dry_run=dry_run, resumed=known is not None)
            if dry_run:
                self._look(old, known, report)
            else:
                self._walk(old, new, known, report)
        return report

    def _states(self, old: Ledger, new: Ledger) -> tuple[LedgerMove | None, NewLedger]:
        if not old.exists():
            raise LedgerMissing(f"there is no ledger at {old.place}", hint="Name the settings file of the lake.")
        old.open()
        known = move_steps.find_move(old)
        try:
            exists = new.exists()
        except LedgerMissing as e:
            raise LedgerMissing(e.message, hint="Create the empty database first.") from e
        if not exists:
            return known, NewLedger(exists=False, move=None)
        return known, NewLedger(exists=True, move=move_steps.find_move(new))

    def _report(self, old: Ledger, new: Ledger, steps: tuple[Step, ...], *, dry_run: bool, resumed: bool) -> MoveReport:
        warehouse = (self.old.warehouse_url, self.new.warehouse_url) if self.moves.warehouse else None
        catalog = (_catalog_place(self.old), _catalog_place(self.new)) if self.moves.catalog else None
        return MoveReport((old.place, new.place), warehouse, catalog, steps, dry_run, resumed)

    def _look(self, old: Ledger, known: LedgerMove | None, report: MoveReport) -> None:
        found: list[LiveWriter] = []
        if known is None:
            found += move_steps.find_obstacles(old, open_witness(self.old), self._leaving)
        report.rows = sum(table.rows for table in digest_ledger(old).values())
        if Step.REGISTER in report.steps:
            try:
                copy = TableCopy(self.old, self.new, self.moves, None if known is None else known.id)
                report.tables = tuple(t.name for t in copy.tables)
                if self.moves.warehouse:
                    count = copy.count_files()
                    report.files, report.bytes = count.files, count.bytes
            except StrandlineError as e:
                found.append(LiveWriter(e.message, e.hint or "see above"))
        report.obstacles = tuple(found)

    def _walk(self, old: Ledger, new: Ledger, known: LedgerMove | None, report: MoveReport) -> None:
        move = known or LedgerMove(MoveState.LEAVING, uuid.uuid4().hex, new.place)
        if Step.CLOSE in report.steps:
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
        if self.moves.catalog:
            self.on_progress("read the tables", 0, None)
            TableCopy(self.old, self.new, self.moves, None).check()

    def _take_steps(self, old: Ledger, new: Ledger, move: LedgerMove, report: MoveReport) -> None:
        copy: TableCopy | None = None
        for step in report.steps:
            self.on_progress(step.value, 0, None)
            if step in (Step.COPY_FILES, Step.REGISTER) and copy is None:
                # Behind `close`: from there on no process of ours commits to a table.
                copy = TableCopy(self.old, self.new, self.moves, move.id)
                report.tables = tuple(t.name for t in copy.tables)
            match step:
                case Step.CLOSE:
                    move = move_steps.close(old, open_witness(self.old), move, self._leaving)
                    if move.place != new.place:  # another process has just begun another one
                        raise move.refusal()
                    failpoints.hit("move.after_close")
                case Step.COPY_FILES:
                    assert copy is not None
                    self._copy_files(copy, report)
                    failpoints.hit("move.after_files")
                case Step.REGISTER:
                    assert copy is not None
                    copy.register()
                    failpoints.hit("move.after_tables")
                case Step.COPY_LEDGER:
                    self._copy_ledger(old, new, move, report)
                    failpoints.hit("move.after_copy")
                case Step.WITNESS:
                    self._write_witness()
                    failpoints.hit("move.after_witness")
                case Step.CLOSE_CATALOG:
                    assert copy is not None
                    copy.take_out(move.id)
                    failpoints.hit("move.after_old_catalog")
                case Step.LEAVE:
                    move_steps.leave(old, move)
                    failpoints.hit("move.after_leave")
                case Step.OPEN:
                    move_steps.reopen(new, move.id, MoveState.ARRIVING)
                    failpoints.hit("move.after_reopen")
                case Step.CLOSE_WITNESS:
                    assert self.old.warehouse_folder is not None
                    close_local_witness(self.old.warehouse_folder, self.new.warehouse_url)
                    failpoints.hit("move.after_old_witness")
                case Step.SETTINGS:
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

    def _write_witness(self) -> None:
        """Nobody takes a number before the new ledger is opened: it stays where the old one is."""
        record, witness = open_witness(self.old).read(), open_witness(self.new)
        try:
            witness.read().check_lake(record.lake)
        except WitnessUnreadable:
            witness.create(record)
        else:
            witness.replace(record)

    def _write_settings(self) -> Path:
        before = self.settings.with_name(f"{self.settings.name}.before-migration")
        write_file(before, self.settings.read_bytes())
        write_file(self.settings, self.to.read_bytes())
        return before


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Raises RefusedError while another process runs this migration. A process that dies lets it go."""
    import fcntl  # missing on Windows, where the command must still start to say that it does not run there

    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"another process migrates with {file}", hint="Wait for its end, or end that process."
            ) from None
        yield


def call_off(settings: Path) -> list[str]:
    """The lake goes on where it was; returns the tables that have their names in the catalog again. Raises RefusedError
    if no migration is under way, or if it can only be finished."""
    config = load_config(settings)
    with closing(Ledger(config)) as ledger:
        ledger.open()
        move = move_steps.find_move(ledger)
        if move is None:
            raise RefusedError("no migration is under way")
        if move.state is not MoveState.LEAVING:
            raise move.refusal()
        tables = put_tables_back(config, move.id)
        move_steps.reopen(ledger, move.id, MoveState.LEAVING)
    return tables


def _catalog_place(config: LakeConfig) -> str:
    catalog = config.settings.catalog
    return str(config.path(catalog.path)) if catalog.kind == "sqlite" else str(catalog.uri)
