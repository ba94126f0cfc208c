"""Records received batches that a restored ledger does not know. Their receipts list the bodies in them.

The table's history names the batches. If history is not complete back to a snapshot that the ledger knows, or a receipt
is gone, it is unknown which bodies the table has. A sender that repeats a body would add its rows a second time. So the
dataset's receiver is on hold until a person has decided.
"""

from __future__ import annotations

from strandline.core.types import Dataset, SeqRange
from strandline.iceberg.metadata.table_metadata import TableView, WapId
from strandline.ingest.context import IngestContext
from strandline.ingest.resync.cuts import cuts_on, is_cut_out
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import published_blocks, table_states
from strandline.ledger.receive import batch_receipts, receive_holds, tokens
from strandline.ledger.receive.receipts import BATCH_PREFIX

_NOT_OPENED = (
    "the ledger was restored from an older copy, and its table cannot be read to see which bodies were received since"
)


def hold_until_resynced(connection: Connection, dataset: Dataset) -> None:
    """Puts the receiver on hold: the table cannot be read, so it is unknown which bodies it has. The dataset's later
    resync ends this hold."""
    receive_holds.put(connection, dataset.id, _NOT_OPENED, replaces_leader_hold=False)


def end_hold_until_resynced(connection: Connection, dataset: Dataset) -> None:
    """Ends the hold that `hold_until_resynced` began; other holds stay."""
    if receive_holds.list_holds(connection).get(dataset.id) == _NOT_OPENED:
        receive_holds.clear(connection, dataset.id)


def restore_received(
    work: IngestContext, connection: Connection, dataset: Dataset, gap: SeqRange, *, is_complete: bool
) -> str | None:
    """Records the bodies of all received batches that the table has in the gap. If that fails, or the table's history
    is not complete (`history_reaches_copy`), puts the dataset's receiver on hold and returns the reason."""
    view = work.tables.view(dataset.name)
    problems = [p for wap in _received(view, gap, work.lake) if (p := _restore_batch(work, connection, dataset, wap))]
    if not is_complete and _may_receive(work, connection, dataset):
        problems.append("snapshots of its table that are newer than the copy have expired")
    if not problems:
        return None
    reason = (
        "the ledger was restored from an older copy, and it is unknown which bodies were received since (sequence "
        f"numbers {gap}): {problems[0]}"
    )
    receive_holds.put(connection, dataset.id, reason)
    return reason


def _received(view: TableView, gap: SeqRange, lake: str) -> list[WapId]:
    """The received batches that the table has in the gap, oldest first."""
    waps = (snapshot.block_of(lake) for snapshot in view.ancestors(view.main))
    cuts = cuts_on(view)
    ours = [w for w in waps if w is not None and w.rows.lo in gap and not is_cut_out(w.rows, cuts)]
    return [w for w in reversed(ours) if w.batch_id.startswith(BATCH_PREFIX)]


def _restore_batch(work: IngestContext, connection: Connection, dataset: Dataset, wap: WapId) -> str | None:
    """Records the bodies of a batch. Returns the problem if that is impossible."""
    if batch_receipts.has_ended(connection, wap.batch_id):
        return f"batch {wap.batch_id} is in the table, and the ledger has its bodies in other batches"
    if batch_receipts.has_batch(connection, wap.batch_id):
        return None  # the ledger knows its bodies, and its block is recorded as published
    if (receipt := work.receipts.read(dataset.table_uuid, wap.batch_id)) is None:
        return f"the receipt of batch {wap.batch_id} is gone"
    problem = batch_receipts.restore_batch(connection, dataset.id, receipt, wap.rows)
    return None if problem is None else f"batch {wap.batch_id}: {problem}"


def history_reaches_copy(connection: Connection, dataset: Dataset, view: TableView) -> bool:
    """Whether the table's history reaches back to a snapshot that the restored copy knows. Then it shows everything
    that was published since. Call this before the ledger learns from the table."""
    in_copy = {block.snapshot for block in published_blocks.last_settled(connection, dataset.id)}
    if (settled := table_states.get(connection, dataset.id).settled) is not None:
        in_copy.add(settled.snapshot)
    return view.chain_reaches(None) or any(s.id in in_copy for s in view.ancestors(view.main))


def _may_receive(work: IngestContext, connection: Connection, dataset: Dataset) -> bool:
    """Whether the dataset may have received bodies. It has not if it has no receipt and no token covers it."""
    if any(token.datasets is None or dataset.name in token.datasets for token in tokens.list_tokens(connection)):
        return True
    return bool(work.receipts.list_batches(dataset.table_uuid))
