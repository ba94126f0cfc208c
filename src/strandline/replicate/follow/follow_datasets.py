"""Creates and drops datasets as the leader does: a table in the catalog and its row in the ledger.

The table comes first, with the dataset's id in its properties, so that a process that died after it, or a new ledger,
finds it again. Which rows such a table has is unknown until the leader has offered them again: until then the dataset
has no seal.
"""

from __future__ import annotations

from strandline.core import failpoints
from strandline.core.errors import RefusedError
from strandline.core.records.audit_events import Event
from strandline.core.sites.replication import DatasetTerms
from strandline.core.sites.terms import term_of
from strandline.core.types import Dataset, DatasetUuid, Seq
from strandline.iceberg.metadata.dataset_identity import DatasetIdentity
from strandline.iceberg.metadata.table_metadata import DATASET_ID_PROPERTY, LAKE_PROPERTY, TableView
from strandline.iceberg.schema.columns import from_iceberg
from strandline.ledger import applied_settings, audit
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, datasets, sequence, table_states
from strandline.ledger.maintain import floors
from strandline.ledger.replicate import following, sites
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follow_schema import store_fields


def make_dataset(context: FollowContext, terms: DatasetTerms, term: int) -> Dataset:
    """Creates the dataset, and follows it from its beginning. Raises RefusedError for a table of somebody else, and for
    another dataset of the same name that the leader has not dropped."""
    with context.ledger.read() as connection:
        known = datasets.find(connection, terms.name)
        epoch = sequence.read(connection).epoch
        if known is not None and known.uuid != terms.id:
            raise _namesake(connection, known)
    is_found = context.parts.catalog.exists(terms.name)
    if known is None or not is_found:
        _make_table(context, terms, epoch)
    failpoints.hit("follow.after_table")
    view = context.work.tables.view(terms.name)
    if view.main is None:
        store_fields(context, terms.name, view, terms.columns, term)
    # A table that exists was followed before, by a ledger that is lost: its seal is unknown.
    highest = context.witness.read().highest if is_found else 0
    witnessed = Seq(highest) if highest else None
    made = known or _register(context, terms, view, witnessed)
    if known is not None:  # from when this site led, or from an earlier leader
        # Up to there, this site has open or settled blocks. If they were offered again, it would have them twice.
        bound = context.ledger.query(blocks.highest, made.id) or Seq(0)
        term = term_of(bound) if bound else terms.first_term
        context.ledger.change(following.follow_dataset, made.id, bound=bound, witnessed=witnessed, term=term)
    failpoints.hit("follow.after_dataset")
    return made


def _namesake(connection: Connection, known: Dataset) -> RefusedError:
    """The error for two datasets of one name, one at the leader and one here."""
    if sites.is_only_here(connection, known.id):
        return RefusedError(
            f"{known.name}: the leader has a dataset of this name, and this site another one that the leader does "
            "not know, from when another site led; so the leader's is not replicated",
            hint=f"`strandline dataset drop {known.name}` at this site forgets its own; the files stay. Before, offer "
            "the rows that only this site has to the leader: `strandline read` shows them.",
        )
    return RefusedError(
        f"{known.name}: the leader has another dataset of this name than this site, and has no record of dropping "
        "this one: its ledger was created again, or it was restored; so the leader's is not replicated",
        hint="Create this site again, in another folder and another warehouse: `strandline follow init LEADER`. What "
        "this site has stays readable.",
    )


def _make_table(context: FollowContext, terms: DatasetTerms, epoch: int) -> None:
    catalog = context.parts.catalog
    if catalog.exists(terms.name):
        properties = catalog.load(terms.name).properties
        if (properties.get(LAKE_PROPERTY), properties.get(DATASET_ID_PROPERTY)) == (context.lake, terms.id):
            return
        raise RefusedError(
            f"the catalog has a table {terms.name} that is not the leader's dataset of this name",
            hint="Rename or drop that table; the follower then creates its own.",
        )
    catalog.create_dataset_table(
        terms.name,
        from_iceberg(terms.columns),
        lake_id=context.lake,
        epoch=epoch,
        deliver_by=terms.deliver_by,
        partition_by=terms.partition_by,
        properties=DatasetIdentity(terms.id, terms.first_shard, terms.shards).to_properties(),
    )


def _register(context: FollowContext, terms: DatasetTerms, view: TableView, witnessed: Seq | None) -> Dataset:
    with context.ledger.write() as connection:
        sequence.check(connection, context.witness)
        made = datasets.add(
            connection,
            name=terms.name,
            table_uuid=view.uuid,
            deliver_by=terms.deliver_by,
            history=terms.history,
            uuid=terms.id,
            first_shard=terms.first_shard,
            shards=terms.shards,
        )
        following.follow_dataset(connection, made.id, witnessed=witnessed, term=terms.first_term)
        if view.floor:
            floors.raise_to(connection, made.id, Seq(view.floor))
        if view.settled is not None:
            table_states.raise_settled(connection, made.id, view.settled)
        audit.record(
            connection, Event.DATASET_CREATED, dataset=terms.name, table=view.uuid, deliver_by=list(terms.deliver_by)
        )
    return made


def drop_dataset(context: FollowContext, id: DatasetUuid) -> None:
    """Removes the dataset from ledger and catalog, with its open items; files stay. Drops the table inside the
    transaction, so that a drop that died is repeated."""
    with context.ledger.write() as connection:
        known = next((d for d in datasets.list_datasets(connection) if d.uuid == id), None)
        if known is None or not datasets.mark_dropped(connection, known.id):
            return
        applied_settings.forget_dataset(connection, known.name)
        audit.record(connection, Event.DATASET_DROPPED, dataset=known.name, table=known.table_uuid)
        if context.parts.catalog.exists(known.name):
            context.parts.catalog.drop(known.name)
    failpoints.hit("follow.after_drop")
