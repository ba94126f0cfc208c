"""A leader that was replaced becomes a follower, in one transaction, on both ledgers."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import sqlalchemy as sa

from strandline.core import failpoints
from strandline.core.errors import LedgerUnreadable, NotLeader, ResyncNeeded, TermPassed
from strandline.core.replication import SiteRole
from strandline.core.types import Abandoned, Reserved, SnapshotId, Staged
from strandline.ingest.resync import resync_ledger
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import batches, ended_batches, tokens
from strandline.ledger.replicate import cuts, followers, following, promotions, rejoining, sites
from strandline.ledger.replicate.followers import NewFollower
from strandline.ledger.replicate.rejoining import NewLeader
from tests.ledger.conftest import Bench
from tests.ledger.receive_bench import new_receiving
from tests.ledger.test_cuts import CUT, carry_out, sealed
from tests.ledger.test_following import cut, offer, record, segment

if TYPE_CHECKING:
    from strandline.ingest.context import IngestContext


def new_leader(bench: Bench, term: int = 17, address: str = "https://new") -> NewLeader:
    return NewLeader(address, "env:TOKEN", term, {bench.dataset.uuid})


def led(bench: Bench) -> tuple[Reserved, Staged, Reserved]:
    """1..10 is published, 11..15 published and nobody has it, 16..20 staged, 21..25 reserved."""
    bench.publish(bench.reserve("a", 10))
    bench.publish(bench.reserve("b", 5))
    held = bench.reserve("c", 5)
    assert blocks.mark_staged(bench.ledger, bench.witness, held, SnapshotId(5))
    staged = blocks.find_block(bench.ledger, held.head)
    assert isinstance(staged, Staged)
    return held, staged, bench.reserve("d", 5)


def test_a_leader_that_was_replaced_follows_from_its_counter_and_its_open_blocks_stay(bench: Bench) -> None:
    led(bench)
    before = bench.ledger.query(blocks.open_blocks)
    done = rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    assert (done.term, done.followed, done.open_blocks) == (1, (bench.dataset.name,), 2)
    assert bench.ledger.query(blocks.open_blocks) == before and sealed(bench) == 15
    [followed] = bench.ledger.query(following.list_followed)
    assert (followed.bound, followed.term) == (bench.ledger.query(sequence.read).last, 1)
    here = bench.ledger.query(sites.get)
    assert (here.role, here.leader, here.term) == (SiteRole.FOLLOWER, "https://new", 1)
    assert bench.witness.read().role is SiteRole.FOLLOWER
    with pytest.raises(NotLeader, match="follows https://new"):
        bench.reserve("e", 1)


def test_the_cut_of_the_new_leader_ends_what_was_open_published_and_staged(bench: Bench) -> None:
    _, staged, reserved = led(bench)
    done = rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    assert done.open_blocks == 2
    with pytest.raises(NotLeader):
        blocks.mark_staged(bench.ledger, bench.witness, reserved, SnapshotId(6))
    bound = bench.ledger.query(sequence.read).last
    items = (cut(CUT, 10), segment(CUT + 1, CUT + 3))
    record(bench, offer(bench.dataset, bound, CUT + 3, *items, term=17))
    assert sealed(bench) == 15, "recording settles nothing"
    carry_out(bench)
    assert sealed(bench) == CUT
    for one in (staged.head, reserved.head):
        found = blocks.find_block(bench.ledger, one)
        assert isinstance(found, Abandoned) and found.reason == f"cut:{CUT}"
    assert not blocks.mark_published(bench.ledger, staged, row_count=5, snapshot=SnapshotId(5))


def test_a_batch_that_was_sent_again_to_the_new_leader_is_known_by_its_id_after_the_cut(bench: Bench) -> None:
    """Also at a site that has it from when it led, under numbers that are cut out."""
    led(bench)
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    bound = bench.ledger.query(sequence.read).last
    again = [segment(CUT + n * 10, CUT + n * 10 + 4, batch_id=name) for n, name in ((1, "b"), (2, "c"), (3, "d"))]
    record(bench, offer(bench.dataset, bound, CUT + 24, cut(CUT, 10), again[0], again[1], term=17))
    record(bench, offer(bench.dataset, CUT + 24, CUT + 34, again[2], term=17))  # in an offer of its own
    with bench.ledger.read() as connection:
        known = blocks.of_batch(connection, bench.dataset.id, "b")
        assert known is not None and known.head.rows.lo == 11
    carry_out(bench)
    with bench.ledger.read() as connection:
        for item in again:
            found = blocks.of_batch(connection, bench.dataset.id, item.batch_id or "")
            assert found is not None and found.head.rows == item.numbers
        first = blocks.of_batch(connection, bench.dataset.id, "a")
        assert first is not None and first.head.rows.lo == 1


def test_a_dataset_that_the_new_leader_has_not_stays_and_is_not_followed(bench: Bench) -> None:
    with bench.ledger.write() as connection:
        datasets.add(connection, name="default.other", table_uuid="uuid-of-other")
    done = rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    assert done.not_at_the_leader == ("default.other",)
    assert [f.dataset.name for f in bench.ledger.query(following.list_followed)] == [bench.dataset.name]


def test_its_own_followers_hold_nothing_any_more(bench: Bench) -> None:
    with bench.ledger.write() as connection:
        token, _ = tokens.create(connection, "follower-west", None)
        followers.add(connection, NewFollower("west", token.id))
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    assert bench.ledger.query(followers.list_followers) == []


def test_a_site_that_follows_receives_nothing(bench: Bench) -> None:
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    with pytest.raises(sa.exc.IntegrityError, match="only_a_leader_receives"), bench.ledger.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO received (dataset_id, rows, digest, size, spool_bytes, received_at) "
            "VALUES (1, 0, 'd', 1, 0, 1)"
        )


@pytest.mark.parametrize("point", ["rejoin.before_witness", "rejoin.after_witness", "rejoin.after_commit"])
def test_a_rejoin_that_dies_goes_on(bench: Bench, point: str) -> None:
    led(bench)
    failpoints.arm(f"{point}=fail")
    with pytest.raises(failpoints.FailpointError):
        rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    failpoints.arm("")
    follows = point == "rejoin.after_commit"
    assert bench.ledger.query(sites.get).follows == follows
    assert (bench.witness.read().role is SiteRole.FOLLOWER) == (point != "rejoin.before_witness")
    if follows:
        rejoining.follow_another(bench.ledger, new_leader(bench))
    else:
        rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    [followed] = bench.ledger.query(following.list_followed)
    assert followed.bound == bench.witness.read().highest == bench.ledger.query(sequence.read).last


def restore(bench: Bench, backup: Path) -> None:
    """As when a person puts a copy of the ledger back while a process runs."""
    assert bench.ledger.path is not None
    for suffix in ("-wal", "-shm"):
        bench.ledger.path.with_name(bench.ledger.path.name + suffix).unlink(missing_ok=True)
    os.replace(backup, bench.ledger.path)


def copied(bench: Bench, folder: Path) -> Path:
    if bench.ledger.path is None:
        pytest.skip("a PostgreSQL ledger is not restored under a process that runs")
    with sqlite3.connect(bench.ledger.path) as here, sqlite3.connect(folder / "copy.db") as there:
        here.backup(there)
    return folder / "copy.db"


def resync(bench: Bench) -> None:
    """As a process does that has opened the ledger long ago. It refuses before it reads a table."""
    resync_ledger(cast("IngestContext", SimpleNamespace(ledger=bench.ledger, witness=bench.witness)))


def test_a_running_process_does_not_lead_with_a_ledger_from_before_its_site_followed(
    bench: Bench, tmp_path: Path
) -> None:
    led(bench)
    backup = copied(bench, tmp_path)
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    restore(bench, backup)
    assert not bench.ledger.query(sites.get).follows
    with pytest.raises(ResyncNeeded), bench.ledger.write() as connection:
        sequence.check(connection, bench.witness)
    with pytest.raises(LedgerUnreadable, match="the witness says that this site follows another one"):
        resync(bench)


def test_a_running_process_does_not_follow_with_a_ledger_from_before_its_site_was_promoted(
    bench: Bench, tmp_path: Path
) -> None:
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    backup = copied(bench, tmp_path)
    promotions.begin(bench.ledger, 17)
    promotions.claim(bench.ledger, 32)
    promotions.lead(bench.ledger, bench.witness, 32, prepared=(), lost=(), fenced={}, take_over_sinks=lambda c: ())
    restore(bench, backup)
    assert bench.ledger.query(sites.get).follows
    with pytest.raises(LedgerUnreadable, match="the witness says that this site leads in term 32"):
        resync(bench)


def test_a_follower_is_pointed_to_a_leader_of_no_lower_term(bench: Bench) -> None:
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    bound = bench.ledger.query(sequence.read).last
    record(bench, offer(bench.dataset, bound, CUT, cut(CUT, 0), term=17))
    assert bench.ledger.query(sites.get).term == 17
    rejoining.follow_another(bench.ledger, new_leader(bench, 33, "https://newest"))
    assert bench.ledger.query(sites.get).leader == "https://newest"
    with pytest.raises(TermPassed):
        rejoining.follow_another(bench.ledger, new_leader(bench, 1, "https://old"))
    assert bench.ledger.query(sites.get).leader == "https://newest"


def test_a_site_that_led_twice_begins_at_its_counter_again(bench: Bench) -> None:
    led(bench)
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    bound = bench.ledger.query(sequence.read).last
    record(bench, offer(bench.dataset, bound, CUT, cut(CUT, 10), term=17))
    carry_out(bench)
    assert bench.ledger.query(cuts.open_cuts, bench.dataset.id) == []
    assert bench.ledger.query(sites.get).own_number == 0, "the first leader keeps its number, and can lead again"
    promotions.begin(bench.ledger, 17)
    promotions.claim(bench.ledger, 32)
    promotions.lead(bench.ledger, bench.witness, 32, prepared=(), lost=(), fenced={}, take_over_sinks=lambda c: ())
    bench.publish(bench.reserve("x", 5))
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench, 33))
    [followed] = bench.ledger.query(following.list_followed)
    assert (followed.bound, followed.term) == (bench.ledger.query(sequence.read).last, 32)


def test_bodies_from_before_are_not_taken_in_when_the_site_leads_again(bench: Bench) -> None:
    """Their files may have been ingested at the other leader. A person decides, body by body."""
    receiving = new_receiving(bench)
    whole = replace(bench, dataset=receiving.dataset)
    receiving.accept("a", "b", "c")
    batch = receiving.form()
    assert batch is not None
    receiving.accept("d")
    under_way = receiving.form()
    assert under_way is not None
    whole.reserve(under_way.batch_id)  # the cut abandons its block
    receiving.accept("e")
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(whole))
    bound = bench.ledger.query(sequence.read).last
    record(bench, offer(whole.dataset, bound, CUT, cut(CUT, 0), term=17))
    carry_out(whole)
    promotions.begin(bench.ledger, 17)
    promotions.claim(bench.ledger, 32)
    led = promotions.lead(
        bench.ledger, bench.witness, 32, prepared=(), lost=(), fenced={}, take_over_sinks=lambda c: ()
    )
    assert led.bodies_aside == ((whole.dataset.name, 5),)
    with bench.ledger.read() as connection:
        aside = ended_batches.aside(connection, whole.dataset.name)
        assert [(b.key, b.reason) for b in aside] == [(key, promotions.ASIDE_REASON) for key in "abcde"]
        assert batches.due(connection, rows_max=1, older_than=utc_now()) == []
    assert receiving.form() is None and receiving.take() == []
    ended_batches.discard(bench.ledger, [aside[0].id])
    ended_batches.replay(bench.ledger, [aside[1].id])
    assert [b.bodies[0].id for b in receiving.take()] == [aside[1].id]


def test_a_leader_that_hears_of_a_higher_term_takes_nothing_more_and_says_what_to_do(bench: Bench) -> None:
    _, _, reserved = led(bench)
    with bench.ledger.write() as connection:
        assert sites.supersede(connection, term=17, by="https://new")
        assert not sites.supersede(connection, term=17, by="https://another")
        assert not sites.supersede(connection, term=1, by="https://another")
    said = r"this site led in term 1; site https://new leads in term 17"
    with pytest.raises(NotLeader, match=said) as refused:
        bench.reserve("e", 1)
    assert "strandline rejoin https://new" in str(refused.value.hint)
    with pytest.raises(NotLeader, match=said):
        blocks.mark_staged(bench.ledger, bench.witness, reserved, SnapshotId(6))
    with bench.ledger.read() as connection, pytest.raises(NotLeader, match=said):
        sites.check_offers(connection)
    rejoining.become_follower(bench.ledger, bench.witness, new_leader(bench))
    assert bench.ledger.query(sites.get).superseded_term is None
