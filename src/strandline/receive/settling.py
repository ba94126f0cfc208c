"""What was received, brought level with the spool: a ledger that was restored from an older copy has forgotten bodies
that were answered with 202, and batches that were published.

Two things outlive it in the warehouse. Every file of the spool says whose rows it holds, and every batch was listed
before it was reserved. So, in this order: batches that are listed and not known are taken over as they are, under their
own ids; then files that nobody names are offered once more, as their sender would. Nothing is doubled, because a body
that was ever offered to the table is in a list; and nothing is lost, because a file goes only after its list says with
which numbers its rows were published.

A batch is formed, and a body recorded, only in an epoch that was settled before. A restore that took no numbers back is
not seen in the epoch; it cannot have unpublished anything, and what it forgot is found when the files are looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from strandline.errors import OpeningNeeded, RefusedError, StorageError, WitnessUnreadable
from strandline.ledger import audit, blocks, datasets, listed, received, sequence
from strandline.ledger.engine import Connection, Ledger, utc_now
from strandline.ledger.listed import ListedBody
from strandline.ledger.received import New, Repeat
from strandline.ledger.witness import Witness
from strandline.receive.lists import Lists, batch_of, body_of, older_than, table_of
from strandline.receive.spool import Spool, SpoolFile
from strandline.types import Dataset, Published

log = logging.getLogger(__name__)

LEFT_SECONDS = 600.0
"""A file that nobody has named for so long was left by somebody who is not at it any more. Where it is not so, nothing
comes of it: its name in the ledger decides."""
_FILES_AT_ONCE = 256


class Settling:
    """For many threads, in many processes."""

    def __init__(
        self,
        ledger: Ledger,
        witness: Witness,
        spool: Spool,
        lists: Lists,
        catch_up: Callable[[], None],
        *,
        kept_days: int,
    ) -> None:
        self.ledger = ledger
        self.witness = witness
        self.spool = spool
        self.lists = lists
        self.epoch: int | None = None
        """That was settled; None until then."""
        self._catch_up = catch_up
        self._kept_days = kept_days
        self._lock = threading.Lock()

    def level(self) -> int:
        """The epoch of the ledger, settled. While it is the one that is known, this is a look at the witness."""
        with self._lock:
            epoch = self._opened()
            if epoch != self.epoch:
                self._settle(self.spool.files())
                self.epoch = epoch
            return epoch

    def _opened(self) -> int:
        """Asked under the counter's lock: a writer that is just taking numbers is no reason to start Spark."""
        with suppress(OpeningNeeded, WitnessUnreadable), self.ledger.write() as connection:
            return sequence.check(connection, self.witness).epoch
        self._catch_up()
        with self.ledger.read() as connection:
            return sequence.read(connection).epoch

    def tidy(self) -> None:
        """Files that were left, and lists that are older than any copy of the ledger that somebody may bring back."""
        with self._lock:
            left = [file for file in self.spool.files() if file.age_seconds > LEFT_SECONDS]
            if left and self._unnamed(left):
                self._opened()
                self._settle(left)
            old = older_than(self.lists.names(), utc_now() - timedelta(days=self._kept_days))
            with self.ledger.read() as connection:
                needed = listed.unfinished(connection)
            self.lists.remove(name for name in old if batch_of(name) not in needed)

    def _settle(self, files: Sequence[SpoolFile]) -> None:
        """The files were listed before: a batch that one of them is in by now is known or listed."""
        with self.ledger.read() as connection:
            owners = {d.table_uuid: d for d in datasets.every(connection)}
        in_doubt = self._take_over(owners)
        unnamed = [f for f in self._unnamed(files) if f.name not in in_doubt and table_of(f.name) in owners]
        unnamed.sort(key=lambda file: -file.age_seconds)
        for at in range(0, len(unnamed), _FILES_AT_ONCE):
            self._offer(unnamed[at : at + _FILES_AT_ONCE], owners)

    # Batches.

    def _take_over(self, owners: dict[str, Dataset]) -> set[str]:
        """Files of batches that are published and cannot be taken over: what is in them is not decided here."""
        names = [name for name in self.lists.names() if table_of(name) in owners]
        with self.ledger.read() as connection:
            unknown = listed.unknown_batches(connection, map(batch_of, names))
        in_doubt: set[str] = set()
        for name in names:
            if batch_of(name) not in unknown:
                continue
            batch = self.lists.read(name)
            try:
                with self.ledger.write() as connection:
                    if listed.adopt(connection, owners[table_of(name)].id, batch):
                        audit.record(
                            connection, "received_batch_found", batch=batch.batch_id, bodies=len(batch.bodies),
                            rows=batch.rows, numbers=None if batch.numbers is None else str(batch.numbers),
                        )  # fmt: skip
            except RefusedError as e:
                log.warning("a batch that is listed is not taken over: %s", e.message)
                # One that was not published never will be: whoever has it in hand asks before it commits.
                block = blocks.of_batch(self.ledger, owners[table_of(name)].id, batch.batch_id)
                if batch.numbers is not None or isinstance(block, Published):
                    in_doubt.update(body.spool for body in batch.bodies)
        return in_doubt

    # Files.

    def _unnamed(self, files: Sequence[SpoolFile]) -> list[SpoolFile]:
        with self.ledger.read() as connection:
            unnamed = listed.unknown_files(connection, (file.name for file in files))
        return [file for file in files if file.name in unnamed]

    def _offer(self, files: Iterable[SpoolFile], owners: dict[str, Dataset]) -> None:
        told = [body for file in files if (body := self._read(file)) is not None]
        if not told:
            return
        self.spool.sync(body.spool for body in told)
        with self.ledger.write() as connection:
            bodies = [b for b in told if not _was_turned_away(connection, b)]
            decisions = received.record_in(
                connection,
                [listed.as_body(connection, owners[table_of(b.spool)].id, b) for b in bodies],
                from_good=True,
            )
            new = [b for b, decision in zip(bodies, decisions, strict=True) if isinstance(decision, New)]
            if new:
                audit.record(connection, "received_bodies_found", bodies=len(new), rows=sum(b.rows for b in new))
        self._remove_losers([b.spool for b, d in zip(bodies, decisions, strict=True) if isinstance(d, Repeat)])

    def _read(self, file: SpoolFile) -> ListedBody | None:
        """None where it cannot be said whose it is, and where it is so old that its key may be forgotten."""
        if file.age_seconds > timedelta(days=self._kept_days).total_seconds():
            log.warning("%s in the spool is older than keys are kept; it is left as it is", file.name)
            return None
        try:
            return body_of(self.spool.note(file.name), file.name, file.size)
        except (StorageError, ValueError) as e:
            log.warning("a file in the spool is left as it is: %s", e)
            return None

    def _remove_losers(self, names: Sequence[str]) -> None:
        remove_unnamed(self.ledger, self.spool, names)


def remove_unnamed(ledger: Ledger, spool: Spool, names: Sequence[str]) -> None:
    """Of bodies that were not taken. A file that the ledger does name is another's, who found it and offered it."""
    if not names:
        return
    with ledger.read() as connection:
        unnamed = listed.unknown_files(connection, names)
    spool.remove(sorted(unnamed))


def _was_turned_away(connection: Connection, body: ListedBody) -> bool:
    """A token that this ledger knows to be revoked was so before: had the body been taken, it would be known too."""
    return body.token is not None and listed.is_revoked(connection, body.token)
