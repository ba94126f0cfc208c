"""One ledger for many tests of receiving: each has a dataset and a token of its own in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import sqlalchemy as sa

from strandline.core.forward_protocol import BodyIdentity, KeyIdentity, LaneName, RangeIdentity
from strandline.core.types import BlockKind, Dataset, DatasetId, Seq, SeqRange
from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.ingest import blocks, restored_blocks
from strandline.ledger.receive import batches, received, senders, tokens
from strandline.ledger.receive.batches import Batch
from strandline.ledger.receive.received import Decision, New, UnrecordedBody
from strandline.ledger.receive.senders import SourceRecord
from strandline.ledger.receive.tokens import Token
from strandline.ledger.witness import Witness
from tests.ledger.conftest import LakeState

_numbers = count(1)
SENDER = LaneName("other-lake", "sink-instance", 1, "default.source", "")
NOW = timedelta(0)


def span(lo: int, hi: int) -> SeqRange:
    return SeqRange(Seq(lo), Seq(hi))


def by_range(lo: int, hi: int, lane: LaneName = SENDER) -> RangeIdentity:
    return RangeIdentity(lane, span(lo, hi))


@dataclass
class Receiving:
    ledger: Ledger
    witness: Witness
    dataset: Dataset
    token: Token

    def body(
        self,
        identity: BodyIdentity | str,
        *,
        rows: int | None = None,
        digest: str | None = None,
        token: Token | None = None,
        dataset: DatasetId | None = None,
    ) -> UnrecordedBody:
        named = KeyIdentity(identity) if isinstance(identity, str) else identity
        if rows is None:
            rows = len(named.rows) if isinstance(named, RangeIdentity) else 10
        spool = f"{self.dataset.table_uuid}/{next(_numbers)}.arrow" if rows else None
        return UnrecordedBody(
            dataset or self.dataset.id,
            named,
            (token or self.token).id,
            rows,
            digest or f"sha256:{named}",
            100 * rows,
            spool,
            10 * rows,
        )

    def record(self, *bodies: UnrecordedBody) -> list[Decision]:
        return received.record(self.ledger, bodies)

    def claim(self, lane: LaneName = SENDER, token: Token | None = None) -> senders.SourceRecord | None:
        with self.ledger.write() as connection:
            return senders.claim(
                connection,
                self.dataset.id,
                SourceRecord(lane.lake, lane.dataset, lane.instance, "u", lane.generation, (token or self.token).owner),
            )

    def accept(self, *identities: BodyIdentity | str, rows: int | None = None) -> list[UnrecordedBody]:
        """All of them new."""
        made = [self.body(identity, rows=rows) for identity in identities]
        assert all(isinstance(decision, New) for decision in self.record(*made))
        return made

    def known(self, identity: BodyIdentity, digest: str = "") -> Decision | None:
        with self.ledger.read() as connection:
            return received.find_decision(connection, self.dataset.id, identity, self.token.id, digest)

    def held(self, after: int | None = None, partition: str = "") -> list[SeqRange]:
        with self.ledger.read() as connection:
            asked = [(partition, None if after is None else Seq(after))]
            [found] = senders.held_bodies(connection, self.dataset.id, SENDER, asked, bodies_max=1000)
        assert not found.more
        return [body.rows for body in found.bodies]

    def form(self, rows_max: int = 1_000_000, waited: timedelta = NOW, **given: int) -> Batch | None:
        return batches.form(self.ledger, self.dataset.id, rows_max=rows_max, older_than=utc_now() - waited, **given)

    def take(self, seconds: float = 60) -> list[Batch]:
        return batches.take(self.ledger, seconds, dataset=self.dataset.id)

    def publish(self, lo: int) -> Batch:
        """Everything that waits, with numbers from here on."""
        batch = self.form()
        assert batch is not None
        self.publish_formed(batch, lo)
        return batch

    def publish_formed(self, batch: Batch, lo: int) -> None:
        rows = span(lo, lo + batch.rows - 1)
        in_table(self.ledger, batch, rows)
        batches.settle(self.ledger, batch, rows)

    def remove_files(self) -> int:
        with self.ledger.read() as connection:
            own = [id for id, spool in batches.to_remove(connection) if spool.startswith(self.dataset.table_uuid)]
        return batches.record_removed(self.ledger, own)

    def stored(self) -> list[Any]:
        with self.ledger.read() as connection:
            query = sa.text("SELECT * FROM received WHERE dataset_id = :dataset ORDER BY id")
            return list(connection.execute(query, {"dataset": self.dataset.id}))

    def is_refused(self, statement: str) -> bool:
        """Whether the store itself says no."""
        try:
            with self.ledger.write() as connection:
                connection.execute(sa.text(statement), {"dataset": self.dataset.id})
        except sa.exc.IntegrityError:
            return True
        return False


def in_table(ledger: Ledger, batch: Batch, rows: SeqRange) -> None:
    """What the ledger knows of a batch that the table has, unless it knows it already."""
    with ledger.write() as connection:
        if blocks.of_batch(connection, batch.dataset, batch.batch_id) is None:
            assert restored_blocks.insert_published(
                connection, batch.dataset, rows, kind=BlockKind.RECOVERED, batch_id=batch.batch_id
            )


def new_receiving(lake: LakeState) -> Receiving:
    number = next(_numbers)
    dataset = lake.add_dataset(f"default.r{number}")
    with lake.ledger.write() as connection:
        token, _ = tokens.create(connection, f"token-{number}", None)
    made = Receiving(lake.ledger, lake.witness, dataset, token)
    assert made.claim() is not None
    return made


def at_once(lake: LakeState, work: Sequence[Callable[[Ledger], Any]]) -> list[Any]:
    """Each with connections of its own, all begun at the same moment."""
    gate = threading.Barrier(len(work))
    ledgers = [Ledger(lake.config) for _ in work]

    def begin(ledger: Ledger, do: Callable[[Ledger], Any]) -> Any:
        with ledger.read() as connection:  # connected before it counts
            connection.exec_driver_sql("SELECT 1")
        gate.wait()
        return do(ledger)

    try:
        with ThreadPoolExecutor(len(work)) as pool:
            return list(pool.map(begin, ledgers, work))
    finally:
        for ledger in ledgers:
            ledger.close()
