"""A purge that a process carries out while another site, or this one, takes over: it deletes nothing later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strandline import Lake
from strandline.core.errors import StrandlineError, Superseded
from strandline.iceberg.schema.schema_file import parse_columns
from strandline.iceberg.spark import floor, row_delete
from strandline.lake_admin import rejoin_lake
from strandline.ledger.replicate import sites
from strandline.replicate.take_over.promote import Promoted
from tests.conftest import MakeHome
from tests.spark.flaky import REFUSES
from tests.spark.followed import assert_same, follow, follow_another, new_follower, new_leader, restarted, take_over
from tests.spark.protocol import COLUMNS, frame, ids


@pytest.fixture
def three(tmp_path: Path, make_home: MakeHome) -> Iterator[tuple[Lake, Lake, Lake]]:
    with new_leader(tmp_path, make_home) as leader:
        leader.create_dataset("events", parse_columns(COLUMNS))
        leader.append("events", frame(leader, 0, 6), batch_id="a")
        with (
            new_follower(tmp_path, make_home, leader, "new") as new,
            new_follower(tmp_path, make_home, leader, "other") as other,
        ):
            follow(new)
            follow(other)
            yield leader, new, other


def test_a_purge_that_a_promotion_gave_up_deletes_nothing_at_the_new_leader(
    three: tuple[Lake, Lake, Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its followers would keep rows that it has not: no item says that they are gone."""
    leader, new, other = three
    leader.maintenance.purge("events", "id IN (1, 4)")
    done: list[Promoted] = []
    write = floor.write_purge

    def stands_still(*given: Any) -> None:
        """The process has recorded the purge, and goes on when everybody takes it for dead."""
        monkeypatch.setattr(floor, "write_purge", write)
        new.ledger.change(sites.take_number, 1)
        done.append(new.replication.promotion.run(leader_is_stopped=True))
        write(*given)

    monkeypatch.setattr(floor, "write_purge", stands_still)
    with suppress(StrandlineError):
        new.replication.follow_once()
    [promoted] = done
    assert promoted.led is not None and [g.kind for g in promoted.led.given_up] == ["purge"]
    assert ids(new) == [0, 1, 2, 3, 4, 5], "they stay: a person was told"
    new.append("events", frame(new, 10, 2), batch_id="of the new leader")
    follow_another(other, new)
    follow(other)
    assert_same(new, other)


def test_a_delete_of_an_epoch_that_is_over_when_its_commit_comes_deletes_nothing(
    three: tuple[Lake, Lake, Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a purge of an old leader that stood still until the cut of the new one was carried out."""
    leader, *_ = three
    tables, name = leader.work.tables, "default.events"
    epoch, write = tables.view(name).epoch, row_delete.write

    def meanwhile(*given: Any) -> Any:
        tables.raise_epoch(name, epoch + 1)
        return write(*given)

    monkeypatch.setattr(row_delete, "write", meanwhile)
    with pytest.raises(Superseded, match="epoch 2, ours is 1"):
        row_delete.delete(tables, name, "id = 3", epoch=epoch)
    assert ids(leader) == [0, 1, 2, 3, 4, 5]


def test_a_delete_is_planned_anew_behind_another_commit(
    three: tuple[Lake, Lake, Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, *_ = three
    tables, name, write = leader.work.tables, "default.events", row_delete.write

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(row_delete, "write", write)
        leader.append("events", frame(leader, 6, 2), batch_id="b")
        return write(*given)

    monkeypatch.setattr(row_delete, "write", meanwhile)
    row_delete.delete(tables, name, "id = 3", epoch=tables.view(name).epoch)
    assert ids(leader) == [0, 1, 2, 4, 5, 6, 7]


def test_a_purge_discards_what_sinks_of_a_former_leader_have_refused(
    three: tuple[Lake, Lake, Lake], tmp_path: Path, flaky_kind: None
) -> None:
    former, leader, _ = three
    former.delivery.add("out", "events", "flaky", {"path": str(tmp_path / "out")})
    (tmp_path / REFUSES).write_text("bad 2 3 6")
    former.tick()
    kept = {int(q.row.seq): Path(q.place) for q in former.delivery.quarantined("out")}
    assert sorted(kept) == [2, 3, 6]
    take_over(leader, 17)
    rejoin_lake(former.config, str(leader.config.home))
    restarted(former)
    follow(former)
    leader.maintenance.purge("events", "id IN (1, 3)")  # the numbers 2 and 4
    follow(former)
    assert_same(leader, former)
    assert [int(q.row.seq) for q in former.delivery.quarantined("out")] == [3, 6]
    assert {n: place.exists() for n, place in kept.items()} == {2: False, 3: True, 6: True}
