"""The followers of a leader, and the progress of each of them.

A follower has everything up to its seal, which retention, the reconciler and waiting sinks use. It may have applied
more of a shard. Recovery uses that, because no block that a follower has passed may come back. Only reports of the
leader's own term count.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NewType

import sqlalchemy as sa

from strandline.core.errors import NoSuchFollower, RefusedError, TermPassed, UsageError
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import OnLag
from strandline.core.text.bounded_text import check_text
from strandline.core.types import Dataset, DatasetId, DatasetUuid, Seq, ShardId, seq_or_none
from strandline.ledger import audit
from strandline.ledger.engine import from_row, insert_into, utc_now
from strandline.ledger.ingest import datasets as dataset_records
from strandline.ledger.ingest import sequence
from strandline.ledger.maintain import floors
from strandline.ledger.receive.tokens import TokenId
from strandline.ledger.replicate import follower_numbers
from strandline.ledger.schema.core import dataset
from strandline.ledger.schema.replicate import follower, follower_mark, follower_seal, site

FollowerId = NewType("FollowerId", int)


@dataclass(frozen=True, slots=True)
class RegisteredFollower:
    id: FollowerId
    name: str
    token: TokenId | None  # the first token of its line
    datasets: tuple[DatasetUuid, ...] | None  # None: all, also those created later
    on_lag: OnLag
    drop_after: timedelta | None  # for how long retention waits for it, if it drops rows at all
    added_at: datetime
    reported_at: datetime | None  # its last progress report; None: never
    site_number: int | None = None  # None: it may follow, and cannot be promoted
    instance: str | None = None  # of its site; None: it has not reported yet
    waited_for: bool = False
    member: bool = False  # the arbiter's record names it: it may be promoted
    leaving: bool = False  # a person is removing it

    @property
    def title(self) -> str:
        """For lists that also have sinks."""
        return f"follower {self.name}"

    def follows(self, dataset: DatasetUuid) -> bool:
        return self.datasets is None or dataset in self.datasets


@dataclass(frozen=True, slots=True)
class NewFollower:
    name: str
    token: TokenId
    datasets: tuple[DatasetUuid, ...] | None = None
    on_lag: OnLag = OnLag.HOLD
    drop_after: timedelta | None = None


def _follower(connection: sa.Connection, row: Any) -> RegisteredFollower:
    only = None if row.datasets is None else _with_namesakes(connection, json.loads(row.datasets))
    bound = None if row.drop_after_seconds is None else timedelta(seconds=row.drop_after_seconds)
    return from_row(
        RegisteredFollower, row, token=row.token_id, datasets=only, on_lag=OnLag(row.on_lag), drop_after=bound,
        reported_at=row.told_at,
    )  # fmt: skip


def _with_namesakes(connection: sa.Connection, chosen: Sequence[str]) -> tuple[DatasetUuid, ...]:
    """The chosen datasets, and those that were created again under their names after a drop. The follower's token names
    them, so the follower gets those, too, and retention has to wait for it."""
    names = sa.select(dataset.c.name).where(dataset.c.uuid.in_(chosen))
    again = sa.select(dataset.c.uuid).where(dataset.c.dropped_at.is_(None), dataset.c.name.in_(names))
    return tuple(map(DatasetUuid, sorted({*chosen, *connection.execute(again).scalars()})))


def term(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(site.c.term)).scalar_one())


def check_name(name: str) -> str:
    if not name.strip():
        raise UsageError("a follower needs a name")
    return check_text("the follower's name", name)


def add(connection: sa.Connection, new: NewFollower) -> RegisteredFollower:
    """Adds a follower, or gives its token to one that was forgotten. Locks the datasets that it follows, as for a new
    sink: a run of retention that does not see the new follower has finished, or will fail."""
    check_name(new.name)
    if (new.on_lag is OnLag.DROP) != (new.drop_after is not None):
        raise UsageError(
            "on_lag=drop needs drop_after, and on_lag=hold must not have one",
            hint="`--on-lag drop --drop-after 7d`, for example.",
        )
    _lock_followed(connection, new.datasets)
    chosen = {
        "token_id": new.token,
        "datasets": None if new.datasets is None else json.dumps(sorted(new.datasets)),
        "on_lag": new.on_lag.value,
        "drop_after_seconds": None if new.drop_after is None else int(new.drop_after.total_seconds()),
    }
    own = (follower.c.name == new.name, follower.c.removed_at.is_(None), follower.c.token_id.is_(None))
    row = connection.execute(follower.update().where(*own).values(**chosen).returning(follower)).one_or_none()
    if row is None:
        number = follower_numbers.take_free_number(connection) if new.datasets is None else None
        row = _insert(connection, new.name, chosen | {"site_number": number})
    if row is None:
        raise _taken(new.name)
    return _follower(connection, row)


def _lock_followed(connection: sa.Connection, only: Collection[DatasetUuid] | None) -> None:
    for d in sorted(dataset_records.list_datasets(connection), key=lambda d: d.id):
        if only is None or d.uuid in only:
            floors.lock(connection, d.id)


def add_forgotten(connection: sa.Connection, name: str) -> bool:
    """Adds a follower that tables name and the ledger does not have. Retention keeps the rows that it lacks until a
    person adds it again, which gives it a token, or removes it. False if the ledger has it."""
    nothing = {"token_id": None, "datasets": None, "on_lag": OnLag.HOLD.value, "drop_after_seconds": None}
    return _insert(connection, name, nothing) is not None


def _insert(connection: sa.Connection, name: str, chosen: Mapping[str, object]) -> Any | None:
    values: dict[str, Any] = {"waited_for": False, "leaving": False, "term": term(connection), "added_at": utc_now()}
    new = insert_into(connection, follower).values(name=name, **(values | dict(chosen)))
    return connection.execute(new.on_conflict_do_nothing().returning(follower)).one_or_none()


def check_free(connection: sa.Connection, name: str) -> None:
    """Raises RefusedError if a follower with a token has the name."""
    if any(f.name == name and f.token is not None for f in list_followers(connection)):
        raise _taken(name)


def _taken(name: str) -> RefusedError:
    return RefusedError(f"there is a follower named {name} already", hint="Choose another name.")


_LIVE = sa.select(follower).where(follower.c.removed_at.is_(None))


def list_followers(connection: sa.Connection) -> list[RegisteredFollower]:
    """All followers by name, without removed ones."""
    return [_follower(connection, r) for r in connection.execute(_LIVE.order_by(follower.c.name))]


def get(connection: sa.Connection, name: str) -> RegisteredFollower:
    if (row := connection.execute(_LIVE.where(follower.c.name == name)).one_or_none()) is None:
        names = ", ".join(f.name for f in list_followers(connection)) or "none yet"
        raise NoSuchFollower(f"there is no follower {name}", hint=f"Followers here: {names}.")
    return _follower(connection, row)


def of_token(connection: sa.Connection, owner: TokenId) -> RegisteredFollower | None:
    """The follower whose token this is, or one of the same line."""
    row = connection.execute(_LIVE.where(follower.c.token_id == owner)).one_or_none()
    return None if row is None else _follower(connection, row)


def list_tokens_of_removed(connection: sa.Connection, name: str) -> list[TokenId]:
    """The first tokens of removed followers that had the name."""
    removed = (follower.c.name == name, follower.c.removed_at.is_not(None), follower.c.token_id.is_not(None))
    return [TokenId(n) for n in connection.execute(sa.select(follower.c.token_id).where(*removed)).scalars()]


def of_dataset(connection: sa.Connection, of: Dataset) -> list[RegisteredFollower]:
    return [f for f in list_followers(connection) if f.follows(of.uuid)]


def of_name(connection: sa.Connection, name: str) -> list[RegisteredFollower]:
    """The followers that will follow a dataset of this name when it is created."""
    uuids = set(connection.execute(sa.select(dataset.c.uuid).where(dataset.c.name == name)).scalars())
    return [f for f in list_followers(connection) if f.datasets is None or uuids.intersection(f.datasets)]


def begin_removal(connection: sa.Connection, name: str) -> None:
    """Keeps the follower from becoming a member. Until it is removed, retention keeps rows for it as before."""
    connection.execute(follower.update().where(follower.c.id == get(connection, name).id).values(leaving=True))


def remove(connection: sa.Connection, of: RegisteredFollower) -> None:
    """Removes the follower: from now on retention keeps nothing for it. The rows at its site stay."""
    connection.execute(follower.update().where(follower.c.id == of.id).values(_removed()))


def remove_all(connection: sa.Connection) -> None:
    """Removes all followers of a site that no longer leads: they follow another site, and retention keeps nothing for
    them here. Their tokens stay valid, so that this site can tell them who leads."""
    connection.execute(follower.update().where(follower.c.removed_at.is_(None)).values(_removed()))


def _removed() -> dict[str, object]:
    return {"removed_at": utc_now(), "waited_for": False, "member": False}


# --- progress --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A progress report of a follower."""

    term: int
    seals: Mapping[DatasetUuid, Seq]
    marks: Mapping[ShardId, Seq]
    instance: str  # of the site: a report of another instance says nothing about this one
    number: int | None = None  # of the site; None: it has none


def acknowledge(connection: sa.Connection, record: RegisteredFollower, report: Acknowledgement) -> RegisteredFollower:
    """Records the follower's progress, forward only, and returns the follower. A site that was created again starts
    from the beginning. Datasets and shards that it does not follow are ignored. Raises TermPassed if the report is of
    another term, and RefusedError for sequence numbers that were never taken, and for a site in whose place another one
    follows."""
    own, last = term(connection), sequence.read(connection).last
    if report.term != own:
        raise TermPassed(
            f"follower {record.name} reported for term {report.term}, and this site is in term {own}",
            hint="The follower asks again, and then reports its progress in that term.",
        )
    if (highest := max([0, *map(int, report.seals.values()), *map(int, report.marks.values())])) > last:
        raise RefusedError(
            f"follower {record.name} reports sequence number {highest}, and none above {last} was ever taken here",
            hint="If this ledger was restored, `strandline recover` resyncs it. Otherwise it follows another lake.",
        )
    record = _as_instance(connection, record, report.instance)
    now = utc_now()
    followed = [d for d in dataset_records.list_datasets(connection) if record.follows(d.uuid)]
    for d in followed:
        if (seal := report.seals.get(d.uuid)) is not None:
            _raise(connection, follower_seal, {"follower_id": record.id, "dataset_id": d.id}, "seal", seal, own, now)
        for shard, mark in report.marks.items():
            if d.first_shard <= shard < d.first_shard + d.shards:
                key = {"follower_id": record.id, "shard": shard}
                _raise(connection, follower_mark, key, "mark", mark, own, now, dataset_id=d.id)
    if report.number is not None and report.number != record.site_number:
        follower_numbers.set_own_number(connection, record.id, report.number)
    connection.execute(follower.update().where(follower.c.id == record.id).values(told_at=now, term=own))
    return record


def _as_instance(connection: sa.Connection, record: RegisteredFollower, instance: str) -> RegisteredFollower:
    if record.instance == instance:
        return record
    live = (follower.c.id == record.id, follower.c.removed_at.is_(None))
    if record.instance is None:
        first = follower.update().where(*live, follower.c.instance.is_(None)).values(instance=instance)
        if connection.execute(first).rowcount == 1:
            return replace(record, instance=instance)
        raise _changed(record)
    before = sa.select(follower.c.id).where(follower.c.token_id == record.token, follower.c.instance == instance)
    if connection.execute(before).first() is not None:
        raise RefusedError(
            f"another site follows as {record.name} by now: it was created with the same token",
            hint="`strandline follower add NAME` at the leader gives each site a token of its own.",
        )
    return _begin_anew(connection, record, instance)


def _begin_anew(connection: sa.Connection, record: RegisteredFollower, instance: str) -> RegisteredFollower:
    """Replaces the follower by one of the same name, token and number: its site was created again, and may have no
    rows. The new one has reported nothing, is no member, and retention keeps everything for it."""
    _lock_followed(connection, record.datasets)
    live = (follower.c.id == record.id, follower.c.removed_at.is_(None))
    row = connection.execute(follower.update().where(*live).values(_removed()).returning(follower)).one_or_none()
    if row is None:
        raise _changed(record)
    same = ("token_id", "datasets", "on_lag", "drop_after_seconds", "site_number", "leaving")
    new = _insert(connection, record.name, {column: row._mapping[column] for column in same} | {"instance": instance})
    if new is None:
        raise _changed(record)
    audit.record(connection, Event.FOLLOWER_BEGAN_ANEW, follower=record.name, site_number=record.site_number)
    return _follower(connection, new)


def _changed(record: RegisteredFollower) -> RefusedError:
    return RefusedError(f"follower {record.name} was changed at the leader just now", hint="The follower tries again.")


def _raise(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, int],
    column: str,
    value: Seq,
    own: int,
    now: datetime,
    **fixed: object,
) -> None:
    """Stores the sequence number, unless the stored one is of the same term and higher."""
    new = insert_into(connection, table).values(**key, **fixed, **{column: value, "term": own, "told_at": now})
    old = table.c[column]
    is_higher = sa.or_(table.c.term < new.excluded.term, old < new.excluded[column])
    changed = {column: new.excluded[column], "term": new.excluded.term, "told_at": new.excluded.told_at}
    connection.execute(new.on_conflict_do_update(index_elements=list(key), set_=changed, where=is_higher))


@dataclass(frozen=True, slots=True)
class FollowerProgress:
    """Up to where a follower has everything of one dataset."""

    follower: RegisteredFollower
    number: Seq | None  # None: it may lack the very first row
    held_since: datetime | None  # since when retention waits for it
    dropped_upto: Seq | None  # a rule has deleted rows up to here that it did not have


def list_progress(connection: sa.Connection, of: Dataset) -> list[FollowerProgress]:
    """The progress of every follower of the dataset that was not removed. Reports of another term do not count."""
    own = term(connection)
    rows = connection.execute(sa.select(follower_seal).where(follower_seal.c.dataset_id == of.id))
    reported = {r.follower_id: r for r in rows}
    progress = []
    for one in of_dataset(connection, of):
        row = reported.get(one.id)
        seal = None if row is None or row.term != own else seq_or_none(row.seal or None)
        held, dropped = (None, None) if row is None else (row.held_since, seq_or_none(row.dropped_upto))
        progress.append(FollowerProgress(one, seal, held, dropped))
    return progress


def watermarks_by_title(connection: sa.Connection, of: Dataset) -> dict[str, Seq | None]:
    """Up to where each follower certainly has every row, by title."""
    return {p.follower.title: p.number for p in list_progress(connection, of)}


def highest_applied(connection: sa.Connection, of: DatasetId) -> Seq | None:
    """The highest sequence number of the dataset that any follower has passed, in any term."""
    live = sa.select(follower.c.id).where(follower.c.removed_at.is_(None))
    passed = sa.union_all(
        sa.select(follower_seal.c.seal.label("mark")).where(
            follower_seal.c.dataset_id == of, follower_seal.c.follower_id.in_(live)
        ),
        sa.select(follower_mark.c.mark).where(follower_mark.c.dataset_id == of, follower_mark.c.follower_id.in_(live)),
    ).subquery()
    return seq_or_none(connection.execute(sa.select(sa.func.max(passed.c.mark))).scalar() or None)


def sealed_by_all(connection: sa.Connection) -> dict[DatasetId, Seq | None]:
    """For each dataset with followers, up to where all of them have everything; None if one of them may lack the very
    first row. Reports of another term do not count."""
    live = list_followers(connection)
    if not live:
        return {}
    rows = connection.execute(sa.select(follower_seal).where(follower_seal.c.term == term(connection)))
    reported = {(r.follower_id, r.dataset_id): int(r.seal) for r in rows}
    lowest: dict[DatasetId, Seq | None] = {}
    for d in dataset_records.list_datasets(connection):
        seals = [reported.get((f.id, d.id), 0) for f in live if f.follows(d.uuid)]
        if seals:
            lowest[d.id] = seq_or_none(min(seals) or None)
    return lowest


def keep_holds(
    connection: sa.Connection, of: DatasetId, holding: Sequence[FollowerId], now: datetime
) -> tuple[list[FollowerId], list[FollowerId]]:
    """Stores for which followers retention keeps due rows. Returns those that are new, and those that it no longer
    waits for. `held_since` stays the time of the first run that found it."""
    rows = connection.execute(sa.select(follower_seal).where(follower_seal.c.dataset_id == of)).all()
    held = {FollowerId(r.follower_id) for r in rows if r.held_since is not None}
    new, over = [id for id in holding if id not in held], sorted(held - set(holding))
    for id in new:
        _change_seal(connection, of, id, held_since=now)
    if over:
        no_longer = (follower_seal.c.dataset_id == of, follower_seal.c.follower_id.in_(over))
        connection.execute(follower_seal.update().where(*no_longer).values(held_since=None))
    return new, over


def drop_for(connection: sa.Connection, of: DatasetId, id: FollowerId, upto: Seq) -> None:
    """Records that rows up to here were deleted which the follower may not have. Only the follower moves its seal."""
    is_higher = sa.func.coalesce(follower_seal.c.dropped_upto, 0) < upto
    _change_seal(connection, of, id, is_higher, dropped_upto=upto)


def _change_seal(connection: sa.Connection, of: DatasetId, id: FollowerId, where: Any = None, **values: object) -> None:
    """Stores the values beside the follower's seal of the dataset, which it may not have reported yet."""
    new = {"seal": 0, "term": term(connection), "told_at": utc_now()}
    put = insert_into(connection, follower_seal).values(follower_id=id, dataset_id=of, **new, **values)
    key = ["follower_id", "dataset_id"]
    connection.execute(put.on_conflict_do_update(index_elements=key, set_=values, where=where))
