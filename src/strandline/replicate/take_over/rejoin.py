"""Makes a leader that another site has replaced follow that site, and points other followers to the new leader.

Durable steps: the witness records that this site follows; one transaction records it in the ledger; bodies that this
site's receiver acknowledged, and that are in no table, are copied to files and recorded. A repeated call continues
where the last one ended. Then the site follows: the new leader's cut sets aside and removes rows that the leader lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from strandline.core import failpoints
from strandline.core.errors import RefusedError, WrongLake
from strandline.core.settings.lake_config import LakeConfig
from strandline.core.types import Dataset
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import batches, spool_files
from strandline.ledger.replicate import cuts, rejoining, sites
from strandline.ledger.replicate.rejoining import BecameFollower, NewLeader
from strandline.ledger.witness import Witness
from strandline.receive.spool import FOLDER as SPOOL_FOLDER
from strandline.receive.spool import open_spool
from strandline.replicate.follow.leader_sinks import LeaderSinks
from strandline.replicate.source import LeaderSource
from strandline.replicate.take_over.cut_rows_files import folder_of
from strandline.storage.objects import explained, open_objects


@dataclass(frozen=True, slots=True)
class CopiedBodies:
    """Bodies that this site acknowledged to their senders, and that the new leader lacks."""

    dataset: str
    place: str
    bodies: int
    rows: int | None  # None: unknown, because the ledger does not know one of the bodies


@dataclass(frozen=True, slots=True)
class Rejoined:
    leader: str
    term: int  # of the leader
    led: BecameFollower | None  # None: this site followed before, too
    bodies: tuple[CopiedBodies, ...]


def rejoin(
    config: LakeConfig,
    ledger: Ledger,
    witness: Witness,
    source: LeaderSource,
    *,
    address: str,
    token: str | None,
    confirm: Callable[[int, int], None] = lambda led_in_term, term: None,
) -> Rejoined:
    """`confirm` is called before a leader stops leading. Raises WrongLake, TermPassed, NotLeader if the other site does
    not lead, and RefusedError if its term is not later than this site's."""
    answer = source.poll({}, items_max=1)
    witnessed = witness.read()
    if answer.lake != witnessed.lake:
        raise WrongLake(
            f"{address} has lake {answer.lake}, and this site is one of lake {witnessed.lake}",
            hint="Check the address of the new leader.",
        )
    here = ledger.query(sites.get)
    leader = NewLeader(address, token, answer.term, frozenset(answer.datasets))
    led = None
    if here.follows:
        rejoining.follow_another(ledger, leader)
    elif leader.term <= here.term:
        raise RefusedError(
            f"{address} leads in term {leader.term}, and this site in term {here.term}: it has not been replaced",
            hint="`strandline promote` at a follower replaces a leader; then that one rejoins.",
        )
    else:
        confirm(here.term, leader.term)
        led = rejoining.become_follower(ledger, witness, leader)
    LeaderSinks(ledger).store(answer.sinks, answer.sinks_version)
    bodies = copy_spooled_bodies(config, ledger)
    return Rejoined(address, leader.term, led, tuple(bodies))


def copy_spooled_bodies(config: LakeConfig, ledger: Ledger) -> list[CopiedBodies]:
    """Copies the bodies that wait in the spool, once since this site follows, and records them. No body is added after
    that: the ledger of a follower refuses it."""
    with ledger.read() as connection:
        since = sites.get(connection).changed_at
        known = datasets.list_datasets(connection)
        recorded = [s for s in cuts.list_cut_folders(connection) if s.number is None]
    done = {s.dataset for s in recorded if since is None or s.at >= since}
    found, spool = [], open_spool(config)
    # Before the cut: it deletes the records of bodies whose rows it removes, and their files would look unknown.
    while ingested := ledger.query(batches.to_remove):
        spool.remove([name for _, name in ingested])
        batches.record_removed(ledger, [id for id, _ in ingested])
    for dataset in known:
        in_spool = [name for name, _ in spool.bodies(dataset.table_uuid)]
        waiting = ledger.query(spool_files.rows_in_waiting, in_spool)
        if waiting and dataset.name not in done:
            found.append(_copy(config, ledger, dataset, waiting))
        # Bodies that the ledger knows are set aside when this site leads again. Its receiver would ingest all others.
        spool.remove([name for name, rows in waiting.items() if rows is None])
    failpoints.hit("rejoin.after_bodies")
    return found


def _copy(config: LakeConfig, ledger: Ledger, dataset: Dataset, waiting: Mapping[str, int | None]) -> CopiedBodies:
    names, counts = sorted(waiting), [n for n in waiting.values() if n is not None]
    rows = sum(counts) if len(counts) == len(names) else None
    objects = open_objects(config)
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    folder = folder_of(dataset, f"bodies-{at}")
    copies = [f"{folder}/{name.rpartition('/')[2]}" for name in names]
    with explained(f"{objects.url(folder)} cannot be written"):
        document = {"dataset": dataset.name, "dataset_id": dataset.uuid, "rows": rows, "bodies": names}
        objects.put(f"{folder}/manifest.json", json.dumps(document, indent=2).encode())
        for name, copy in zip(names, copies, strict=True):
            objects.copy(f"{SPOOL_FOLDER}/{name}", copy)
        objects.sync(copies)
    with ledger.write() as connection:
        cuts.record_cut_folder(
            connection, dataset, number=None, place=objects.url(folder), rows=rows, files=len(names)
        )  # fmt: skip
    return CopiedBodies(dataset.name, objects.url(folder), len(names), rows)
