"""A leader that another site has replaced finds out at its sinks, and then delivers nothing and takes no rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from strandline.core.errors import NotLeader, TermPassed
from strandline.deliver.context import DeliverContext
from strandline.deliver.recover_sink import recover_sink
from strandline.deliver.sink import Claim, Claimed
from strandline.deliver.sink_session import SinkRun, open_sink
from strandline.deliver.tick import Deliverer
from strandline.ledger.deliver import sinks
from strandline.ledger.replicate import sites
from tests.ledger.conftest import LAKE, LakeState
from tests.ledger.delivery import Delivery, new_delivery
from tests.no_tables import NoTables


@pytest.fixture
def delivery(lake: LakeState, tmp_path: Path) -> Delivery:
    made = new_delivery(lake, partitioned=False)
    place = tmp_path / "out"
    with lake.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE sink SET kind = 'files' WHERE id = {made.sink.id}")
        sinks.set_options(connection, made.sink.id, {"path": str(place)}, f"file://{place}")
    sinks.leases.release(lake.ledger, made.lease)
    made.refresh()
    made.settle(1, 10)
    return made


def site_of(lake: LakeState) -> DeliverContext:
    return DeliverContext(LAKE, lake.config, lake.ledger, NoTables())


def claim_for(context: DeliverContext, delivery: Delivery, term: int) -> Claimed:
    """As the leader of that term does it."""
    with closing(open_sink(context, delivery.sink, delivery.dataset, delivery.sink.options)) as sink:
        claim = Claim(LAKE, delivery.sink.instance, delivery.dataset.name, delivery.dataset.uuid, term)
        return sink.claim(claim, delivery.sink.generation)


def test_an_old_leader_that_meets_a_later_term_stops_and_says_what_to_do(lake: LakeState, delivery: Delivery) -> None:
    context = site_of(lake)
    claim_for(context, delivery, 17)
    [report] = Deliverer(context).tick(delivery.sink.name).sinks
    assert (report.did, report.rows) == ("waiting", 0)
    assert "leader of term 17" in str(report.reason) and "led in term 1" in str(report.reason)
    assert "strandline rejoin" in str(report.hint)
    assert lake.ledger.query(sites.get).superseded_term == 17
    assert lake.ledger.query(sinks.due) == [], "and does not come back to it"
    with pytest.raises(NotLeader, match="leads in term 17"):
        lake.ledger.query(sites.check_leads)


def test_an_old_leader_does_not_recover_a_sink_of_a_later_one(lake: LakeState, delivery: Delivery) -> None:
    context = site_of(lake)
    claim_for(context, delivery, 17)
    with pytest.raises(TermPassed, match="term 17"):
        recover_sink(context, delivery.dataset, delivery.sink.name, resend=True, accept_loss=False)


def test_a_new_leader_claims_in_its_term_and_fences_once_more(
    lake: LakeState, delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or an old leader that fenced before the claim, and after the fence, would go on."""
    context = site_of(lake)
    with lake.ledger.write() as connection:
        sites.raise_term(connection, 17)
    fences: list[str] = []
    fence = SinkRun.fence
    monkeypatch.setattr(SinkRun, "fence", lambda run: (fences.append(run.record.name), fence(run))[1])
    for expected in (1, 1):  # the second time the term is its own already
        with closing(SinkRun(context, delivery.sink, delivery.dataset, delivery.take())) as run:
            run.claim()
            sinks.leases.release(lake.ledger, run.lease)
            assert len(fences) == expected
            found = run.sink().claimed()
            assert found is not None and found.claim.term == 17
