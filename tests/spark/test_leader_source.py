"""What a follower may ask of its leader: one contract, for each way to reach it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from strandline import Lake
from strandline.core.errors import RefusedError, StrandlineError, WrongLake
from strandline.core.forward_protocol import KeyIdentity, RangeIdentity
from strandline.core.roles import Role
from strandline.core.settings.maintain import RetainSettings
from strandline.core.sites.replication import Item
from strandline.core.types import SEQ_COLUMN, Dataset, DatasetUuid, ItemKind, Seq, SeqRange, ShardId
from strandline.iceberg.metadata.table_metadata import METRICS_PROPERTY
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.iceberg.schema.alteration import AddColumn, RenameColumn, WidenColumn
from strandline.iceberg.schema.columns import Primitive
from strandline.iceberg.spark.java_errors import explaining
from strandline.lake_admin import follow_lake, init_lake
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import followers, following, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.maintain.retain import retain
from strandline.receive.intake import Intake
from strandline.replicate.facade import open_source
from strandline.replicate.lead.leader import Leader
from strandline.replicate.source import LeaderAnswer, LeaderSite, LeaderSource
from strandline.replicate.transports.http import HttpSource
from tests.conftest import MakeHome
from tests.serve.conftest import serving
from tests.spark.bodies import LANE, Sender
from tests.spark.followed import SETTINGS, restarted
from tests.spark.lakes import create, in_main, numbers, snapshots, sql
from tests.spark.protocol import crash_at, outlive_lease
from tests.spark.upkeep import compact_as_anyone, delete_files, expire_as_anyone

TRANSPORTS = ("shared", "http")
NUMBER = T.StructField(SEQ_COLUMN, T.LongType(), False)


@dataclass
class Site:
    """A leader, and one place to reach it for each transport."""

    lake: Lake
    addresses: dict[str, str]
    sources: list[LeaderSource] = field(default_factory=list)

    def reached(self, transport: str, secret: str | None) -> LeaderSource:
        """`secret`: a token of this leader."""
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv("A_TOKEN", secret or "")
            self.sources.append(open_source(self.addresses[transport], None if secret is None else "env:A_TOKEN"))
        return self.sources[-1]

    def close(self) -> None:
        while self.sources:
            self.sources.pop().close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, make_home: MakeHome) -> Iterator[Site]:
    """One for all tests: each has datasets of its own."""
    home = tmp_path_factory.mktemp("leader")
    make_home(home, SETTINGS)
    with init_lake(home) as lake, serving(lake) as url:
        made = Site(lake, {"shared": str(home / "strandline.toml"), "http": url})
        yield made
        made.close()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, site: Site, make_home: MakeHome) -> Iterator[Lake]:
    """A site in whose session a follower would read."""
    home = tmp_path_factory.mktemp("reader")
    make_home(home, SETTINGS)
    with follow_lake(home, str(site.lake.config.home)) as lake:
        yield lake


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Asked:
    """A dataset at the leader, and a follower that reaches it."""

    lake: Lake
    reader: Lake
    source: LeaderSource
    dataset: Dataset
    follower: str

    @property
    def name(self) -> str:
        return self.dataset.name.partition(".")[2]

    def append(self, count: int, batch: str | None = None) -> SeqRange:
        df = numbers(self.lake, 1, count).selectExpr("n", "CAST('2026-01-01' AS TIMESTAMP) AS at")
        return self.lake.append(self.name, df, batch_id=batch).rows

    def poll(self, after: int = 0, items_max: int = 1000, others: Collection[DatasetUuid] = ()) -> LeaderAnswer:
        """As a follower that has all other datasets of the lake, except `others`."""
        known = {d.uuid: Seq(1 << 40) for d in self.lake.datasets() if d.uuid not in others}
        return self.source.poll(known | {self.dataset.uuid: Seq(after)}, items_max=items_max)

    def items(self, after: int = 0, items_max: int = 1000) -> tuple[Item, ...]:
        offers = self.poll(after, items_max).offers
        assert len(offers) <= 1
        return offers[0].items if offers else ()

    def rows(self, rows: SeqRange, *columns: T.StructField) -> list[tuple[Any, ...]]:
        schema = T.StructType([NUMBER, *(columns or (T.StructField("n", T.LongType()),))])
        with self.source.content(self.reader.work.tables, self.dataset.uuid, rows) as content:
            with explaining("they cannot be read"):
                return sorted((tuple(r) for r in content.frame(schema).collect()), key=lambda r: r[0])

    def numbers(self, rows: SeqRange) -> list[int]:
        with self.source.numbers(self.reader.work.tables, self.dataset.uuid, rows) as found:
            with explaining("they cannot be read"):
                return sorted(r[0] for r in found.collect())

    def told(self, seal: int, term: int | None = None) -> None:
        """In the leader's term, unless another one is named."""
        shard = ShardId(self.dataset.first_shard)
        named = self.lake.replication.site.term if term is None else term
        self.source.acknowledge(Acknowledgement(named, {self.dataset.uuid: Seq(seal)}, {shard: Seq(seal)}, "its site"))

    def progress(self) -> int | None:
        found = self.lake.ledger.query(followers.list_progress, self.dataset)
        return next(p.number for p in found if p.follower.name == self.follower)


@pytest.fixture
def asked(site: Site, reader: Lake, transport: str, request: pytest.FixtureRequest) -> Iterator[Asked]:
    name = f"d{abs(hash(request.node.name)) % 10**12}"
    dataset = create(site.lake, name, {"n": "long", "at": "timestamptz"})
    _, secret = site.lake.followers.add(name)
    yield Asked(site.lake, reader, site.reached(transport, secret), dataset, name)
    site.lake.followers.remove(name)
    site.close()


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


# --- offers ----------------------------------------------------------------------------------------------------------


def test_offers_one_behind_the_other_tile_what_is_settled(asked: Asked) -> None:
    blocks_made = [asked.append(3, f"b{n}") for n in range(5)]
    whole = asked.items()
    assert [i.numbers for i in whole] == blocks_made
    assert [(i.kind, i.rows, i.batch_id) for i in whole] == [(ItemKind.SEGMENT, 3, f"b{n}") for n in range(5)]
    assert all(i.digest for i in whole)
    found: list[Item] = []
    while cut := asked.poll(found[-1].hi if found else 0, items_max=2).offers:
        [offer] = cut
        assert (offer.after, offer.upto) == (found[-1].hi if found else 0, offer.items[-1].hi)
        assert offer.seal == blocks_made[-1].hi and len(offer.items) <= 2
        found += offer.items
    assert tuple(found) == whole
    middle = blocks_made[2].lo
    assert [i.numbers for i in asked.items(middle)] == [span(middle + 1, blocks_made[2].hi), *blocks_made[3:]]


def test_a_poll_is_one_read_of_the_ledger_and_of_no_table_if_nothing_is_new(asked: Asked) -> None:
    last = asked.append(3).hi
    asked.poll(last)
    reads: list[str] = []
    real = Ledger.read_consistent

    def counted(self: Ledger) -> Any:
        reads.append("read")
        return real(self)

    def unexpected(*_: object) -> Any:
        raise AssertionError("a table was read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "read_consistent", counted)
        patch.setattr(PyIcebergCatalog, "load", unexpected)
        idle = asked.poll(last)
    assert reads == ["read"]
    assert (idle.offers, idle.made, idle.dropped) == ((), (), ())


def test_nothing_that_is_open_is_offered_or_given(asked: Asked) -> None:
    first = asked.append(3)
    crash_at(asked.lake, "stage.after_commit", lambda: asked.append(3))
    last = asked.append(3)
    assert [i.numbers for i in asked.items()] == [first]
    for rows in (last, span(first.lo, first.hi + 1)):
        with pytest.raises(StrandlineError):
            asked.rows(rows)
        with pytest.raises(StrandlineError):
            asked.numbers(rows)
    outlive_lease(asked.lake)
    asked.lake.recover()
    assert [i.numbers for i in asked.items(first.hi)][-1] == last


def test_a_follower_hears_of_datasets_that_are_made_and_dropped(asked: Asked) -> None:
    asked.append(3)
    [terms] = asked.source.poll(
        {d.uuid: Seq(1 << 40) for d in asked.lake.datasets() if d.uuid != asked.dataset.uuid}, items_max=10
    ).made
    assert (terms.id, terms.name) == (asked.dataset.uuid, asked.dataset.name)
    assert [(c["name"], c["type"]) for c in terms.columns] == [("n", "long"), ("at", "timestamptz")]
    assert all(isinstance(c["id"], int) for c in terms.columns)
    item = asked.items()[0]
    asked.lake.drop_dataset(asked.name)
    gone = asked.poll()
    assert (gone.dropped, gone.offers, gone.made) == ((asked.dataset.uuid,), (), ())
    with pytest.raises(StrandlineError, match="no dataset"):
        asked.rows(item.numbers)
    sql(asked.lake, f"DROP TABLE IF EXISTS lake.{asked.dataset.name}")
    again = create(asked.lake, asked.name, {"n": "long"})
    both = asked.poll(others=[again.uuid])
    assert (both.dropped, [t.id for t in both.made]) == ((asked.dataset.uuid,), [again.uuid])


# --- content ---------------------------------------------------------------------------------------------------------


def test_content_is_what_the_leader_has_of_a_range_now(asked: Asked) -> None:
    """Through compaction, deletes, retention by rule, expiry and a purge: items are ranges, not files."""
    lake, name = asked.lake, asked.name
    ranges = [asked.append(10) for _ in range(4)]
    whole = span(ranges[0].lo, ranges[-1].hi)
    inside = span(ranges[0].hi, ranges[2].lo + 4)

    def same() -> list[int]:
        table = in_main(lake, name)
        for rows in (whole, inside):
            assert asked.rows(rows) == [r for r in table if r[0] in rows]
        assert asked.numbers(inside) == [r[0] for r in table if r[0] in inside]
        return [r[0] for r in table]

    assert len(same()) == 40
    lake.maintenance.compact(name)
    compact_as_anyone(lake, name)
    assert len(same()) == 40
    sql(lake, f"ALTER TABLE lake.default.{name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql(lake, f"DELETE FROM lake.default.{name} WHERE n IN (3, 7)")
    assert delete_files(lake, name)
    assert len(same()) == 32
    asked.told(ranges[0].hi)
    later = datetime.now(UTC) + timedelta(days=31)
    rule = RetainSettings(older_than=timedelta(days=30))
    assert retain(lake.maintenance.context, asked.dataset, rule, now=later, accept_clock=True).deleted_rows == 8
    expire_as_anyone(lake, name)
    assert len(same()) == 24
    assert asked.rows(ranges[0]) == []
    five = [r["_ingest_seq"] for r in sql(lake, f"SELECT _ingest_seq FROM lake.default.{name} WHERE n = 5")]
    lake.maintenance.purge(name, "n = 5")
    expire_as_anyone(lake, name)
    assert len(same()) == 21
    purge = asked.items(whole.hi)[-1]
    assert (purge.kind, purge.shard, purge.lo == purge.hi) == (ItemKind.PURGE, None, True)
    assert sorted(n for r in purge.ranges for n in range(r.lo, r.hi + 1)) == sorted(five)


def test_content_behind_a_number_is_the_rest_of_the_range(asked: Asked) -> None:
    rows = asked.append(10)
    whole = asked.rows(rows)
    for behind in (rows.lo, rows.lo + 6):
        assert asked.rows(span(behind + 1, rows.hi)) == [r for r in whole if r[0] > behind]


def test_content_says_the_leaders_columns_of_now_and_gives_the_types_that_it_is_asked_for(asked: Asked) -> None:
    sql(asked.lake, f"ALTER TABLE lake.default.{asked.name} ADD COLUMN i int")
    rows = asked.append(3)
    with asked.source.content(asked.reader.work.tables, asked.dataset.uuid, rows) as content:
        before = {f["name"]: f["id"] for f in content.fields}
    asked.lake.alter_dataset(asked.name, [RenameColumn("n", "m"), AddColumn("more", Primitive("string"))])
    asked.lake.alter_dataset(asked.name, [WidenColumn("i", Primitive("long"))])
    with asked.source.content(asked.reader.work.tables, asked.dataset.uuid, rows) as content:
        after = {f["name"]: f["id"] for f in content.fields}
        assert {f["name"]: f["type"] for f in content.fields} == {
            "m": "long", "at": "timestamptz", "i": "long", "more": "string",
        }  # fmt: skip
    assert (after["m"], after["i"]) == (before["n"], before["i"]) and after["more"] not in before.values()
    columns = [T.StructField("m", T.LongType()), T.StructField("more", T.StringType())]
    assert asked.rows(rows, *columns) == [(rows.lo + i, i + 1, None) for i in range(3)]


def test_a_table_that_was_rolled_back_is_not_read(asked: Asked) -> None:
    first = asked.append(3)
    to = snapshots(asked.lake, asked.name)[-1]
    asked.append(3)
    sql(asked.lake, f"CALL lake.system.rollback_to_snapshot('{asked.dataset.name}', {to})")
    for read in (asked.rows, asked.numbers):
        with pytest.raises(StrandlineError, match="rolled back"):
            read(first)


def test_a_table_that_lost_what_the_protocol_needs_is_not_read(asked: Asked) -> None:
    """As every stage of the leader refuses it, over both ways."""
    first = asked.append(3)
    sql(asked.lake, f"ALTER TABLE lake.default.{asked.name} SET TBLPROPERTIES ('{METRICS_PROPERTY}'='counts')")
    for read in (asked.rows, asked.numbers):
        with pytest.raises(StrandlineError, match="is not fit for Strandline"):
            read(first)


# --- bodies that a receiver took ---------------------------------------------------------------------------------


def test_the_bodies_of_a_received_batch_are_told_and_of_no_other(
    asked: Asked, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Intake, "_older_than", lambda self: utc_now())
    sender = Sender(asked.lake, asked.name)
    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "at": pa.array([None, None], pa.timestamp("us", "UTC"))})
    sender.bring(rows)
    sender.bring(rows, RangeIdentity(LANE, span(5, 6)))
    [report] = sender.ingest()
    told = asked.source.bodies(asked.dataset.uuid, report.batch_id)
    assert told is not None and told.numbers == report.numbers
    first, second = (body.note for body in told.receipt.bodies)
    assert (first.identity, first.rows, second.identity) == (KeyIdentity("key-1"), 2, RangeIdentity(LANE, span(5, 6)))
    assert first.owner is not None and first.owner.name == sender.token.name
    [claim] = told.claims
    assert (claim.lake, claim.dataset, claim.generation, claim.owner) == (LANE.lake, LANE.dataset, 1, first.owner)
    asked.append(2, "another")
    for other in ("another", "received-unknown"):
        assert asked.source.bodies(asked.dataset.uuid, other) is None
    with pytest.raises(StrandlineError, match="there is no dataset with the id"):
        asked.source.bodies(DatasetUuid("unknown"), report.batch_id)
    if transport == "http":
        assert isinstance(asked.source, HttpSource)
        assert asked.source._post("no-such-path", {}, may_lack=True) is None, "as a leader of an older version"


# --- what the follower says ------------------------------------------------------------------------------------------


def test_what_a_follower_says_only_rises_and_never_beyond_what_was_taken(asked: Asked) -> None:
    rows = asked.append(10)
    asked.told(rows.lo)
    assert asked.progress() == rows.lo
    asked.told(rows.hi)
    asked.told(rows.lo)
    assert asked.progress() == rows.hi
    with pytest.raises(StrandlineError, match="was ever taken"):
        asked.told(1 << 40)
    assert asked.progress() == rows.hi


def test_the_term_is_the_leaders_and_another_one_is_refused(asked: Asked) -> None:
    rows = asked.append(3)
    term = asked.lake.replication.site.term
    polled = asked.poll()
    number = asked.lake.followers.get(asked.follower).site_number
    assert asked.source.site() == LeaderSite(asked.lake.id, term, number)
    assert polled.site == LeaderSite(asked.lake.id, term), "a site asks for its number once, when it is made"
    assert {(o.lake, o.term) for o in polled.offers} == {(asked.lake.id, term)}
    with pytest.raises(StrandlineError, match=f"term {term + 1}"):
        asked.told(rows.hi, term + 1)
    asked.told(rows.hi)
    with asked.lake.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE site SET term = {term + 1}")
    assert asked.source.site().term == asked.poll().offers[0].term == term + 1
    assert asked.progress() is None, "it was told in another term"
    with pytest.raises(StrandlineError, match=f"term {term}"):
        asked.told(rows.hi, term)
    asked.told(rows.lo)
    assert asked.progress() == rows.lo


@contextmanager
def follows(asked: Asked) -> Iterator[Callable[[], None]]:
    """How the leader becomes a follower. It leads again afterwards."""
    ledger, term = asked.lake.ledger, asked.lake.replication.site.term
    try:
        yield lambda: ledger.change(sites.follow, leader="elsewhere", token=None, term=term)
    finally:
        with ledger.write() as connection:
            connection.exec_driver_sql("UPDATE site SET role = 'leader', leader = NULL")


@pytest.mark.parametrize("read", [Asked.rows, Asked.numbers], ids=["rows", "numbers"])
def test_a_site_that_rejoins_while_it_is_asked_gives_no_rows(
    asked: Asked, read: Callable[[Asked, SeqRange], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have removed rows that were cut out, and a follower would take them for rows that were purged."""
    rows, find = asked.append(3), Leader.find
    with follows(asked) as rejoin:

        def find_and_rejoin(leader: Leader, uuid: str, **more: Any) -> Dataset:
            found = find(leader, uuid, **more)
            rejoin()
            return found

        monkeypatch.setattr(Leader, "find", find_and_rejoin)
        with pytest.raises(StrandlineError, match="follows elsewhere"):
            read(asked, rows)
        monkeypatch.undo()
    read(asked, rows)


@pytest.mark.parametrize("transport", ["shared"])
def test_rows_count_for_nothing_if_the_site_rejoins_while_spark_reads_them(asked: Asked) -> None:
    rows = asked.append(3)
    with follows(asked) as rejoin, pytest.raises(StrandlineError, match="follows elsewhere"):
        with asked.source.content(asked.reader.work.tables, asked.dataset.uuid, rows) as content:
            rejoin()
            content.frame(T.StructType([NUMBER])).collect()


# --- who may ask -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["unknown", "wrong role", "removed"])
def test_whoever_is_no_follower_gets_nothing_and_says_nothing(
    asked: Asked, site: Site, transport: str, who: str
) -> None:
    rows = asked.append(3)
    match who:
        case "unknown":
            secret = "sl_nobody"
        case "wrong role":
            secret = asked.lake.receiver.create_token(f"{asked.name} writer", role=Role.WRITE)[1]
        case _:
            _, secret = asked.lake.followers.add(f"{asked.name}-2")
            asked.lake.followers.remove(f"{asked.name}-2")
    stranger = Asked(asked.lake, asked.reader, site.reached(transport, secret), asked.dataset, asked.follower)
    attempts: list[Callable[[], object]] = [
        stranger.poll,
        lambda: stranger.rows(rows),
        lambda: stranger.numbers(rows),
        lambda: stranger.told(rows.hi),
    ]
    for attempt in attempts:
        with pytest.raises(StrandlineError, match="token"):
            attempt()
    assert asked.progress() is None


def test_a_follower_of_some_datasets_sees_no_others(asked: Asked, site: Site, transport: str) -> None:
    own = create(asked.lake, f"{asked.name}_own", {"n": "long", "at": "timestamptz"})
    other = asked.append(3)
    name = f"{asked.name}-limited"
    _, secret = asked.lake.followers.add(name, [own.name])
    limited = Asked(asked.lake, asked.reader, site.reached(transport, secret), own, name)
    rows = limited.append(3)
    everything = limited.source.poll({}, items_max=10)
    assert [t.id for t in everything.made] == [own.uuid] == [o.dataset.id for o in everything.offers]
    assert len(limited.rows(rows)) == 3
    with pytest.raises(StrandlineError, match="no dataset"):
        Asked(asked.lake, asked.reader, limited.source, asked.dataset, name).rows(other)
    asked.lake.followers.remove(name)


def test_a_leader_of_another_lake_is_refused_before_anything_is_recorded(
    asked: Asked, site: Site, transport: str, tmp_path: Path, make_home: MakeHome
) -> None:
    """Its address was given to somebody else since."""
    make_home(tmp_path / "other", SETTINGS)
    reader = asked.reader
    with init_lake(tmp_path / "other") as other, serving(other) as url:
        create(other, "events", {"n": "long"})
        where = {"shared": str(tmp_path / "other" / "strandline.toml"), "http": url}[transport]
        _, secret = other.followers.add("east")
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv("A_TOKEN", secret)
            with pytest.raises(RefusedError, match="another lake"):
                follow_lake(reader.config.home, where, token="env:A_TOKEN")
            before = reader.ledger.query(sites.get)
            with reader.ledger.write() as connection:
                sites.follow(connection, leader=where, token="env:A_TOKEN", term=before.term)
            try:
                with pytest.raises(WrongLake):
                    restarted(reader).tick()
                assert reader.ledger.query(following.list_followed) == []
                with reader.ledger.read() as connection:
                    assert blocks.open_blocks(connection, asked.dataset.id) == []
            finally:
                with reader.ledger.write() as connection:
                    sites.follow(connection, leader=str(before.leader), token=None, term=before.term)
                restarted(reader)


def test_a_leader_that_is_away_is_said_to_be_away(transport: str, tmp_path: Path, make_home: MakeHome) -> None:
    make_home(tmp_path / "gone", SETTINGS)
    with init_lake(tmp_path / "gone") as lake:
        with serving(lake) as url:
            source = open_source({"shared": str(lake.config.home / "strandline.toml"), "http": url}[transport], None)
        if transport == "shared":
            assert lake.ledger.path is not None
            lake.ledger.close()
            lake.ledger.path.rename(tmp_path / "away.db")
            lake.ledger.path.mkdir()
        with pytest.raises(StrandlineError):
            source.poll({}, items_max=1)
        source.close()
