"""Compares a follower's tables with its leader's, row by row, up to the follower's seal. Changes nothing.

Executors compare a hash of each row; the driver sees counts and the first sequence numbers that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from strandline.core.read_token import ReadBounds
from strandline.core.settings.follow import OFFER_ITEMS_MAX
from strandline.core.sites.terms import term_of
from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Dataset, ItemKind, Seq, SeqRange, merge_ranges
from strandline.iceberg.metadata.identifier import quoted
from strandline.iceberg.metadata.table_metadata import TableView
from strandline.iceberg.spark.java_errors import explaining
from strandline.ingest.digest import hashable
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, published_blocks
from strandline.ledger.maintain import floors
from strandline.ledger.replicate import following
from strandline.ledger.replicate.following import Followed
from strandline.read import foreign_rows
from strandline.read.settled_rows import is_owned, settled_rows
from strandline.replicate.follow.context import FollowContext
from strandline.replicate.follow.follow_schema import known_fields
from strandline.replicate.follow.schema_plan import match_fields
from strandline.replicate.follow.term_spans import term_spans


@dataclass(frozen=True, slots=True)
class DatasetVerdict:
    dataset: str
    sealed: Seq | None
    rows: int  # at both sites, and the same
    missing: int  # only at the leader, above this site's floor
    extra: int  # only at this site, in a block of the leader: retention or a person has deleted them there since
    different: int  # at both sites, with other values
    first: Seq | None  # the first row that is missing, different or doubled
    doubled: int = 0  # rows of this site with the sequence number of another row
    foreign: int = 0  # rows of this site that another program wrote: no block has their sequence numbers

    @property
    def ok(self) -> bool:
        return self.missing == self.different == self.doubled == 0


def verify_leader(context: FollowContext) -> list[DatasetVerdict]:
    """One verdict per dataset, by name. A dataset without a seal has nothing to compare yet."""
    with context.ledger.read() as connection:
        followed = sorted(following.list_followed(connection), key=lambda f: f.dataset.name)
        settled = [_read_settled(connection, f.dataset) for f in followed]
    return [_verify(context, f, _with_unrecorded(context, f, of)) for f, of in zip(followed, settled, strict=True)]


@dataclass(frozen=True, slots=True)
class _Settled:
    sealed: Seq | None
    floor: Seq | None
    owned: tuple[SeqRange, ...]  # of the published blocks
    spans: tuple[SeqRange, ...]


def _read_settled(connection: Connection, dataset: Dataset) -> _Settled:
    sealed = blocks.sealed(connection, dataset.id)
    owned = [] if sealed is None else published_blocks.owned_ranges(connection, dataset.id, until=sealed)
    spans = term_spans(owned, SeqRange(Seq(1), sealed or Seq(1)))
    return _Settled(sealed, floors.get(connection, dataset.id), tuple(owned), spans)


def _with_unrecorded(context: FollowContext, followed: Followed, settled: _Settled) -> _Settled:
    """Adds what the leader has below the first number that this site has recorded: those rows are missing here."""
    if not settled.spans:
        return settled
    others = {f.dataset.uuid: Seq(SEQ_MAX) for f in context.ledger.query(following.list_followed)}
    answer = context.source.poll(others | {followed.dataset.uuid: Seq(0)}, items_max=1)
    items = [i for o in answer.offers if o.dataset.id == followed.dataset.uuid for i in o.items]
    return replace(settled, spans=widened(settled.spans, items[0].numbers)) if items else settled


def widened(spans: tuple[SeqRange, ...], first: SeqRange) -> tuple[SeqRange, ...]:
    """The spans, extended down to `first` if it lies in the term of the lowest one; otherwise with `first` as a span of
    its own. Pure."""
    lowest, *others = spans
    if first.lo >= lowest.lo:
        return spans
    if term_of(first.lo) == term_of(lowest.lo):
        return SeqRange(first.lo, lowest.hi), *others
    return first, *spans


def _verify(context: FollowContext, followed: Followed, settled: _Settled) -> DatasetVerdict:
    dataset, sealed, floor = followed.dataset, settled.sealed, settled.floor
    if sealed is None or not settled.spans:
        return DatasetVerdict(dataset.name, sealed, 0, 0, 0, 0, None)
    tables = context.work.tables
    view = tables.view(dataset.name)
    here, foreign = _own_rows(context, dataset, view, sealed, settled.owned)
    names = {f["id"]: f["name"] for f in view.schema["fields"]}
    with ExitStack() as stack:
        contents = [stack.enter_context(context.source.content(tables, dataset.uuid, span)) for span in settled.spans]
        fields = contents[-1].fields
        # A site that has applied nothing of this leader yet matches columns by name.
        known = known_fields(view, followed.term) or match_fields(fields, view.schema["fields"])
        # A column that the leader has renamed since is the same column; one that it has added has no values here yet.
        pairs = [(f["name"], names[known[f["id"]]]) for f in fields if known.get(f["id"]) in names]
        own = {f.name: f for f in here.schema.fields}
        asked = [own[SEQ_COLUMN], *(T.StructField(name, own[mine].dataType, True) for name, mine in pairs)]
        frames = [content.frame(T.StructType(asked)) for content in contents]
        theirs = _hashed(reduce(DataFrame.unionByName, frames), [(name, name) for name, _ in pairs], "theirs")
        ours = _hashed(here, [(mine, name) for name, mine in pairs], "ours").groupBy(SEQ_COLUMN)
        each = ours.agg(F.first("ours").alias("ours"), F.count("*").alias("times"))
        both = theirs.join(each, SEQ_COLUMN, "full_outer")
        absent = both.where(F.col("ours").isNull() & (F.col(SEQ_COLUMN) > int(floor or 0)))
        different = F.col("ours").isNotNull() & F.col("theirs").isNotNull() & (F.col("ours") != F.col("theirs"))
        with explaining(f"{dataset.name} cannot be compared with the leader's"):
            found = both.agg(
                F.count_if(F.col("ours") == F.col("theirs")).alias("rows"),
                F.count_if(F.col("ours").isNull() & (F.col(SEQ_COLUMN) > int(floor or 0))).alias("absent"),
                F.count_if(F.col("theirs").isNull()).alias("extra"),
                F.count_if(different).alias("different"),
                F.sum(F.coalesce(F.col("times") - 1, F.lit(0))).alias("doubled"),
                F.min(F.when(different | (F.col("times") > 1), F.col(SEQ_COLUMN))).alias("first"),
            ).collect()[0]
            missing, first_missing = _missing(context, followed, sealed, absent) if found["absent"] else (0, None)
    first = min((Seq(n) for n in (found["first"], first_missing) if n is not None), default=None)
    counts = (found["rows"], missing, found["extra"], found["different"])
    return DatasetVerdict(dataset.name, sealed, *counts, first, found["doubled"] or 0, foreign)


def _own_rows(
    context: FollowContext, dataset: Dataset, view: TableView, sealed: Seq, owned: Sequence[SeqRange]
) -> tuple[DataFrame, int]:
    """The rows of published blocks up to the seal, and how many foreign rows the table has there."""
    tables, bounds = context.work.tables, ReadBounds(Seq(0), sealed)
    rows = settled_rows(tables, dataset, view, bounds, None)
    counts = foreign_rows.count(context.config, context.ledger, dataset, view, context.lake)
    if counts is not None and counts.foreign == 0:
        return rows, 0
    with explaining(f"the foreign rows of {dataset.name} cannot be counted"):
        foreign = rows.where(~is_owned(owned, F.col(SEQ_COLUMN))).count()
    return settled_rows(tables, dataset, view, bounds, owned if foreign else None), foreign


def _missing(context: FollowContext, followed: Followed, sealed: Seq, absent: DataFrame) -> tuple[int, Seq | None]:
    """How many of the rows that this site lacks are of a block of the leader, and the first of them. The others are
    foreign rows of the leader's table, which no follower gets."""
    owned = is_owned(_ranges_at_leader(context, followed, sealed), F.col(SEQ_COLUMN))
    found = absent.where(owned).agg(F.count("*").alias("rows"), F.min(SEQ_COLUMN).alias("first")).collect()[0]
    return found["rows"], None if found["first"] is None else Seq(found["first"])


def _ranges_at_leader(context: FollowContext, followed: Followed, sealed: Seq) -> list[SeqRange]:
    """The ranges of the leader's segments, up to the seal."""
    uuid = followed.dataset.uuid
    after = {f.dataset.uuid: Seq(SEQ_MAX) for f in context.ledger.query(following.list_followed)} | {uuid: Seq(0)}
    found: list[SeqRange] = []
    while after[uuid] < sealed:
        answer = context.source.poll(after, items_max=OFFER_ITEMS_MAX)
        offers = [o for o in answer.offers if o.dataset.id == uuid]
        if not offers:
            break
        found += [i.numbers for o in offers for i in o.items if i.kind is ItemKind.SEGMENT]
        after[uuid] = offers[-1].upto
    return merge_ranges(found)


def _hashed(df: DataFrame, columns: Sequence[tuple[str, str]], name: str) -> DataFrame:
    """`columns`: the name in the frame, and the name under which both sides hash it."""
    fields: dict[str, T.StructField] = {f.name: f for f in df.schema.fields}
    values: list[Column] = [
        F.when(
            F.col(quoted(own)).isNotNull(), F.struct(F.lit(shared), hashable(F.col(quoted(own)), fields[own].dataType))
        )
        for own, shared in sorted(columns, key=lambda c: c[1])
    ]
    return df.select(SEQ_COLUMN, F.xxhash64(F.lit(1), *values).alias(name))
