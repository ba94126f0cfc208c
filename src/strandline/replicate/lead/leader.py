"""The leader's side: offers, the rows of segments, and followers' acknowledgements. Starts no JVM.

Offers are one consistent read of the ledger. Tables are read after it, and only those of datasets that have something
new. Content is what a table has of a range now, so it stays available through compaction, retention and expiry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.core import failpoints
from strandline.core.errors import NoSuchDataset, RefusedError, StrandlineError
from strandline.core.sites.replication import FIRST_TERM, DatasetTerms, Offer, SinkDefinition
from strandline.core.sites.takeover_cuts import NumberedCut
from strandline.core.types import INTERNAL_COLUMNS, SEQ_COLUMN, Dataset, DatasetUuid, Seq, SeqRange
from strandline.deliver.sink_definitions import definitions_version, read_definitions
from strandline.iceberg.metadata.table_metadata import CUT_PREFIX, FOLLOWED_PROPERTY, followed_properties
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import announced_bodies
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.receive.tokens import TokenId
from strandline.ledger.replicate import followers, item_ranges, offers, sites
from strandline.ledger.replicate.followers import Acknowledgement, RegisteredFollower
from strandline.ledger.replicate.offers import LeaderState
from strandline.read.settled_view import check_loaded
from strandline.replicate.follow.schema_plan import FIELDS_PROPERTY
from strandline.replicate.lead.offer_plan import cut_items

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
    from strandline.iceberg.pyiceberg.ordered_rows import OrderedRows

log = logging.getLogger(__name__)

ITEMS_MAX = 1000  # of one dataset in one offer


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """What a leader says to a follower that asks."""

    lake: str
    term: int
    offers: tuple[Offer, ...]  # of datasets that have items behind the follower's bound
    made: tuple[DatasetTerms, ...]  # datasets that the follower did not name
    dropped: tuple[DatasetUuid, ...]  # datasets that it named, and that are dropped
    seals: Mapping[DatasetUuid, Seq | None]  # of datasets that it named, unless one waits for its resync
    sinks: tuple[SinkDefinition, ...] | None = None  # None: as they were told before
    datasets: tuple[DatasetUuid, ...] = ()  # all that there are, also those whose tables cannot be read now
    site_number: int | None = None  # of the follower that asks; None: it cannot be promoted
    sinks_version: str | None = None  # of the sinks as they are now


class Leader:
    def __init__(self, lake_id: str, ledger: Ledger, catalog: Callable[[], PyIcebergCatalog]) -> None:
        self.lake_id = lake_id
        self._ledger = ledger
        self._catalog = catalog

    def poll(
        self,
        after: Mapping[DatasetUuid, Seq],
        *,
        items_max: int = ITEMS_MAX,
        only: Collection[str] | Callable[[Connection], Collection[str] | None] | None = None,
        sinks_version: str | None = None,
        owner: TokenId | None = None,
    ) -> LeaderAnswer:
        """What lies behind the bounds of a follower. A dataset whose table cannot be read is left out, and the others
        are offered. `only`: the names of the datasets that it may see, or where to read them; None: all.
        `sinks_version`: of the sinks that it was told of; None: tell it in any case. `owner`: the first token of the
        follower's line, if it has one."""
        with self._ledger.read_at_once() as connection:
            allowed = only(connection) if callable(only) else only
            state = offers.read_state(connection, after, items_max=items_max, only=allowed)
            version = definitions_version(connection, only=allowed)
            is_known = version == sinks_version and not state.news
            sinks = None if is_known else read_definitions(connection, only=allowed)
            # A follower asks for its number once, when it is made.
            asks = None if after or owner is None else followers.of_token(connection, owner)
        terms = self._terms_of(state)
        found = []
        for news in state.news:
            if (known := terms.get(news.dataset.uuid)) is not None:
                items = cut_items(news, items_max=items_max)
                told = (news.after, items[-1].hi, items, news.sealed, news.receiver_hold)
                found.append(Offer(state.lake, state.term, known, *told))
        number = None if asks is None else asks.site_number
        made = tuple(t for uuid, t in terms.items() if uuid not in after)
        answer = (tuple(found), made, state.dropped, state.seals, sinks, state.datasets, number, version)
        return LeaderAnswer(state.lake, state.term, *answer)

    def _terms_of(self, state: LeaderState) -> dict[DatasetUuid, DatasetTerms]:
        """Of the datasets that have something new, or that the follower does not know. The ledger was read before, so a
        schema is at least as new as the rows that are offered."""
        wanted = {d.uuid: d for d in (*(n.dataset for n in state.news), *state.unknown)}
        found = {}
        for uuid, d in wanted.items():
            try:
                found[uuid] = self.terms(d, state.first_term(d), state.cuts.get(d.id, ()))
            except StrandlineError as e:
                log.warning("%s is not offered to followers: %s", d.name, e.message)
        return found

    def terms(self, dataset: Dataset, first_term: int = FIRST_TERM, cuts: Sequence[NumberedCut] = ()) -> DatasetTerms:
        """What a follower needs to make the dataset. Reads its table's metadata. Nothing is offered of a table that
        does not record that it is followed, and its `cuts`: if the ledger is lost, only the table tells (docs/adr/0070,
        docs/adr/0071)."""
        from strandline.iceberg.pyiceberg.schema import describe

        table = self._catalog().load(dataset.name)
        wanted = {f"{CUT_PREFIX}{at.number}": item_ranges.of_cut(at.cut) for at in cuts}
        if table.properties.get(FOLLOWED_PROPERTY) != "true":
            known = self._ledger.query(followers.of_dataset, dataset)
            wanted |= followed_properties(f.name for f in known)
        if not wanted.keys() <= table.properties.keys() or FOLLOWED_PROPERTY in wanted:
            self._catalog().set_properties(dataset.name, wanted)
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
        """As `LeaderSource.bodies`."""
        return self._ledger.query(announced_bodies.read, dataset.id, batch_id)

    def acknowledge(self, owner: TokenId, told: Acknowledgement) -> RegisteredFollower:
        """Records how far a follower is. `owner`: the first token of its line. Raises RefusedError for a token that
        belongs to no follower, and what `followers.acknowledge` raises."""
        with self._ledger.write() as connection:
            found = followers.of_token(connection, owner)
            if found is None:
                raise RefusedError(
                    "this token belongs to no follower",
                    hint="`strandline follower add NAME` at the leader registers one and gives its token.",
                )
            return followers.acknowledge(connection, found, told)

    def find(self, uuid: str, *, only: Collection[str] | None = None) -> Dataset:
        """Raises NoSuchDataset, also for one that the follower may not see, and NotLeader at a site that does not lead:
        what such a site has may be cut out by now."""
        with self._ledger.read() as connection:
            sites.check_offers(connection)
            found = datasets.list_datasets(connection)
        for known in found:
            if known.uuid == uuid and (only is None or known.name in only):
                return known
        raise NoSuchDataset(f"there is no dataset with the id {uuid}", hint="An offer says which there are.")

    def rows(self, dataset: Dataset, wanted: SeqRange, *, behind: int = 0, only_numbers: bool = False) -> OrderedRows:
        """What the table has of the range now, behind a number, in the order of sequence numbers. Raises RefusedError
        for a range that is not settled as a whole, and TableRolledBack."""
        from strandline.iceberg.pyiceberg.ordered_rows import read_ordered

        table = check_loaded(self._ledger, self._catalog(), self.lake_id, dataset, settled_to=wanted.hi)
        self._ledger.query(sites.check_offers)  # it may have rejoined since, and have removed rows of the range
        lo = max(int(wanted.lo), behind + 1)
        found = read_ordered(table, lo, wanted.hi, columns=(SEQ_COLUMN,) if only_numbers else None)
        former = table.properties.get(FIELDS_PROPERTY)
        if former is None or only_numbers:
            return found
        # A site that followed the same leader knows by it which column is which, whatever their names (docs/adr/0071).
        known = {**(found.schema.metadata or {}), FIELDS_PROPERTY.encode(): former.encode()}
        return replace(found, schema=found.schema.with_metadata(known))


def _user_fields(table: Table) -> list[dict[str, Any]]:
    return [f for f in table.schema().model_dump()["fields"] if f["name"] not in INTERNAL_COLUMNS]
