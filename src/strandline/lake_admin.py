"""Making a lake, and making its ledger or its witness again when one of them is lost."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.block_branches import parse_branch
from strandline.core.errors import LedgerUnreadable, RefusedError, StrandlineError, UsageError, WitnessUnreadable
from strandline.core.records.audit_events import Event
from strandline.core.secrets import may_hold_secret
from strandline.core.settings.lake_config import CONFIG_NAME, LakeConfig, find_config, load_config
from strandline.core.sites.replication import SiteRole
from strandline.iceberg.metadata.table_metadata import LAKE_PROPERTY, WapId
from strandline.lake import Lake
from strandline.ledger import audit
from strandline.ledger.closed_ledger import read_move
from strandline.ledger.ingest import datasets, sequence
from strandline.ledger.replicate import leader_contact, rejoining, seen_terms, sites
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.ledger.witness import WitnessRecord
from strandline.storage.durable import rename, sync_folder, write_file

if TYPE_CHECKING:
    from strandline.ingest.resync.run import Resynced
    from strandline.replicate.take_over.rejoin import Rejoined

SETTINGS_TEMPLATE = """\
# Settings of a Strandline lake. Everything has a default; docs/settings.md explains each.

[warehouse]
url = "{warehouse}"

[catalog]
kind = "sqlite"
path = "catalog.db"

[ledger]
url = "{ledger}"
"""


def init_lake(home: Path, *, warehouse: str = "warehouse", ledger: str = "ledger.db") -> Lake:
    """Creates a lake: settings, witness, ledger. Continues an init that was interrupted."""
    lake, witnessed = _begin(home, warehouse, ledger, WitnessRecord(str(uuid.uuid4()), 0))
    if lake.ledger.exists():
        raise RefusedError(f"there is a lake already at {home}", hint="`strandline status` shows it.")
    if witnessed.highest > 0:
        raise RefusedError(
            f"the warehouse has a lake already, whose ledger is gone (highest number {witnessed.highest})",
            hint="`strandline ledger rebuild` makes its ledger again.",
        )
    lake.ledger.create(witnessed.lake)
    lake.open()
    return lake


def _begin(home: Path, warehouse: str, ledger: str, new: WitnessRecord) -> tuple[Lake, WitnessRecord]:
    """Writes settings and witness, if there are none. Returns the lake, whose ledger may be missing, and the
    witness's witnessed: `new`, or the one that the warehouse had."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / CONFIG_NAME
    if not path.exists():
        write_file(path, SETTINGS_TEMPLATE.format(warehouse=warehouse, ledger=ledger).encode())
    lake = Lake(load_config(path))
    # The witness comes first: a ledger without one would refuse everything, a witness without a ledger is rebuilt from.
    try:
        return lake, lake.witness.read()
    except WitnessUnreadable:
        if lake.ledger.exists():
            raise
        lake.witness.create(new)
        return lake, new


def follow_lake(
    home: Path, leader: str, *, token: str | None = None, warehouse: str = "warehouse", ledger: str = "ledger.db"
) -> Lake:
    """Creates a site that follows another one: settings, witness, ledger. Continues an init that was interrupted, and
    creates a new ledger if the old one is gone: the tables stay, and the leader offers their rows again. `leader` is a
    URL or the path of the leader's settings file; `token` is where its token is found."""
    from strandline.replicate.facade import open_source

    where = _stored_address(leader)
    source = open_source(where, token)
    try:
        site = source.site()
        lake, witnessed = _begin(home, warehouse, ledger, WitnessRecord(site.lake, 0, SiteRole.FOLLOWER, site.term))
        # The witness has the lake that this site belongs to, even if its ledger is lost.
        if (witnessed.lake, witnessed.role) != (site.lake, SiteRole.FOLLOWER):
            raise RefusedError(
                f"there is another lake already at {home} ({witnessed.lake}); it cannot follow {leader}",
                hint="Name a new folder, and a warehouse that no lake has.",
            )
        is_new = not lake.ledger.exists()
        if is_new:
            lake.ledger.create(witnessed.lake)
        lake.ledger.open()
        with lake.ledger.write() as connection:
            here = sites.get(connection)
            if here.follows:
                rejoining.check_may_follow(connection, site.term)
            elif not is_new and datasets.list_datasets(connection):
                raise RefusedError(
                    f"this site led in term {here.term}, and its rejoin was interrupted",
                    hint=f"Run `strandline rejoin {leader}` here to finish it.",
                )
            term = here.term if here.follows else site.term
            heard = max(site.term, seen_terms.get(connection))
            sites.follow(connection, leader=where, token=token, term=term)
            leader_contact.forget(connection)
            if site.site_number is not None:
                sites.take_number(connection, site.site_number)
            audit.record(connection, Event.FOLLOWING_BEGUN, leader=where, term=site.term, heard=heard)
            here = sites.get(connection)
        # What an earlier site reported with this token no longer counts. If this report fails, the first pass repeats
        # it.
        with suppress(StrandlineError):
            source.acknowledge(Acknowledgement(site.term, {}, {}, here.own_instance, here.number))
    finally:
        source.close()
    lake.open()
    return lake


def _stored_address(leader: str) -> str:
    """The leader's address as it is stored: a URL, or the path of its settings file. Raises UsageError for a URL with a
    secret in it."""
    from strandline.replicate.facade import is_address

    if not is_address(leader):
        return str(find_config(leader, {}, Path.cwd()).resolve())
    if may_hold_secret(leader):
        raise UsageError(
            "the leader's address has a user, a password or a query in it, and would be stored and shown with it",
            hint="Give the address alone, and --token env:NAME or file:PATH.",
        )
    return leader


def rejoin_lake(
    config: LakeConfig,
    leader: str,
    *,
    token: str | None = None,
    confirm: Callable[[int, int], None] = lambda led_in_term, term: None,
) -> Rejoined:
    """Makes this site follow the one that took over. `leader` and `token` are as for `follow_lake`. Continues a rejoin
    that died in between: then the site follows by its witness, and leads by its ledger."""
    from strandline.replicate.facade import open_source
    from strandline.replicate.take_over.rejoin import rejoin

    where = _stored_address(leader)
    if where == str((config.home / CONFIG_NAME).resolve()):
        raise RefusedError(f"{where} is this site itself", hint="Name the site that took over.")
    lake = Lake(config)
    lake.ledger.open()
    source = open_source(where, token)
    try:
        return rejoin(config, lake.ledger, lake.witness, source, address=where, token=token, confirm=confirm)
    finally:
        source.close()
        lake.ledger.close()


def rebuild_ledger(
    config: LakeConfig,
    *,
    force: bool = False,
    lost_witness: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> Resynced:
    """Rebuilds the ledger from tables and witness, or a lost witness from the ledger.

    An existing ledger is renamed, never deleted. If both are lost, it is unknown which sequence numbers were used:
    then this raises, because a number must never be used twice.
    """
    lake = Lake(config)
    lake.on_start = on_start
    if lost_witness:
        _replace_witness(lake)
    else:
        witnessed = lake.witness.read()
        if witnessed.role is SiteRole.FOLLOWER:
            raise RefusedError(
                "this site follows another one: its ledger is made from the leader, not from its tables",
                hint="Rename the ledger; `strandline follow init LEADER` then uses the tables.",
            )
        if lake.ledger.exists():
            _rename_ledger(lake, force=force)
        lake.ledger.create(witnessed.lake)
        # One number more than the new ledger can know, so that a resync stays due until it has been done.
        lake.witness.raise_to(witnessed.highest + 1, expected=witnessed.highest)
    lake.open()
    resynced = lake.ingestion.resync_ledger(rebuild=True)
    if resynced is None:
        raise LedgerUnreadable("the rebuilt ledger could not be resynced")
    lake.recover()
    lake.close()
    return resynced


def _replace_witness(lake: Lake) -> None:
    try:
        found = lake.witness.read()
    except WitnessUnreadable:
        pass
    else:
        raise RefusedError(f"the witness exists, at {found.highest}", hint="Leave out --lost-witness.")
    lake.ledger.open()
    with lake.ledger.read() as connection:
        lake.id = sequence.read(connection).lake
    seen = highest_seen(lake)
    with lake.ledger.write() as connection:
        counter, here = sequence.lock(connection), sites.get(connection)
        # One number more than the ledger knows, so that a resync is due; and at least what the tables show, because the
        # ledger may be an old copy.
        highest = max(counter.last, seen) + 1
        # If the ledger is lost later, a new one gets its role from the witness: it must not lead if this one follows.
        lake.witness.replace(WitnessRecord(counter.lake, highest, here.role, here.term))
        audit.record(
            connection, Event.WITNESS_REPLACED, highest=highest, counter=counter.last, in_tables=seen,
            role=here.role.value, term=here.term,
        )  # fmt: skip


def highest_seen(lake: Lake) -> int:
    """The highest sequence number in the history of the tables."""
    tables = lake.tables()
    found = [0]
    for name in tables.names():
        view = tables.view(name)
        if view.properties.get(LAKE_PROPERTY) == lake.id:
            found += [branch.lo for branch in map(parse_branch, view.branches) if branch is not None]
            waps = (WapId.parse(s.wap) for s in view.snapshots.values())
            found += [w.rows.hi for w in waps if w is not None and w.lake == lake.id]
    return max(found)


def _rename_ledger(lake: Lake, *, force: bool) -> None:
    if lake.ledger.path is None:
        raise RefusedError(
            "the PostgreSQL database has a ledger already",
            hint="Rename or drop that database yourself, make an empty one of the same name, and run this again.",
        )
    try:
        lake.ledger.open()
        usable, move = True, lake.ledger.query(read_move)
    except RefusedError:
        usable, move = False, None
    if move is not None:  # the lake is elsewhere, or will be: a new ledger here would be a second one
        raise move.refusal()
    if usable and not force:
        raise RefusedError("the ledger exists and can be read", hint="Nothing to rebuild; --force does it anyway.")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for suffix in ("", "-wal", "-journal", "-shm"):
        part = lake.ledger.path.with_name(lake.ledger.path.name + suffix)
        if part.exists():
            rename(part, part.with_name(f"{lake.ledger.path.name}.replaced-{stamp}{suffix}"))
    sync_folder(lake.ledger.path.parent)
