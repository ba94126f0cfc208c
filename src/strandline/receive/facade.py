"""`lake.receiver`: tokens, claims, the HTTP receiver, and the bodies in its spool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.actor import bind_context
from strandline.core.errors import RefusedError, StrandlineError
from strandline.core.records.audit_events import Event
from strandline.core.roles import Role
from strandline.core.types import Dataset, Seq
from strandline.iceberg.metadata.identifier import full_name
from strandline.jobs.loop import LoopControl
from strandline.ledger import audit
from strandline.ledger.ingest import blocks, datasets, sequence
from strandline.ledger.receive import ended_batches, receive_holds, senders, spool_files, tokens
from strandline.ledger.replicate import sites
from strandline.receive.intake import Intake, IntakeContext
from strandline.receive.record_found import RecordedBodies, find_doubtful

if TYPE_CHECKING:
    import socket

    from strandline.core.forward_protocol import LaneName
    from strandline.http.server import Server, TlsFiles
    from strandline.iceberg.schema.columns import Column
    from strandline.ledger.receive.ended_batches import Cleared, SetAsideBody
    from strandline.ledger.receive.senders import ClaimOf, Released
    from strandline.ledger.receive.spool_files import LeftFile, LeftFiles
    from strandline.ledger.receive.tokens import Token
    from strandline.receive.body.json_lines import ReadLines
    from strandline.receive.count_received import ReceivedInspector
    from strandline.receive.intake import BatchReport

log = logging.getLogger(__name__)


class ReceiverListener(Protocol):
    """Gets the events of a receiver."""

    def listening(self, url: str, datasets: list[str]) -> None: ...

    def batch(self, report: BatchReport) -> None: ...


@dataclass(frozen=True)
class Receiver:
    """`lake.receiver`. Several may run on one ledger."""

    context: IntakeContext
    read_lines: Callable[[], ReadLines]  # ingest's parser for JSON lines, loaded when the first request may come

    def create_token(
        self,
        name: str,
        only: Sequence[str] | None = None,
        *,
        role: Role | None = None,
        expires_in: timedelta | None = None,
        replaces: str | None = None,
    ) -> tuple[Token, str]:
        """Also returns the secret, which cannot be read again: only its hash is stored. A token that replaces another
        takes over its claims and bodies. Both are valid until the old one is revoked."""
        with self.context.ledger.write() as connection:
            named = None if only is None else [datasets.get(connection, full_name(d)).name for d in only]
            made, secret = tokens.create(connection, name, named, role=role, expires_in=expires_in, replaces=replaces)
            audit.record(
                connection, Event.TOKEN_CREATED, token=name, role=made.role, datasets=made.datasets,
                expires_at=made.expires_at, replaces=replaces,
            )  # fmt: skip
        return made, secret

    def list_tokens(self) -> list[Token]:
        return self.context.ledger.query(tokens.list_tokens)

    def revoke_token(self, name: str) -> None:
        with self.context.ledger.write() as connection:
            if not tokens.revoke(connection, name):
                raise RefusedError(f"there is no token {name} in use", hint="`strandline token list` shows them all.")
            audit.record(connection, Event.TOKEN_REVOKED, token=name)

    def list_claims(self) -> list[ClaimOf]:
        return self.context.ledger.query(senders.list_claims)

    def release_claim(self, dataset: str, lake: str, source_dataset: str) -> Released:
        """Takes a sender's lanes away from the token that claimed them; the next token that claims them gets them."""
        with self.context.ledger.write() as connection:
            target = datasets.get(connection, full_name(dataset))
            released = senders.release(connection, target.id, lake, source_dataset)
            if released is None:
                raise RefusedError(
                    f"no sender of lake {lake} has claimed {target.name} for its dataset {source_dataset}",
                    hint="`strandline token claims` shows all claims.",
                )
            taken = {"sink": released.instance, "generation": released.generation, "forgotten": released.forgotten}
            claim = {"dataset": target.name, "lake": lake, "source_dataset": source_dataset}
            audit.record(connection, Event.CLAIM_RELEASED, **claim, **taken)
        return released

    def ingest_waiting(self, dataset: Dataset) -> int:
        """Ingests the bodies that were received for the dataset and are not in its table yet; returns how many."""
        from strandline.receive.drain import drain

        return drain(self.context, dataset)

    def adopt(self) -> RecordedBodies:
        """Records the bodies in the spool that the ledger does not know. A receiver does this when it starts."""
        return self.context.found_bodies.run()

    def accept(self, dataset: str, reason: str) -> list[str]:
        """Lifts the hold of a dataset by a person's decision, though it is unknown which bodies its table has. First
        sets aside the spool files whose rows may be in the table already, and returns their names."""
        with self.context.ledger.read() as connection:
            target = datasets.get(connection, full_name(dataset))
            hold = receive_holds.list_holds(connection).get(target.id)
            blocks.check_resynced(connection, target.id)
        if hold is None:
            raise RefusedError(f"the receiver of {target.name} is not on hold", hint="There is nothing to accept.")
        aside = find_doubtful(self.context.ledger, self.context.receipts, target).files_in(self.context.spool, target)
        for name in aside:  # before the hold is lifted: after a crash in between, the hold is still there
            self.context.spool.set_aside(name)
        with self.context.ledger.write() as connection:
            blocks.check_resynced(connection, target.id)
            receive_holds.clear(connection, target.id)
            audit.record(
                connection,
                Event.RECEIVED_ACCEPTED,
                dataset=target.name,
                hold=hold,
                reason=reason,
                files_set_aside=aside,
            )
        return aside

    def intake(self, on_report: Callable[[BatchReport], None] = lambda report: None) -> Intake:
        return Intake(self.context, on_report=on_report)

    def inspector(self) -> ReceivedInspector:
        from strandline.receive.count_received import ReceivedInspector

        return ReceivedInspector(self.context.ledger, self.context.tables, self.context.spool)

    def set_aside(self, dataset: str | None = None) -> list[SetAsideBody]:
        return self.context.ledger.query(ended_batches.list_set_aside, None if dataset is None else full_name(dataset))

    def unrecorded(self) -> LeftFiles:
        """Files in the spool whose bodies could not be recorded at the receiver's last check."""
        return self.context.ledger.query(spool_files.read_left)

    def move_unrecorded_aside(self, dataset: str | None = None) -> list[LeftFile]:
        """Gives up bodies in the spool that cannot be recorded. Renames their files, so that they are not ingested."""
        wanted = None if dataset is None else full_name(dataset)
        self.context.ingestion.catch_up()
        gone = [f for f in self.adopt().left if wanted in (None, f.dataset)]
        for file in gone:
            self.context.spool.set_aside(file.name)
        if gone:
            with self.context.ledger.write() as connection:
                first = [asdict(f) for f in gone[: spool_files.FILES_NAMED_MAX]]
                audit.record(connection, Event.SPOOL_FILES_SET_ASIDE, files=len(gone), first=first)
            self.adopt()
        return gone

    def replay(self, bodies: Collection[int] | None, dataset: str | None = None) -> list[SetAsideBody]:
        """Queues bodies again that were set aside (None: all). A receiver ingests them."""
        return ended_batches.replay(self.context.ledger, bodies, None if dataset is None else full_name(dataset))

    def discard(self, bodies: Collection[int] | None, dataset: str | None = None) -> list[SetAsideBody]:
        """Gives up bodies that were set aside, and removes their files. The ledger still answers a repeat."""
        gone = ended_batches.discard(self.context.ledger, bodies, None if dataset is None else full_name(dataset))
        self.intake().remove_files()
        return gone

    def clear(self, dataset: str) -> Cleared:
        """Gives up everything that was received for a dropped dataset, and removes the files."""
        gone = ended_batches.clear_dropped(self.context.ledger, full_name(dataset))
        self.intake().remove_files()
        return gone

    def serve(
        self,
        control: LoopControl,
        listener: ReceiverListener,
        *,
        host: str | None = None,
        port: int | None = None,
        ingest: bool = True,
    ) -> None:
        """Serves until `control.stopping` is set, then answers the requests in progress. Runs the intake with
        `control`. While the site does not lead, answers 503."""
        from strandline.http.server import address, listen, tls_files

        settings, stopping = self.context.settings, control.stopping
        tls = tls_files(self.context.config, settings.tls_certificate, settings.tls_key, section="receive")
        address_of = settings.host if host is None else host, settings.port if port is None else port
        listening = listen(*address_of, section="receive")
        url = address(listening, tls=tls is not None)
        names = [d.name for d in self.context.ledger.query(datasets.list_datasets)]
        with ThreadPoolExecutor(1, "strandline-intake-loop") as pool:
            intake = self.intake(listener.batch)
            server = self._server(listening, tls, intake.resync_soon)
            try:
                server.start()
                listener.listening(url, names)
                if ingest:
                    working = pool.submit(bind_context(intake.run), control)
                    working.add_done_callback(lambda _: stopping.set())
                else:
                    self._adopt_at_start()
                server.wait(stopping)
            finally:
                stopping.set()
                server.stop()
        if ingest:
            working.result()

    def _adopt_at_start(self) -> None:
        """Records unknown bodies, for receivers without an intake. If the ledger needs a resync, that does it. At a
        site that does not lead, the first request after it leads does it."""
        try:
            if not self.context.ledger.query(sites.get).leads:
                return
            self.context.ledger.change(sequence.check, self.context.witness)
            self.adopt()
        except StrandlineError as e:
            log.warning("unknown bodies in the spool could not be recorded: %s", e.message)

    def _server(self, listening: socket.socket, tls: TlsFiles | None, on_behind: Callable[[], None]) -> Server:
        from strandline.http.limits import HttpLimits
        from strandline.http.server import Server
        from strandline.receive.context import ReceiverContext
        from strandline.receive.http.app import create_app

        parts = ReceiverContext(
            self.context.config,
            self.context.ledger,
            self.context.spool,
            self.context.receipts,
            self.context.witness,
            self,
            self.read_lines(),
            on_behind,
        )
        settings = self.context.settings
        last_seconds_max = self.context.config.settings.run.part_seconds_max
        limits = HttpLimits(settings.connections_max, settings.head_seconds_max, last_seconds_max)
        return Server(create_app(parts), listening, tls, limits)

    def schema_of(self, name: str) -> tuple[Dataset, Sequence[Column]]:
        found = self.context.ledger.query(datasets.get, full_name(name))
        return found, self.context.tables.catalog.columns(found.name)

    def inspect(self, dataset: Dataset, lane: LaneName, lo: Seq, hi: Seq) -> Mapping[str, Any]:
        return self.inspector().document(dataset, lane, lo, hi)
