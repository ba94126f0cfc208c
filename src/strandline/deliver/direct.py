"""The short way: tasks that read a table's Parquet files themselves and hand whole chunks to the sink.

Faster than through Spark, and right only where the files alone say what the rows are (`data_files`). Where they follow
each other, a task reads its chunk off them. Whether the rows inside a file are in order is seen then; where they are
not, the chunk is gathered (`gather`), as it is from files in any other layout. Every way gives the same table, so a
retry that goes another way sends the same bytes.
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
from strandline.deliver.data_files import Reach, one_after_the_other, plain_files, reach_of
from strandline.deliver.gather import ship_gathered, with_number
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
        spark, reach = bench.tables().spark, reach_of(bench.config)
        if files is not None and one_after_the_other(files):
            shipped, left = ship_directly(spark, files, shipments, cargo, sender, reach)
        if files and left:
            return shipped + ship_gathered(spark, files, left, cargo, sender, reach)
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
                    names = tuple(self.schema.names)
                    numbers = rows[SEQ_COLUMN].to_numpy()
                    yield send(self.sender, load.shipment, rows.select(names), numbers, names)
        finally:
            self.sender.close()

    def _read(self, load: _Load) -> pa.Table:
        import pyarrow as pa

        lo, hi, whole = load.shipment.rows.lo, load.shipment.rows.hi, with_number(self.schema)
        parts = [p for location in load.files for p in data_files.parts(location, self.reach, whole, lo, hi)]
        return pa.concat_tables(parts) if parts else whole.empty_table()
