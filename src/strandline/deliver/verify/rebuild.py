"""The lake's side of `verify`: builds chunks again as they would be delivered now, with the code that delivers them.

It sends nothing, and the driver gets no rows: only one result per chunk, and one per lane.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from strandline.core.errors import FailedError, UsageError
from strandline.core.portions import portions
from strandline.core.types import SEQ_COLUMN, SeqRange, SnapshotId
from strandline.deliver.plan import size_scan_spark
from strandline.deliver.send.build_parquet import ship_either_way
from strandline.deliver.send.build_spark import Cargo, DuplicateNumber, Nothing, Shipment, Shipped, cargo_of, ship
from strandline.deliver.send.digests import same_bytes
from strandline.deliver.sink import ChunkRows, Landed, Provable, Rehearsal, Sender, is_numbered
from strandline.deliver.sink_options import parse_common
from strandline.deliver.sink_session import SinkRun
from strandline.deliver.verify.compare import LakeRows
from strandline.deliver.verify.ranges import OptionsKey
from strandline.read.settled_view import SettledView

CHUNKS_AT_ONCE_MAX = 256  # in one job: each adds to its query plan
SCHEMAS_MAX = 5  # how many older schemas are tried for chunks that the present one does not explain

OnChunks = Callable[[int], None]  # chunks handled


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """A range of a lane, and the options that it was delivered with."""

    partition: str
    rows: SeqRange
    expected: int
    options: OptionsKey


class Rebuilding:
    """Rebuilds chunks of one sink from one snapshot of its dataset."""

    def __init__(self, run: SinkRun, source: SettledView, on_chunks: OnChunks) -> None:
        self._run = run
        self._source = source
        self._on_chunks = on_chunks
        self.unfit: dict[OptionsKey, str] = {}  # options that the table no longer fits, and why

    def rebuild(self, wanted: Sequence[WantedChunk]) -> dict[WantedChunk, LakeRows]:
        """Ranges of one lane must not overlap. A range whose options no longer fit the table is left out."""
        return self._rebuild(self._source.df, wanted)

    def rebuild_as_before(self, wanted: Mapping[WantedChunk, str]) -> set[WantedChunk]:
        """Those that had this digest when the table had another schema, as far as its history still shows it."""
        left, found = dict(wanted), set()
        for snapshot in self._older_shapes():
            if not left:
                break
            tables = self._run.context.tables.settled
            df = tables.read(self._run.dataset.name, snapshot)
            if SEQ_COLUMN not in df.columns:
                continue  # the table was adopted later
            for item, rows in self._rebuild(df, list(left)).items():
                if rows.digest is not None and same_bytes(rows.digest, left[item]):
                    found.add(item)
                    del left[item]
        return found

    def same_content(self, wanted: Sequence[WantedChunk]) -> set[WantedChunk]:
        """Those whose content at the sink has exactly the lake's rows, although the bytes differ."""
        same: set[WantedChunk] = set()
        for wave in _waves(wanted, self._run.context.settings.job_rows_max):
            cargo = self._cargo(self._source.df, wave[0].options)
            if cargo is None:
                continue
            sink = self._run.sink(dict(wave[0].options))
            sender = sink.comparison(cargo.columns) if isinstance(sink, Provable) else None
            if sender is not None:
                shipped = self._ship(self._source.df, wave, cargo, sender)
                same |= {w for w, s in zip(wave, shipped, strict=True) if isinstance(s.outcome, Landed)}
        return same

    def ask_about_numbers(self, wanted: Sequence[WantedChunk], sender: Sender) -> dict[WantedChunk, object]:
        """The sender's result for each chunk. It gets only the sequence numbers of the chunk."""
        found: dict[WantedChunk, object] = {}
        numbers = tuple(f for f in self._source.df.schema.fields if f.name == SEQ_COLUMN)
        for wave in _waves(wanted, self._run.context.settings.job_rows_max):
            cargo = Cargo("rows", numbers, parse_common(dict(wave[0].options)).where)
            shipped = self._ship(self._source.df, wave, cargo, sender)
            found |= {w: s.outcome for w, s in zip(wave, shipped, strict=True)}
        return found

    def _rebuild(self, df: DataFrame, wanted: Sequence[WantedChunk]) -> dict[WantedChunk, LakeRows]:
        rebuilt: dict[WantedChunk, LakeRows] = {}
        for wave in _waves(wanted, self._run.context.settings.job_rows_max):
            options = wave[0].options
            cargo = self._cargo(df, options)
            if cargo is not None and options not in self.unfit:
                sink = self._run.sink(dict(options))
                sender = sink.rehearsal(cargo.columns) if isinstance(sink, Provable) else Rehearsal(_count_rows)
                try:
                    shipped = self._ship(df, wave, cargo, sender)
                except UsageError as e:  # the condition no longer fits
                    self.unfit[options] = e.message
                    continue
                rebuilt |= {w: _lake_rows(s) for w, s in zip(wave, shipped, strict=True)}
            self._on_chunks(len(wave))
        return rebuilt

    def _cargo(self, df: DataFrame, key: OptionsKey) -> Cargo | None:
        options = parse_common(dict(key))
        if gone := [c for c in options.columns or () if c not in df.columns]:
            self.unfit[key] = f"{self._run.dataset.name} no longer has the column {gone[0]}"
            return None
        sink = self._run.sink(dict(key))
        fields = size_scan_spark.delivered_fields(df.schema, options.columns, is_numbered=is_numbered(sink))
        return cargo_of(sink.form, fields, options)

    def _ship(self, df: DataFrame, wave: Sequence[WantedChunk], cargo: Cargo, sender: Sender) -> list[Shipped]:
        shipments = [Shipment(i, self._run.address(w.partition), w.rows, w.expected) for i, w in enumerate(wave)]
        if df is self._source.df:
            results = ship_either_way(self._run.context, self._source, shipments, cargo, sender)
        else:
            results = ship(df, shipments, cargo, sender)
        shipped = {s.index: s for s in results}
        return [shipped[s.index] for s in shipments]

    def _older_shapes(self) -> Iterator[SnapshotId]:
        """For each schema that main has had, the newest snapshot that was written with it."""
        view = self._source.view
        seen = {view.schema_id}
        for snapshot in view.ancestors(view.main):
            if snapshot.schema_id is not None and snapshot.schema_id not in seen:
                seen.add(snapshot.schema_id)
                yield snapshot.id
            if len(seen) > SCHEMAS_MAX:
                return


def _count_rows(chunk: ChunkRows) -> Landed:
    """For a sink that cannot say what its content would be."""
    return Landed(chunk.rows.num_rows, "", 0)


def _lake_rows(shipped: Shipped) -> LakeRows:
    match shipped.outcome:
        case Landed(count, digest, _, _):
            return LakeRows(count, shipped.withheld, digest or None)
        case DuplicateNumber(number):
            return LakeRows(0, 0, None, twice=number)
        case Nothing():
            return LakeRows(0, shipped.withheld, None)
    raise FailedError(f"the lake's rows cannot be built again: {shipped.outcome}")


def _waves(wanted: Sequence[WantedChunk], rows_max: int) -> Iterator[list[WantedChunk]]:
    """Ranges with the same options, in order, as many as one job should do."""
    by_options: dict[OptionsKey, list[WantedChunk]] = defaultdict(list)
    for item in wanted:
        by_options[item.options].append(item)
    for alike in by_options.values():
        ordered = sorted(alike, key=lambda w: (w.rows, w.partition))
        yield from portions(ordered, lambda w: w.expected, rows_max, CHUNKS_AT_ONCE_MAX)
