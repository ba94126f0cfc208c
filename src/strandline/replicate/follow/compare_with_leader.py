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

from strandline.core.sites.terms import term_of
from strandline.core.types import SEQ_COLUMN, SEQ_MAX, Dataset, Seq, SeqRange
from strandline.iceberg.metadata.identifier import in_spark, quoted
from strandline.iceberg.spark.java_errors import explaining
from strandline.ingest.digest import hashable
from strandline.ledger.engine import Connection
from strandline.ledger.ingest import blocks, published_blocks
from strandline.ledger.maintain import floors
from strandline.ledger.replicate import following
from strandline.ledger.replicate.following import Followed
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
    extra: int  # only at this site: retention or a person has deleted them at the leader since
    different: int  # at both sites, with other values
    first: Seq | None  # the first row that is missing, different or doubled
    doubled: int = 0  # rows of this site with the sequence number of another row

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
    spans: tuple[SeqRange, ...]


def _read_settled(connection: Connection, dataset: Dataset) -> _Settled:
    sealed = blocks.sealed(connection, dataset.id)
    owned = [] if sealed is None else published_blocks.owned_ranges(connection, dataset.id, until=sealed)
    spans = term_spans(owned, SeqRange(Seq(1), sealed or Seq(1)))
    return _Settled(sealed, floors.get(connection, dataset.id), spans)


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
    here = tables.spark.table(in_spark(dataset.name)).where(F.col(SEQ_COLUMN).between(1, int(sealed)))
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
        missing = F.col("ours").isNull() & (F.col(SEQ_COLUMN) > int(floor or 0))
        different = F.col("ours").isNotNull() & F.col("theirs").isNotNull() & (F.col("ours") != F.col("theirs"))
        with explaining(f"{dataset.name} cannot be compared with the leader's"):
            found = both.agg(
                F.count_if(F.col("ours") == F.col("theirs")).alias("rows"),
                F.count_if(missing).alias("missing"),
                F.count_if(F.col("theirs").isNull()).alias("extra"),
                F.count_if(different).alias("different"),
                F.sum(F.coalesce(F.col("times") - 1, F.lit(0))).alias("doubled"),
                F.min(F.when(missing | different | (F.col("times") > 1), F.col(SEQ_COLUMN))).alias("first"),
            ).collect()[0]
    first = None if found["first"] is None else Seq(found["first"])
    counts = (found["rows"], found["missing"], found["extra"], found["different"])
    return DatasetVerdict(dataset.name, sealed, *counts, first, found["doubled"] or 0)


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
