"""The kind `iceberg`: each chunk is one commit to a table of another catalog that adds its rows and records its range.

The table's own properties list the ranges that it has. A repeat finds its range there and does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from strandline.core.errors import DestinationTaken, RefusedError, SchemaError, StorageError, UsageError
from strandline.core.types import SEQ_COLUMN, Anchor, Seq, SeqRange
from strandline.deliver.sink import (
    Address,
    Claim,
    Claimed,
    Held,
    Loss,
    Option,
    Rehearsal,
    Remaining,
    SinkContext,
    SinkKind,
)
from strandline.deliver.sinks.iceberg import lost_rows
from strandline.deliver.sinks.iceberg.columns import IcebergColumnMisfit, misfits, missing_columns, table_columns
from strandline.deliver.sinks.iceberg.inspect_ranges import IcebergInspector
from strandline.deliver.sinks.iceberg.record import CLAIM, HEAD, LANE_PREFIX, Head, TableRecord, claim_property
from strandline.deliver.sinks.iceberg.send import IcebergSender, rehearse
from strandline.deliver.sinks.table_options import CREATE, MAY_BE_EMPTY, check_present, parse_flag
from strandline.iceberg.commit_retry import COMMIT_RETRY
from strandline.iceberg.metadata.identifier import name_of, parse_identifier
from strandline.iceberg.metadata.table_metadata import LAKE_PROPERTY
from strandline.iceberg.schema.columns import Column, Primitive, type_text

if TYPE_CHECKING:
    from strandline.iceberg.pyiceberg.other_table import LoadedTable, OtherTable

COMMIT_SECONDS_MAX = 60.0
FORMAT_VERSION_MAX = 2
_DATABASE = re.compile(r"(?i)(jdbc:|[a-z0-9+]*(postgres|mysql|mariadb|oracle|mssql|sqlserver)[a-z0-9+]*:)")
_REST_OPTIONS = {
    "token": "token",
    "credential": "credential",
    "scope": "scope",
    "oauth2_server_uri": "oauth2-server-uri",
}


_NUMBER = Column(SEQ_COLUMN, Primitive("long"))


class IcebergSink:
    form = "rows"
    stores_watermarks = False
    is_numbered = True

    def __init__(self, context: SinkContext) -> None:
        """Raises UsageError."""
        options = context.options
        check_present(options, "catalog", "table")
        self._context = context
        self._create, self._may_be_empty = parse_flag(options, CREATE), parse_flag(options, MAY_BE_EMPTY)
        check_catalog(options["catalog"])
        self._place = _place(options["catalog"], context.home)
        self._identifier = _identifier(options["table"])
        self._opened: OtherTable | None = None
        self._columns: tuple[Column, ...] | None = None
        self.destination = f"iceberg+{_url(self._place, options)}/{quote(self.name, safe='')}"

    @property
    def name(self) -> str:
        return name_of(self._identifier)

    @property
    def _table(self) -> OtherTable:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> OtherTable:
        """A handle of its own; the catalog is opened on first use."""
        from strandline.iceberg.pyiceberg.other_catalog import CatalogAddress
        from strandline.iceberg.pyiceberg.other_table import OtherTable
        from strandline.storage.s3_settings import S3Settings

        options, remote = self._context.options, _is_remote(self._place)
        further = {ours: options[name] for name, ours in _REST_OPTIONS.items() if options.get(name)}
        if warehouse := options.get("warehouse"):
            local = not remote and "://" not in warehouse
            further["warehouse"] = f"file://{_path(warehouse, self._context.home)}" if local else warehouse
        endpoint, region, access, secret = (options.get(n) for n in ("endpoint", "region", "access_key", "secret_key"))
        store = S3Settings(endpoint, region, access, secret) if endpoint or region or access else None
        name = options.get("catalog_name") or "default"
        return OtherTable(CatalogAddress(self._place, remote, name, further, store), self._identifier)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # --- the table ---

    def prepare(self, columns: Sequence[Column]) -> None:
        wanted = table_columns(columns, has_lanes=self._context.has_lanes)
        loaded = self._table.load()
        if loaded is None:
            self._create_table(wanted)
            loaded = self._loaded()
        self._check_table(loaded)
        if self._create and (new := missing_columns(wanted, loaded.columns)):
            # Columns are added only if the others fit: a table that is refused is left as it was.
            self._refuse_if(misfits([c for c in wanted if c not in new], loaded.columns))
            self._table.add_columns(lambda now: missing_columns(wanted, now.columns))
            loaded = self._loaded()
        self._refuse_if(misfits(wanted, loaded.columns))
        self._columns = wanted

    def _loaded(self) -> LoadedTable:
        if (loaded := self._table.load()) is None:
            raise StorageError(f"{self.destination}: there is no such table", hint="Bring it back, or create it.")
        return loaded

    def _create_table(self, columns: Sequence[Column]) -> None:
        if not self._create:
            described = ", ".join(f"{c.name} {type_text(c.type)}" for c in columns)
            raise SchemaError(
                f"there is no table {self.name} in {self._place}",
                hint=f"Create it, or let the sink do so with --option create=true: {described}. In a SQLite file, "
                "`catalog_name` must be the name that its tables were created under.",
            )
        self._table.create(columns)

    def _check_table(self, loaded: LoadedTable) -> None:
        from strandline.iceberg.pyiceberg.partition_groups import check_spec

        if (lake := loaded.properties.get(LAKE_PROPERTY)) is not None:
            raise RefusedError(
                f"{self.name} is a dataset of lake {lake}: its rows get their sequence numbers there",
                hint="Name a table that is no dataset. To copy rows into another lake, use a sink of kind forward.",
            )
        if loaded.format_version > FORMAT_VERSION_MAX:
            raise SchemaError(
                f"{self.name} has format version {loaded.format_version}, which PyIceberg reads and does not write",
                hint=f"Name a table of format version {FORMAT_VERSION_MAX}.",
            )
        if loaded.data_format != "parquet":
            raise SchemaError(
                f"{self.name} has {loaded.data_format} files, and this sink writes Parquet",
                hint="Set the table property write.format.default to parquet.",
            )
        check_spec(loaded.table.spec())

    def _refuse_if(self, found: Sequence[IcebergColumnMisfit]) -> None:
        if found:
            raise SchemaError(
                f"{self.name} does not fit: {'; '.join(m.what for m in found)}",
                hint=" ".join(m.remedy for m in found),
            )

    # --- the record ---

    def claimed(self) -> Claimed | None:
        loaded = self._table.load()
        return None if loaded is None else TableRecord(loaded.properties).claimed()

    def claim(self, claim: Claim, generation: int) -> Claimed:
        if self._create and self._table.load() is None:
            # The table is gone. `prepare` adds the other columns, if the ledger does not miss rows that it held.
            self._table.create(table_columns([_NUMBER], has_lanes=self._context.has_lanes))

        def change(loaded: LoadedTable) -> Callable[[Anchor], Mapping[str, str]] | None:
            theirs = TableRecord(loaded.properties).claimed()
            if theirs is None:
                return lambda head: {CLAIM: claim_property(claim, generation)}
            if (theirs.claim.lake, theirs.claim.dataset) != (claim.lake, claim.dataset):
                raise DestinationTaken(
                    f"{self.destination} belongs to lake {theirs.claim.lake}, dataset {theirs.claim.dataset}",
                    hint="Choose another table: rows of two sinks must not be mixed.",
                )
            term = max(claim.term, theirs.claim.term)
            if generation <= theirs.generation and term == theirs.claim.term:
                return None
            raised = claim_property(replace(theirs.claim, term=term), max(generation, theirs.generation))
            if generation <= theirs.generation:
                return lambda head: {CLAIM: raised}
            # Before a reset the owner may have set the table back. From here on main must descend from this commit.
            return lambda head: {CLAIM: raised, HEAD: Head(head).as_property()}

        found = TableRecord(self._change(change).properties).claimed()
        if found is None:
            raise RefusedError(f"the claim on {self.destination} was removed while it was made")
        return found

    def _change(self, change: Callable[[LoadedTable], Callable[[Anchor], Mapping[str, str]] | None]) -> LoadedTable:
        """Sets properties in a commit that adds no rows; returns the table after it. The commit moves main, so that
        nobody who read the table before can overwrite them. After a commit in doubt `change` is asked again."""
        from strandline.iceberg.pyiceberg.other_table import Committed

        why = ""
        for _ in replace(COMMIT_RETRY, attempts_max=None, seconds_max=COMMIT_SECONDS_MAX).attempts():
            loaded = self._loaded()
            properties = change(loaded)
            if properties is None:
                return loaded
            result = self._table.commit(loaded, None, properties, {})
            if isinstance(result, Committed):
                return self._loaded()
            why = result.why
        raise StorageError(f"{self.destination}: its record could not be written: {why}")

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        loaded = self._table.load() if lanes else None
        if loaded is None:
            return [Held(None, ()) for _ in lanes]
        record = TableRecord(loaded.properties)
        return [Held(None, record.lane(address).beyond(after)) for address, after in lanes]

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        """Nothing to do: ranges are kept forever."""

    # --- a table that lost rows ---

    def find_loss(self) -> Loss | None:
        loaded = self._table.load()
        if loaded is None:
            return None  # its record went with it, and the ledger knows what was in it
        record = TableRecord(loaded.properties)
        if record.claimed() is None:
            return None
        lanes = record.in_scope(self._context.generation, self._context.builds_on())
        return lost_rows.find_loss(loaded, self.name, lanes, may_be_empty=self._may_be_empty)

    def remaining(self, lanes: Sequence[Address]) -> list[Remaining]:
        loaded = self._loaded()
        record, older = TableRecord(loaded.properties), self._context.builds_on()
        scope = record.in_scope(self._context.generation, older)
        lacking = [r for r in lost_rows.find_remains(loaded, scope) if r.missing]
        result = []
        for address in lanes:
            gone = [r for r in lacking if r.lane.address.partition == address.partition]
            below = [
                r.held
                for lane in scope
                if lane.address.generation != address.generation and lane.address.partition == address.partition
                for r in lane.ranges
            ]
            own = {r.given.rows for r in gone}
            there = tuple(h for h in (*below, *record.lane(address).beyond(None)) if h.rows not in own)
            in_part = tuple(r.given.rows for r in gone if r.there)
            result.append(Remaining(Held(None, there), in_part, sum(r.missing for r in gone)))
        return result

    def accept_loss(self) -> None:
        def change(loaded: LoadedTable) -> Callable[[Anchor], Mapping[str, str]]:
            record = TableRecord(loaded.properties)
            scope = record.in_scope(self._context.generation, self._context.builds_on())
            lacking = [r for r in lost_rows.find_remains(loaded, scope) if r.missing]
            changed = {}
            for lane in record.lanes():
                if own := [r.given.rows for r in lacking if r.lane.address == lane.address]:
                    changed[LANE_PREFIX + lane.key] = lane.give_up(own).as_property()
            return lambda head: changed | {HEAD: Head(head).as_property()}

        self._change(change)

    # --- who delivers ---

    def fence(self, token: str) -> None:
        """Nothing to do: an older deliverer finds its range in the record, or its commit is refused because main has
        moved. In an older generation it adds nothing."""

    def sender(self, token: str) -> IcebergSender:
        if self._columns is None:
            raise UsageError("a sink is prepared before rows are sent")
        return IcebergSender(self._open(), self._columns, self._context.term)

    def inspector(self) -> IcebergInspector:
        return IcebergInspector(self._open())

    def rehearsal(self, columns: Sequence[str]) -> Rehearsal:
        return Rehearsal(rehearse)

    def comparison(self, columns: Sequence[str]) -> None:
        """None: the digest is over values, so equal rows have equal digests."""

    def name_of(self, address: Address, rows: SeqRange) -> str:
        return f"{self.name} {rows}"


# --- options ---


def check_catalog(given: str) -> None:
    """Raises UsageError for a kind of catalog that this sink does not use, and for a secret in an address."""
    if _DATABASE.match(given):
        raise UsageError(
            "option catalog: Iceberg's JDBC catalog over a network database is not safe: when the answer to a commit "
            "is lost it takes its own success for a conflict",
            hint="Name a SQLite file on this machine, or the address of a REST catalog.",
        )
    parts = urlsplit(given)
    if parts.scheme in ("http", "https"):
        if parts.username or parts.password or parts.query:
            raise UsageError(
                "option catalog may hold a secret, and would be stored with it",
                hint="Give the address alone, and --option token=env:NAME or credential=env:NAME.",
            )
    elif "://" in given:
        raise UsageError(
            f"option catalog: {parts.scheme} is not a kind of catalog that this sink knows",
            hint="The path of a SQLite file, or the http(s) address of a REST catalog.",
        )


def _is_remote(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _place(given: str, home: Path) -> str:
    return given.rstrip("/") if _is_remote(given) else _path(given, home)


def _path(given: str, home: Path) -> str:
    return str((home / Path(given).expanduser()).resolve())


def _url(place: str, options: Mapping[str, str]) -> str:
    if _is_remote(place):
        warehouse = options.get("warehouse")
        return f"{place}/{quote(warehouse, safe='')}" if warehouse else place
    return f"sqlite://{place}/{quote(options.get('catalog_name') or '', safe='')}"


def _identifier(given: str) -> tuple[str, ...]:
    try:
        return parse_identifier(given)
    except SchemaError as e:
        raise UsageError(f"option table: {e.message}", hint="namespace.table") from e


KIND = SinkKind(
    options=(
        Option(
            "catalog",
            "The catalog: the path of a SQLite catalog's file, or the address of a REST catalog.",
            required=True,
            check=check_catalog,
        ),
        Option("table", "The table: `namespace.table`.", required=True),
        CREATE,
        Option(
            "catalog_name",
            "In a SQLite file: the name under which its tables were created. Spark uses the name of its catalog.",
            default="default",
        ),
        Option(
            "warehouse",
            "SQLite: where a new table is placed, a folder or `s3://bucket/prefix`. REST: the warehouse's name, if the "
            "server has several.",
        ),
        Option("token", "REST: a bearer token. `env:NAME` or `file:PATH`.", secret=True, pinned=False),
        Option("credential", "REST: `client_id:client_secret` for OAuth2.", secret=True, pinned=False),
        Option("scope", "REST: the scope to ask for with `credential`.", pinned=False),
        Option("oauth2_server_uri", "REST: where a token is asked for with `credential`.", pinned=False),
        Option("endpoint", "The S3 store of the table's files, if it is not Amazon's.", pinned=False),
        Option("region", "The region of the table's files in S3.", pinned=False),
        Option("access_key", "For the table's files in S3.", secret=True, pinned=False),
        Option("secret_key", "For the table's files in S3.", secret=True, pinned=False),
        MAY_BE_EMPTY,
    ),
    open=IcebergSink,
    checked_when_idle=True,
)
