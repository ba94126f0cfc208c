"""A follower that reads its leader over HTTP. Spark tasks fetch the rows, each its part of a range."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strandline.core.errors import FailedError, StorageError
from strandline.core.forward_protocol import DIGEST, content_digest
from strandline.core.types import SEQ_COLUMN, DatasetUuid, Seq, SeqRange
from strandline.iceberg.pyiceberg.schema import fields_of_arrow
from strandline.ledger.receive.announced_bodies import AnnouncedBatch
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.receive.batch_frame import nullable
from strandline.receive.schema_adapt import SchemaAdapter
from strandline.replicate.follow.answer_document import parse_answer
from strandline.replicate.follow.bodies_document import parse_bodies
from strandline.replicate.follow.schema_plan import FIELDS_PROPERTY
from strandline.replicate.source import LeaderAnswer, LeaderSite, RangeContent
from strandline.replicate.transports.segment_fetch import (
    LeaderAddress,
    TryAgain,
    WantedRange,
    check_answer,
    column_ids,
    fetch_rows,
    fetch_schema,
    lacks_path,
    with_text_uuids,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T

    from strandline.iceberg.spark.tables import SparkTables

_WITH_DIGEST = ("offer", "bodies")
PART_NUMBERS = 1_000_000  # sequence numbers that one task fetches, in a range of up to PARTS_MAX such parts
PARTS_MAX = 2_000  # a range across terms has 2**40 numbers and more, nearly all of them unused


class HttpSource:
    def __init__(self, url: str, *, token: str | None) -> None:
        self._leader = LeaderAddress(url.rstrip("/"), token)
        self._client = self._leader.client()

    def close(self) -> None:
        self._client.close()

    def site(self) -> LeaderSite:
        return self.poll({}, items_max=1).site

    def poll(
        self, after: Mapping[DatasetUuid, Seq], *, items_max: int, sinks_version: str | None = None
    ) -> LeaderAnswer:
        asked = {"after": dict(after), "items_max": items_max, "sinks_version": sinks_version}
        return parse_answer(self._post("offer", asked) or {})

    def bodies(self, dataset: DatasetUuid, batch_id: str) -> AnnouncedBatch | None:
        found = self._post("bodies", {"dataset": dataset, "batch_id": batch_id}, may_lack=True)
        return None if found is None else parse_bodies(found)

    def acknowledge(self, progress: Acknowledgement) -> None:
        marks = {str(shard): mark for shard, mark in progress.marks.items()}
        self._post(
            "acknowledge",
            {
                "term": progress.term,
                "seals": dict(progress.seals),
                "marks": marks,
                "instance": progress.instance,
                "number": progress.number,
            },
        )

    def _post(self, path: str, body: Mapping[str, Any], *, may_lack: bool = False) -> dict[str, Any] | None:
        """Sends the request with its digest, and checks the digest of the answer. With `may_lack`, returns None if the
        leader's version does not have the path."""
        import httpx

        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", DIGEST: content_digest(content)}
        try:
            answer = self._client.post(path, content=content, headers=headers)
            if may_lack and lacks_path(answer):
                return None
            check_answer(answer)
            if path in _WITH_DIGEST and answer.headers.get(DIGEST) != content_digest(answer.content):
                raise TryAgain("its answer was changed on the way")
            found = answer.json()
        except (httpx.TransportError, TryAgain, ValueError) as e:
            raise StorageError(
                f"the leader at {self._leader.url} does not answer: {str(e) or type(e).__name__}",
                hint="Check its address, and that `strandline serve` runs there. The follower tries again.",
            ) from e
        if not isinstance(found, dict):
            raise FailedError(f"{self._leader.url} is not a leader: its answer is not a JSON object")
        return found

    @contextmanager
    def content(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> Iterator[RangeContent]:
        part = WantedRange(dataset, rows.lo, rows.hi)
        schema = fetch_schema(self._leader, part)
        theirs = column_ids(schema)
        former = (schema.metadata or {}).get(FIELDS_PROPERTY.encode())
        columns_at_leader = fields_of_arrow(schema)
        yield RangeContent(
            columns_at_leader, lambda columns: self._frame(tables, part, columns, theirs),
            None if former is None else former.decode(),
        )  # fmt: skip

    @contextmanager
    def numbers(self, tables: SparkTables, dataset: DatasetUuid, rows: SeqRange) -> Iterator[DataFrame]:
        from pyspark.sql import types as T

        number = T.StructType([T.StructField(SEQ_COLUMN, T.LongType(), False)])
        part = WantedRange(dataset, rows.lo, rows.hi, only_numbers=True)
        yield self._frame(tables, part, number, None)

    def _frame(
        self,
        tables: SparkTables,
        wanted: WantedRange,
        columns: T.StructType,
        theirs: frozenset[tuple[str, int | None]] | None,
    ) -> DataFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        part_numbers = part_size(numbers := wanted.hi - wanted.lo + 1, PART_NUMBERS)
        parts = -(-numbers // part_numbers)
        required = tuple(f.name for f in columns if not f.nullable)
        adapter = SchemaAdapter(to_arrow_schema(nullable(columns)), required)
        task = _FetchTask(self._leader, wanted, theirs, adapter, part_numbers)
        return tables.spark.range(0, parts, 1, parts).mapInArrow(task.run, columns)


def part_size(numbers: int, least: int) -> int:
    """How many sequence numbers of a range one task fetches."""
    return max(least, -(-numbers // PARTS_MAX))


@dataclass(frozen=True)
class _FetchTask:
    """Runs on the executors. Each input row is the index of a part of the range."""

    leader: LeaderAddress
    wanted: WantedRange
    # The leader's columns and their ids, as the follower read them: a name may belong to another column by now. None:
    # only sequence numbers are fetched.
    theirs: frozenset[tuple[str, int | None]] | None
    adapter: SchemaAdapter
    part_numbers: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_numpy().tolist():  # one row per task
                lo = self.wanted.lo + part * self.part_numbers
                hi = min(self.wanted.hi, lo + self.part_numbers - 1)
                for rows in fetch_rows(self.leader, replace(self.wanted, lo=lo, hi=hi)):
                    yield self._fit(rows)

    def _fit(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.theirs is not None and column_ids(rows.schema) != self.theirs:
            raise FailedError("the leader's columns were changed just now", hint="The follower tries again.")
        asked = rows.select([name for name in rows.schema.names if name in self.adapter.schema.names])
        return self.adapter.fit(with_text_uuids(asked, self.adapter.schema))
