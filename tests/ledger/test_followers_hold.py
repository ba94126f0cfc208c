"""What followers hold back besides retention."""

from __future__ import annotations

from strandline.core.records.reconcile_records import Asked
from strandline.core.types import SEQ_MAX
from strandline.deliver.sink_records import SinkInquiry
from strandline.ledger.replicate import followers
from strandline.reconcile.ledger_context import LedgerContextLoader
from tests.ledger.conftest import Bench
from tests.ledger.test_followers import add, tell


def test_a_restored_ledger_brings_back_no_block_of_a_dataset_that_is_followed(bench: Bench) -> None:
    """Nobody can ask a follower how far it is. What is not rolled forward was never acknowledged."""
    inquiry = SinkInquiry(None)  # type: ignore[arg-type]  # no sink is asked
    assert bench.ledger.query(inquiry.highest_delivered, bench.dataset) is None
    made = add(bench)
    assert bench.ledger.query(inquiry.highest_delivered, bench.dataset) == SEQ_MAX
    bench.ledger.change(followers.remove, made)
    assert bench.ledger.query(inquiry.highest_delivered, bench.dataset) is None


def test_the_reconciler_counts_a_follower_among_those_that_must_have_the_rows(bench: Bench) -> None:
    bench.publish(bench.reserve("a", 50))
    made = add(bench)
    tell(bench, made, 40)
    loader = LedgerContextLoader(bench.config, bench.ledger, bench.witness)
    assert loader.ledger_context(Asked(act=False)).seals[bench.dataset.name].holds == {"follower east": 40}
