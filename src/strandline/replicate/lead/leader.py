"""The leader's side: offers, the rows of segments, and followers' acknowledgements. Starts no JVM.

Offers are one consistent read of the ledger. Tables are read after it, and only those of datasets that have something
new. The rows of a range are those that the table has now, so they stay available through compaction, retention and
expiry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strandline.core import failpoints
from strandline.core.errors import NoSuchDataset, RefusedError, StrandlineError
from strandline.core.sites.replication import FIRST_TERM, DatasetTerms, Offer
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN, Dataset, DatasetUuid, Seq, SeqRange
from strandline.iceberg.lake_tables import CatalogAccess
from strandline.iceberg.metadata.table_metadata import CUT_PREFIX, FOLLOWED_PROPERTY, followed_properties
from strandline.ingest.dataset_backoff import DatasetBackoff
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import announced_bodies
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.tokens import TokenId
from strandline.ledger.replicate import followers, item_ranges, offers, sites
from strandline.ledger.replicate.followers import Acknowledgement, RegisteredFollower
from strandline.ledger.replicate.offers import LeaderState
from strandline.ledger.replicate.sink_definitions import definitions_version, read_definitions
from strandline.read.settled_view import check_loaded
from strandline.replicate.follow.schema_plan import FIELDS_PROPERTY
from strandline.replicate.lead.offer_plan import cut_items
from strandline.replicate.source import LeaderAnswer

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from strandline.iceberg.pyiceberg.ordered_rows import OrderedRows

log = logging.getLogger(__name__)

ITEMS_MAX = 1000  # of one dataset in one offer
# A dataset whose table could not be read comes after the others for this long: longer than a follower may wait between
# two polls. It still gets a place that is free.
UNREADABLE_SECONDS = 7200


class Leader:
    def __init__(self, lake_id: str, ledger: Ledger, tables: CatalogAccess) -> None:
        self.lake_id = lake_id
        self._ledger = ledger
        self._tables = tables
        self._unreadable: DatasetBackoff[DatasetUuid] = DatasetBackoff(wait_seconds_min=UNREADABLE_SECONDS)

    def poll(
        self,
        after: Mapping[DatasetUuid, Seq],
        *,
        items_max: int = ITEMS_MAX,
        only: Collection[str] | Callable[[Connection], Collection[str] | None] | None = None,
        sinks_version: str | None = None,
        owner: TokenId | None = None,
    ) -> LeaderAnswer:
        """Offers what lies above the bounds of a follower, without datasets whose tables cannot be read. `only`: the
        names of the datasets that it may see, or how to read them; None: all. `sinks_version`: of the sinks that it
        has; None: send them in any case. `owner`: the first token of the follower's line, if it has one."""
        with self._ledger.read_consistent() as connection:
            allowed = only(connection) if callable(only) else only
            last = self._unreadable.waiting()
            state = offers.read_state(connection, after, items_max=items_max, only=allowed, last=last)
            version = definitions_version(connection, only=allowed)
            is_known = version == sinks_version and not state.news
            sinks = None if is_known else read_definitions(connection, only=allowed)
            # A follower asks for its site number once, when it is made.
            asks = None if after or owner is None else followers.of_token(connection, owner)
        terms = self._terms_of(state)
        found = []
        for news in state.news:
            if (known := terms.get(news.dataset.uuid)) is not None:
                items = cut_items(news, items_max=items_max)
                rest = (news.after, items[-1].hi, items, news.sealed, news.receiver_hold)
                found.append(Offer(state.lake, state.term, known, *rest))
        number = None if asks is None else asks.site_number
        made = tuple(t for uuid, t in terms.items() if uuid not in after)
        answer = (tuple(found), made, state.dropped, state.seals, sinks, state.datasets, number, version)
        return LeaderAnswer(state.lake, state.term, *answer)

    def _terms_of(self, state: LeaderState) -> dict[DatasetUuid, DatasetTerms]:
        """The terms of datasets that have something new, or that the follower does not know. The ledger was read
        before, so a schema is at least as new as the rows that are offered."""
        wanted = {d.uuid: d for d in (*(n.dataset for n in state.news), *state.unknown)}
        found = {}
        for uuid, d in wanted.items():
            started_at = self._unreadable.now()
            try:
                found[uuid] = self.terms(d, state.first_term(d), state.cuts.get(d.id, ()))
                self._unreadable.succeeded(uuid)
            except StrandlineError as e:
                self._unreadable.failed(uuid, started_at)
                log.warning("%s is not offered to followers: %s", d.name, e.message)
        return found

    def terms(self, dataset: Dataset, first_term: int = FIRST_TERM, cuts: Sequence[NumberedCut] = ()) -> DatasetTerms:
        """What a follower needs to make the dataset. Reads its table's metadata, and first records on the table that it
        is followed, and its `cuts`: if the ledger is lost, only the table knows (docs/adr/0070, docs/adr/0071)."""
        from strandline.iceberg.pyiceberg.schema import describe

        table = self._tables.catalog.load(dataset.name)
        wanted = {f"{CUT_PREFIX}{at.number}": item_ranges.of_cut(at.cut) for at in cuts}
        if table.properties.get(FOLLOWED_PROPERTY) != "true":
            known = self._ledger.query(followers.of_dataset, dataset)
            wanted |= followed_properties(f.name for f in known)
        if not wanted.keys() <= table.properties.keys() or FOLLOWED_PROPERTY in wanted:
            self._tables.catalog.set_properties(dataset.name, wanted)
            failpoints.hit("lead.after_followed")
        return DatasetTerms(
            dataset.uuid,
            dataset.name,
            tuple(_user_fields(table)),
            dataset.deliver_by,
            ", ".join(describe(table).partition_by) or None,
            dataset.first_shard,
            dataset.shards,
            dataset.adopted,
            dataset.history,
            first_term,
        )

    def bodies(self, dataset: Dataset, batch_id: str) -> AnnouncedBatch | None:
        """See `LeaderSource.bodies`."""
        return self._ledger.query(announced_bodies.read, dataset.id, batch_id)

    def acknowledge(self, owner: TokenId, progress: Acknowledgement) -> RegisteredFollower:
        """Records how far a follower is. `owner`: the first token of its line. Raises RefusedError for a token that
        belongs to no follower, and what `followers.acknowledge` raises."""
        with self._ledger.write() as connection:
            found = followers.of_token(connection, owner)
            if found is None:
                raise RefusedError(
                    "this token belongs to no follower",
                    hint="`strandline follower add NAME` at the leader registers one and gives its token.",
                )
            return followers.acknowledge(connection, found, progress)

    def find(self, uuid: str, *, only: Collection[str] | None = None) -> Dataset:
        """Raises NoSuchDataset, also for a dataset that the follower may not see, and NotLeader at a site that does not
        lead: its rows may be cut out by now."""
        with self._ledger.read() as connection:
            sites.check_offers(connection)
            found = datasets.list_datasets(connection)
        for known in found:
            if known.uuid == uuid and (only is None or known.name in only):
                return known
        raise NoSuchDataset(f"there is no dataset with the id {uuid}", hint="Offers name the datasets.")

    def rows(self, dataset: Dataset, wanted: SeqRange, *, behind: int = 0, only_numbers: bool = False) -> OrderedRows:
        """The rows that the table has of the range now, above `behind`, in the order of sequence numbers. Raises
        RefusedError for a range that is not completely settled, and TableRolledBack."""
        from strandline.iceberg.pyiceberg.ordered_rows import read_ordered

        table = check_loaded(self._ledger, self._tables.catalog, self.lake_id, dataset, settled_to=wanted.hi)
        self._ledger.query(sites.check_offers)  # the site may follow since, and have removed rows of the range
        lo = max(int(wanted.lo), behind + 1)
        found = read_ordered(table, lo, wanted.hi, columns=(SEQ_COLUMN,) if only_numbers else None)
        former = table.properties.get(FIELDS_PROPERTY)
        if former is None or only_numbers:
            return found
        # With these ids, a site that followed the same leader before matches columns, whatever their names
        # (docs/adr/0071).
        known = {**(found.schema.metadata or {}), FIELDS_PROPERTY.encode(): former.encode()}
        return replace(found, schema=found.schema.with_metadata(known))


def _user_fields(table: Table) -> list[dict[str, Any]]:
    return [f for f in table.schema().model_dump()["fields"] if f["name"] not in INTERNAL_COLUMNS]
