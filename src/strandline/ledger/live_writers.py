"""Who may still write to a ledger: work with a lease or a heartbeat, open blocks, and processes that have it open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from strandline.ledger.engine import Ledger
from strandline.ledger.lock_holder import find_users
from strandline.ledger.postgres import application_name
from strandline.ledger.schema.core import block, dataset, sink
from strandline.ledger.schema.maintain import maintenance_run
from strandline.ledger.schema.receive import UNFINISHED, receive_batch
from strandline.ledger.schema.reconcile import reconcile_run, sweep_lease, swept_file
from strandline.ledger.schema.replicate import site
from strandline.ledger.schema.serve import task

_RECOVER = "`strandline recover` settles it, if its writer is dead"
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class LiveWriter:
    what: str
    remedy: str


def find_live_writers(
    connection: sa.Connection, now: datetime, *, lease_seconds: float, files_move: bool
) -> list[LiveWriter]:
    """Unfinished work, by leases, heartbeats and open blocks. `lease_seconds`: a maintenance run without a heartbeat
    for this long is dead. `files_move`: then the reconciler may have no unfinished run and no file in its
    quarantine."""
    writers = [*_blocks(connection, now), *_leases(connection, now), *_jobs(connection, now, lease_seconds)]
    if connection.scalar(sa.select(site.c.promoting_term)) is not None:
        writers.append(LiveWriter("a promotion of this site is under way", "finish it with `strandline promote`"))
    return writers + (_files(connection) if files_move else [])


def _blocks(connection: sa.Connection, now: datetime) -> Iterator[LiveWriter]:
    # An offered block is not in the way while it waits: a follower has no writer for it until it applies it.
    is_waiting = block.c.offered & (block.c.state == "reserved") & (block.c.lease_until <= now)
    rows = connection.execute(
        sa.select(block.c.lo, block.c.hi, block.c.batch_id, block.c.state, block.c.lease_until, dataset.c.name)
        .join(dataset, dataset.c.id == block.c.dataset_id)
        .where(block.c.state.in_(("reserved", "staged")), ~is_waiting)
        .order_by(block.c.lo)
        .limit(_SHOWN_MAX)
    )
    for row in rows:
        is_leased = row.lease_until is not None and row.lease_until > now
        remedy = f"it may write until {row.lease_until:%H:%M:%S} UTC" if is_leased else _RECOVER
        yield LiveWriter(f"block {row.lo} to {row.hi} of {row.name} is open (batch {row.batch_id})", remedy)


def _leases(connection: sa.Connection, now: datetime) -> Iterator[LiveWriter]:
    stop = "stop `strandline run` and everything else that delivers, or wait until {} UTC"
    live = sink.c.lease_token.is_not(None) & (sink.c.lease_until > now)
    for row in connection.execute(sa.select(sink.c.name, sink.c.lease_until).where(live).limit(_SHOWN_MAX)):
        yield LiveWriter(f'a process delivers to sink "{row.name}"', stop.format(f"{row.lease_until:%H:%M:%S}"))
    live = receive_batch.c.lease_token.is_not(None) & (receive_batch.c.lease_until > now)
    receiving = sa.select(receive_batch.c.batch_id, receive_batch.c.lease_until).where(live, *UNFINISHED)
    for row in connection.execute(receiving.limit(_SHOWN_MAX)):
        yield LiveWriter(f"received batch {row.batch_id} is being ingested", "stop the receiver")
    if connection.execute(sa.select(sweep_lease.c.id).where(sweep_lease.c.until > now)).first():
        yield LiveWriter("a run of the reconciler is under way", "wait for its end: `strandline reconcile runs`")


def _jobs(connection: sa.Connection, now: datetime, lease_seconds: float) -> Iterator[LiveWriter]:
    alive = maintenance_run.c.ended_at.is_(None) & (
        maintenance_run.c.heartbeat_at > now - timedelta(seconds=lease_seconds)
    )
    for kind, node in connection.execute(sa.select(maintenance_run.c.kind, maintenance_run.c.node).where(alive)):
        yield LiveWriter(f"{kind} is under way on {node}", "wait for its end, or call it off")
    alive = task.c.ended_at.is_(None) & (task.c.lease_until > now)
    for row in connection.execute(sa.select(task.c.id, task.c.kind, task.c.node).where(alive).limit(_SHOWN_MAX)):
        yield LiveWriter(f"task {row.id} ({row.kind}) is under way on {row.node}", "wait for its end, or call it off")


def _files(connection: sa.Connection) -> list[LiveWriter]:
    if connection.execute(sa.select(reconcile_run.c.id).where(reconcile_run.c.state == "running")).first():
        return [LiveWriter("a run of the reconciler did not end", "`strandline reconcile --act` settles it")]
    in_quarantine = swept_file.c.state.in_(("begun", "held", "purging"))
    quarantined = connection.scalar(sa.select(sa.func.count()).where(in_quarantine))
    remedy = "restore or purge them: `strandline reconcile restore`, `strandline reconcile purge`"
    return [LiveWriter(f"{quarantined} files are in the reconciler's quarantine", remedy)] if quarantined else []


def find_processes(ledger: Ledger) -> list[LiveWriter]:
    """Other processes that have the ledger open, such as an idle daemon. On SQLite, it finds only those that the system
    shows: not the processes of other containers."""
    if ledger.path is not None:
        names = [str(user) for user in find_users(_files_of(ledger.path))]
    else:
        mine = application_name()
        with ledger.read() as connection:
            rows = connection.exec_driver_sql(
                "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND application_name LIKE 'strandline, process %%' ORDER BY 1"
            ).scalars()
            names = [name.removeprefix("strandline, ") for name in rows if name != mine]
    return [
        LiveWriter(f"{name} has the ledger open", "stop it: it may be a daemon, a receiver or the API")
        for name in names
    ]


def _files_of(ledger: Path) -> tuple[Path, ...]:
    return tuple(ledger.with_name(ledger.name + suffix) for suffix in ("", "-wal", "-journal"))
