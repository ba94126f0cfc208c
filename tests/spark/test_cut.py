"""A cut at a site that has rows which the new leader has not: they are set aside, removed, and the seal never moves
back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline import Lake
from strandline.core.errors import NotLeader, StrandlineError, TermPassed
from strandline.core.types import Abandoned, Published, Staged
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.ingest.settle import publish_staged
from strandline.lake_admin import rejoin_lake
from strandline.ledger.ingest import blocks
from strandline.ledger.replicate import cuts, following
from strandline.ledger.replicate import sites as ledger_sites
from strandline.replicate.take_over import carry_out_cut as carrying_out
from tests.campaign import in_torture
from tests.conftest import MakeHome
from tests.spark.bodies import Sender
from tests.spark.followed import (
    Sites,
    assert_same,
    follow,
    follow_another,
    new_follower,
    new_leader,
    restarted,
    table,
    take_over,
    three_sites,
)
from tests.spark.protocol import COLUMNS, audit_events, branches, crash_at, every_block, frame, outlive_lease

FIRST = 17 * 2**40
SECOND = 18 * 2**40


@pytest.fixture
def sites(tmp_path: Path, make_home: MakeHome) -> Iterator[Sites]:
    with three_sites(tmp_path, make_home) as made:
        yield made


def numbers(lake: Lake) -> list[int]:
    found = lake.spark.table("lake.default.events").select("_ingest_seq").collect()
    return sorted(r[0] for r in found)


def set_aside(lake: Lake) -> list[tuple[int, str]]:
    """Of every folder that the ledger names: number and batch id of each row, once."""
    found = set()
    for one in (s for s in lake.ledger.query(cuts.list_cut_folders) if s.number is not None):
        folder = Path(one.place)
        manifest = json.loads((folder / "manifest.json").read_text())
        files = {p.name for p in folder.glob("*.parquet")}
        assert files == {f["name"] for f in manifest["files"]} and manifest["rows"] == one.rows
        for name in sorted(files):
            rows = pq.read_table(folder / name).to_pylist()
            assert all(r["text"] == f"row {r['id']}" for r in rows)
            found |= {(r["_ingest_seq"], r["_ingest_batch"]) for r in rows}
    return sorted(found)


def state(lake: Lake, batch: str) -> str:
    return next(type(b).__name__ for b in every_block(lake) if b.head.batch_id == batch)


def cut_off(sites: Sites) -> None:
    """`other` has 11..15 and 16..20, the second one only as recorded; `new` takes over without either."""
    old, new, other = sites
    old.append("events", frame(old, 10, 5), batch_id="b")
    follow(other)
    old.append("events", frame(old, 15, 5), batch_id="c")
    crash_at(other, "record.after_commit", lambda: follow(other))
    take_over(new, 17)
    new.append("events", frame(new, 100, 3), batch_id="n")
    follow_another(other, new)


def test_rows_that_the_new_leader_has_not_are_set_aside_and_removed_and_the_seal_jumps_to_the_cut(
    sites: Sites,
) -> None:
    _, new, other = sites
    cut_off(sites)
    assert other.sealed("events") == 15
    follow(other)
    assert_same(new, other)
    assert numbers(other) == [*range(1, 11), *range(FIRST + 1, FIRST + 4)]
    assert other.sealed("events") == FIRST + 3
    assert set_aside(other) == [(n, "b") for n in range(11, 16)]
    assert state(other, "b") == state(other, "c") == Abandoned.__name__
    assert [v.ok and not v.extra for v in other.replication.verify()] == [True]
    assert {"follow.cut", "follow.rows_set_aside"} <= set(audit_events(other))
    assert follow(other).applied == []


POINTS = [
    "cut.after_epoch", "cut.after_files", "cut.after_record", "cut.after_branches", "cut.after_delete",
    *map(in_torture, ("cut.before_settle", "cut.before_witness", "cut.after_witness", "cut.after_settle")),
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_site_that_dies_while_it_carries_out_a_cut_goes_on(sites: Sites, point: str) -> None:
    _, new, other = sites
    cut_off(sites)
    crash_at(other, point, lambda: follow(other))
    seal = other.sealed("events")
    assert seal is None or seal >= 15
    restarted(other)
    outlive_lease(other)
    other.replication.follow_once()
    follow(other)
    assert_same(new, other)
    assert set_aside(other) == [(n, "b") for n in range(11, 16)]


def test_a_publisher_that_comes_late_finds_another_epoch(sites: Sites) -> None:
    """Rows that are staged are set aside, too; whoever staged them publishes nothing afterwards."""
    old, new, other = sites
    old.append("events", frame(old, 10, 5), batch_id="b")
    crash_at(other, "stage.after_mark", lambda: follow(other))
    [staged] = [b for b in every_block(other) if isinstance(b, Staged)]
    take_over(new, 17)
    follow_another(other, new)
    dataset = other.datasets()[0]
    crash_at(other, "cut.after_epoch", lambda: follow(other))
    with pytest.raises(StrandlineError):
        publish_staged(other.work, dataset, staged)
    outlive_lease(other)
    follow(other)
    with pytest.raises(StrandlineError):
        publish_staged(other.work, dataset, staged)
    assert_same(new, other)
    assert numbers(other) == [*range(1, 11)] and branches(other) == []
    assert set_aside(other) == [(n, "b") for n in range(11, 16)]


def test_a_site_that_died_within_a_cut_is_promoted_and_publishes_nothing_that_is_cut_out(sites: Sites) -> None:
    """The epoch on its table is above that of what is staged, and the leader that made the cut is gone, too."""
    old, new, other = sites
    other.ledger.change(ledger_sites.take_number, 2)
    old.append("events", frame(old, 10, 5), batch_id="b")
    crash_at(other, "stage.after_mark", lambda: follow(other))
    take_over(new, 17)
    follow_another(other, new)
    crash_at(other, "cut.after_epoch", lambda: follow(other))
    assert other.sealed("events") == 10
    restarted(other)
    assert other.replication.promotion.run(leader_is_stopped=True).term == 18
    assert numbers(other) == [*range(1, 11)] and branches(other) == []
    assert set_aside(other) == [(n, "b") for n in range(11, 16)] and state(other, "b") == Abandoned.__name__
    other.append("events", frame(other, 100, 3), batch_id="o")
    assert len(numbers(other)) == 13


def test_what_the_new_leader_keeps_above_its_seal_stays_everywhere(tmp_path: Path, make_home: MakeHome) -> None:
    """Two shards: the faster one is ahead of the seal."""
    with new_leader(tmp_path, make_home) as old:
        old.create_dataset("events", parse_columns(COLUMNS), shards=2)
        with new_follower(tmp_path, make_home, old) as new, new_follower(tmp_path, make_home, old, "other") as other:
            old.append("events", frame(old, 0, 4), batch_id="slow", shard=0)
            old.append("events", frame(old, 4, 3), batch_id="fast", shard=1)
            follow(other)
            crash_at(new, "record.after_commit", lambda: follow(new))
            [_, fast] = new.ledger.query(following.open_items)
            from strandline.replicate.follow.apply_item import apply_item

            [followed] = new.ledger.query(following.list_followed)
            assert apply_item(restarted(new).context, followed, fast)
            assert new.sealed("events") is None
            take_over(new, 17)
            follow_another(other, new)
            follow(other)
            assert_same(new, other)
            assert numbers(other) == [5, 6, 7] and [n for n, _ in set_aside(other)] == [1, 2, 3, 4]


def test_a_site_that_was_away_during_two_take_overs_carries_out_both_in_order(sites: Sites) -> None:
    _, new, other = sites
    take_over(new, 17)
    new.append("events", frame(new, 100, 3), batch_id="n")
    follow_another(other, new)
    follow(other)
    new.append("events", frame(new, 103, 3), batch_id="m")
    take_over(other, 18)
    other.append("events", frame(other, 200, 2), batch_id="o")
    rejoin_lake(new.config, str(other.config.home))
    restarted(new)
    with new.ledger.read() as connection:
        assert blocks.sealed(connection, new.datasets()[0].id) == FIRST + 6
    follow(new)
    assert_same(other, new)
    assert [n for n, _ in set_aside(new)] == [FIRST + 4, FIRST + 5, FIRST + 6]
    assert numbers(new) == [*range(1, 11), *range(FIRST + 1, FIRST + 4), SECOND + 1, SECOND + 2]


@pytest.mark.parametrize("point", ["rejoin.after_bodies"])
def test_an_old_leader_rejoins_and_has_what_the_new_one_has(sites: Sites, point: str) -> None:
    """It has published, staged and reserved blocks, and a body in its spool, that the new leader has not."""
    old, new, _ = sites
    take_over(new, 17)
    new.append("events", frame(new, 100, 3), batch_id="n")
    old.append("events", frame(old, 10, 5), batch_id="b")
    crash_at(old, "stage.after_mark", lambda: old.append("events", frame(old, 20, 3), batch_id="c"))
    crash_at(old, "reserve.after_commit", lambda: old.append("events", frame(old, 30, 3), batch_id="d"))
    body = Sender(old, "events").bring(pa.table({"id": pa.array([7], pa.int64()), "text": ["row 7"]}))
    assert body is not None
    crash_at(old, point, lambda: rejoin_lake(old.config, str(new.config.home)))
    done = rejoin_lake(old.config, str(new.config.home))
    assert (done.term, done.led, done.bodies) == (17, None, ())
    [kept] = [s for s in old.ledger.query(cuts.list_cut_folders) if s.number is None]
    assert (Path(kept.place) / Path(body).name).exists() and (kept.rows, kept.files) == (1, 1)
    with pytest.raises(NotLeader, match="follows"):
        old.append("events", frame(old, 40, 1), batch_id="e")
    outlive_lease(old)
    assert old.sealed("events") == 15
    old.recover()
    assert state(old, "d") == "Reserved" and old.sealed("events") == 15, "a follower settles nothing of its own"
    follow(old)
    assert_same(new, old)
    assert old.sealed("events") == FIRST + 3
    assert set_aside(old) == [*((n, "b") for n in range(11, 16)), *((n, "c") for n in range(16, 19))]
    assert [v.ok and not v.extra for v in old.replication.verify()] == [True]
    for batch in ("a", "n"):  # what was acknowledged, and is there, is known wherever it is offered again
        assert new.append("events", frame(new, 0 if batch == "a" else 100, 10 if batch == "a" else 3), batch_id=batch)
    follow(old)
    assert_same(new, old)
    assert len(numbers(new)) == 13
    with pytest.raises(NotLeader, match=r"follows .* itself"):
        rejoin_lake(new.config, str(old.config.home))


def test_a_leader_whose_term_is_over_is_not_followed_any_more(sites: Sites) -> None:
    old, new, other = sites
    cut_off(sites)
    follow(other)
    follow_another(other, old)
    with pytest.raises(TermPassed, match="term 17"):
        other.replication.follow_once()
    follow_another(other, new)
    assert follow(other).applied == []
    follow_another(new, old)  # a site that follows is no leader
    with pytest.raises(NotLeader, match="follows"):
        other.replication.follow_once()


def test_many_ranges_are_cut_out_by_one_commit(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, other = sites
    for n in range(3):
        old.append("events", frame(old, 10 + n, 1), batch_id=f"b{n}")
        old.append("events", frame(old, 20 + n, 1), batch_id=f"c{n}")
    follow(other)
    dataset = other.datasets()[0]
    take_over(new, 17)
    with new.ledger.write() as connection:  # as if it had every second one
        connection.exec_driver_sql("DELETE FROM block WHERE item = 'cut'")
        from strandline.core.sites.replication import TakeoverCut
        from strandline.core.types import Seq, SeqRange

        keeps = tuple(SeqRange(Seq(n), Seq(n)) for n in (12, 14, 16))
        cuts.insert(connection, dataset.id, Seq(FIRST), TakeoverCut(17, Seq(10), keeps))
    monkeypatch.setattr(carrying_out, "RANGES_MAX", 1)
    follow_another(other, new)
    before = len(other.work.tables.view("default.events").snapshots)
    follow(other)
    assert numbers(other) == [*range(1, 11), 12, 14, 16]
    assert set_aside(other) == [(11, "b0"), (13, "b1"), (15, "b2")]
    assert len(other.work.tables.view("default.events").snapshots) == before + 1
    assert table(other) != [] and all(isinstance(b, Published | Abandoned) for b in every_block(other))
