"""The short way: tasks that read a table's Parquet files themselves and hand whole chunks to the sink.

Twice as fast as through Spark, and right only where the files alone say what the rows are (`data_files`). Whether the
rows inside a file are in order is seen while it is read; where they are not, the chunk goes the long way. Both ways
give the same table, so a retry that goes the other way sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from strandline import failpoints
from strandline.deliver import data_files
from strandline.deliver.bench import DeliverBench, Settled
from strandline.deliver.build import Cargo, Shipment, Shipped, arming, completed, send, ship, twice
from strandline.deliver.data_files import Reach, plain_files, reach_of
from strandline.deliver.sink import Sender
from strandline.tables.spark_tables import DataFile, explain
from strandline.types import SEQ_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Not a result: this chunk has to go through Spark."""


def ship_either_way(
    bench: DeliverBench, source: Settled, shipments: Sequence[Shipment], cargo: Cargo, sender: Sender
) -> list[Shipped]:
    """The short way where it is right, the long one for what is left."""
    shipped: list[Shipped] = []
    left = list(shipments)
    if cargo.form == "rows" and cargo.where is None:
        lo, hi = min(s.rows.lo for s in shipments), max(s.rows.hi for s in shipments)
        files = source.files or plain_files(bench, source, cargo.fields, lo - 1, hi)
        if files is not None:
            spark = bench.tables().spark
            shipped, left = ship_directly(spark, files, shipments, cargo, sender, reach_of(bench.config))
    return shipped + (ship(source.df, left, cargo, sender) if left else [])


def ship_directly(
    spark: SparkSession,
    files: Sequence[DataFile],
    shipments: Sequence[Shipment],
    cargo: Cargo,
    sender: Sender,
    reach: Reach,
) -> tuple[list[Shipped], list[Shipment]]:
    """What became of the chunks, and those that have to go the long way."""
    from pyspark.sql.pandas.types import to_arrow_schema

    loads = [_Load(s, tuple(f.location for f in files if f.lo <= s.rows.hi and s.rows.lo <= f.hi)) for s in shipments]
    schema = to_arrow_schema(T.StructType(list(cargo.fields)))
    work = _Task(schema, sender, reach, arming())
    try:
        found = spark.sparkContext.parallelize(loads, len(loads)).mapPartitions(work.run).collect()  # a line per chunk
    except Exception as e:
        raise explain(e, "the chunks cannot be built") from e
    left = {s.index for s in found if isinstance(s.outcome, OutOfOrder)}
    sent = [s for s in shipments if s.index not in left]
    return completed(sent, [s for s in found if s.index not in left]), [s for s in shipments if s.index in left]


@dataclass(frozen=True, slots=True)
class _Load:
    shipment: Shipment
    files: tuple[str, ...]


@dataclass(frozen=True)
class _Task:
    schema: pa.Schema
    sender: Sender
    reach: Reach
    armed: tuple[str, int]

    def run(self, loads: Iterable[_Load]) -> Iterator[Any]:
        failpoints.arm_worker(*self.armed)
        try:
            for load in loads:
                rows = self._read(load)
                if twice(rows[SEQ_COLUMN]) is not None:
                    yield Shipped(load.shipment.index, OutOfOrder(), 0)  # type: ignore[arg-type]
                else:
                    wanted = rows.select(self.schema.names)
                    yield Shipped(load.shipment.index, send(self.sender, load.shipment, wanted), 0)
        finally:
            self.sender.close()

    def _read(self, load: _Load) -> pa.Table:
        import pyarrow as pa

        lo, hi = load.shipment.rows.lo, load.shipment.rows.hi
        parts = [p for location in load.files for p in data_files.parts(location, self.reach, self.whole, lo, hi)]
        return pa.concat_tables(parts) if parts else self.whole.empty_table()

    @property
    def whole(self) -> pa.Schema:
        """What is delivered, and the number."""
        import pyarrow as pa

        if SEQ_COLUMN in self.schema.names:
            return self.schema
        return self.schema.insert(0, pa.field(SEQ_COLUMN, pa.int64(), nullable=False))
