"""What sinks that store objects share, in a folder or in a bucket.

An object's name is its range. A sink has what is at or below its watermark, and what is listed. Objects are written
first, then the watermark, then the ledger. So a range counts as delivered after a consumer removed its object.
"""

from __future__ import annotations

import io
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from strandline.core import failpoints
from strandline.core.documents import iso
from strandline.core.errors import DestinationTaken, RefusedError, StorageError
from strandline.core.types import Seq, SeqRange, merge_ranges
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Claim,
    Claimed,
    Conflict,
    Held,
    HeldRange,
    Inspector,
    Landed,
    Option,
    Outcome,
    Rehearsal,
    Sender,
    SinkContext,
    TryLater,
    covers,
    overlapping,
)
from strandline.deliver.sinks.blobs import names
from strandline.deliver.sinks.blobs.decode import decompressing
from strandline.deliver.sinks.blobs.encode import ObjectFormat, choose_format, digest_of, encode, identity_of
from strandline.iceberg.schema.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_VERSION = 1
_CLAIM_FIELDS = ("lake", "instance", "dataset", "table_uuid")
LANES_AT_ONCE_MAX = 16  # each lane is a few requests or fsyncs, which wait for the same store or disk

FORMAT_OPTIONS = (
    Option("format", "`parquet`, `jsonl` or `csv`.", default="parquet"),
    Option(
        "compression",
        "Of Parquet: `zstd` (default), `snappy`, `gzip`, `none`. Of JSON lines and CSV: `none` (default), `gz`, `zst`.",
    ),
)

SUPERSEDED = "superseded: another deliverer of this sink has begun"

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True)
class Object:
    rows: SeqRange
    name: str  # without its folder
    size: int | None = None


@dataclass(frozen=True, slots=True)
class LaneListing:
    """The watermark and the objects of a lane at one moment."""

    mark: Seq | None
    objects: tuple[Object, ...]

    def held(self) -> list[SeqRange]:
        below = [] if self.mark is None else [SeqRange(Seq(1), self.mark)]
        return merge_ranges([*below, *(o.rows for o in self.objects)])

    def settles(self, rows: SeqRange) -> bool:
        """Whether the range is held completely."""
        return covers(self.held(), rows)

    def conflict(self, rows: SeqRange) -> Conflict | None:
        found = tuple(overlapping(self.held(), rows))
        return Conflict(found) if found else None

    def above_watermark(self) -> LaneListing:
        """Without the objects that the watermark covers anyway."""
        return LaneListing(self.mark, tuple(o for o in self.objects if self.mark is None or o.rows.hi > self.mark))

    def exactly(self, rows: SeqRange) -> Object | None:
        return next((o for o in self.objects if o.rows == rows), None)


class BlobStore(Protocol):
    """A folder or a bucket; names are relative to the sink's path or prefix. Methods raise `StorageError`."""

    def destination(self, dataset: str) -> str: ...

    def list_lane(self, lane: str, after: Seq | None) -> LaneListing:
        """The lane's watermark, and its objects: at least those that begin beyond `after` and beyond the watermark."""

    def names(self, folder: str) -> list[str]:
        """The names directly in the folder; empty if there is no such folder."""

    def read(self, name: str) -> bytes | None: ...

    def create(self, name: str, body: bytes) -> bool:
        """Durable when it returns; False if the name is taken, and that object stays as it is."""

    def remove(self, name: str) -> None: ...


def repeat_of_missing_object(chunk: ChunkRows) -> Landed:
    """A repeat whose object is no longer there to be read: its digest is unknown, so none is given."""
    return Landed(chunk.rows.num_rows, "", 0, repeat=True)


def side_by_side(work: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(LANES_AT_ONCE_MAX, len(items)), "lanes") as pool:
        return list(pool.map(work, items))


_Place = TypeVar("_Place", bound=BlobStore)


class ObjectSink(ABC, Generic[_Place]):
    """The part on the driver. Folders and buckets differ in the place and in the sender."""

    stores_watermarks = True

    def __init__(self, place: _Place, context: SinkContext) -> None:
        self._place = place
        self._how = choose_format(context.options["format"], context.options.get("compression"))
        self._folder = names.dataset_folder(context.dataset)
        self._generation = context.generation
        self.form = self._how.form
        self.destination = place.destination(context.dataset)
        self._columns: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.destination!r})"

    def prepare(self, columns: Sequence[Column]) -> None:
        """Files describe themselves, so any schema will do; CSV needs the column names for its header."""
        self._columns = tuple(column.name for column in columns)

    def _header(self) -> tuple[str, ...]:
        if self._columns is None:
            raise ValueError("prepare() comes before sender()")
        return self._columns

    def claimed(self) -> Claimed | None:
        body = self._place.read(f"{self._folder}/{names.CLAIM}")
        if body is None:
            return None
        claim = replace(self._parse(body), term=self._highest(names.TERMS))
        return Claimed(claim, self._highest(names.GENERATIONS))

    def _highest(self, folder: str) -> int:
        """Each generation and each term has its own name, so the highest never moves back."""
        found = (names.step_of(name) for name in self._place.names(f"{self._folder}/{folder}"))
        return max((n for n in found if n is not None), default=1)

    def _parse(self, body: bytes) -> Claim:
        try:
            record = json.loads(body)
            version, fields = record["version"], {k: record[k] for k in _CLAIM_FIELDS}
            claim = Claim(**fields)
            if not all(isinstance(v, str) for v in fields.values()):
                raise TypeError("a value that is not text")
        except (ValueError, KeyError, TypeError) as e:
            raise RefusedError(
                f"{names.CLAIM} at {self.destination} cannot be read, so nobody can say who delivers there",
                hint="Restore it, or choose another place for this sink.",
            ) from e
        if version != RECORD_VERSION:
            raise RefusedError(
                f"{names.CLAIM} at {self.destination} has version {version}, this program knows {RECORD_VERSION}",
                hint="Use the newer version of Strandline that wrote it.",
            )
        return claim

    def claim(self, claim: Claim, generation: int) -> Claimed:
        who = {name: getattr(claim, name) for name in _CLAIM_FIELDS}
        body = json.dumps({"version": RECORD_VERSION, **who}, indent=1).encode() + b"\n"
        self._place.create(f"{self._folder}/{names.CLAIM}", body)
        found = self.claimed()
        if found is None:
            raise RefusedError(f"{names.CLAIM} was taken away from {self.destination} while it was claimed")
        theirs = found.claim
        if (theirs.lake, theirs.dataset) != (claim.lake, claim.dataset):
            raise DestinationTaken(
                f"{self.destination} belongs to lake {theirs.lake}, dataset {theirs.dataset}",
                hint="Choose another place: rows of two lakes must not be in one folder.",
            )
        if generation > found.generation:
            self._place.create(f"{self._folder}/{names.GENERATIONS}/{generation}", b"")
        if claim.term > theirs.term:
            self._place.create(f"{self._folder}/{names.TERMS}/{claim.term}", b"")
        return Claimed(replace(theirs, term=max(claim.term, theirs.term)), max(generation, found.generation))

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        return side_by_side(self._held, lanes)

    def _held(self, lane: tuple[Address, Seq | None]) -> Held:
        address, after = lane
        listing = self._list_lane(names.lane_folder(address), after)
        beyond = sorted(
            (o for o in listing.objects if after is None or listing.mark is None or o.rows.hi > listing.mark),
            key=lambda o: (o.rows, o.name),
        )
        for a, b in itertools.pairwise(beyond):
            if a.rows.overlaps(b.rows):
                raise RefusedError(
                    f"{a.name} and {b.name} in {names.lane_folder(address)} at {self.destination} hold the same rows",
                    hint="Find out which one the consumer has read, and remove the other one.",
                )
        return Held(listing.mark, tuple(HeldRange(o.rows, size=o.size) for o in beyond))

    def _list_lane(self, lane: str, after: Seq | None) -> LaneListing:
        return self._place.list_lane(lane, after)

    def set_watermarks(self, marks: Sequence[tuple[Address, Seq]]) -> None:
        side_by_side(self._mark, marks)

    def _mark(self, one: tuple[Address, Seq]) -> None:
        address, mark = one
        folder = f"{names.lane_folder(address)}/{names.MARKS}"
        there = self._marks(folder)
        failpoints.hit("sink.before_mark")
        if not any(other >= mark for other in there):
            record = {
                "version": RECORD_VERSION,
                "lake": address.lake,
                "sink": address.instance,
                "generation": address.generation,
                "dataset": address.dataset,
                "partition": address.partition,
                "mark": mark,
                "at": iso(datetime.now(UTC)),
            }
            self._place.create(f"{folder}/{names.watermark_name(mark)}", json.dumps(record).encode() + b"\n")
        failpoints.hit("sink.after_mark")
        # Only after the higher watermark is durable. A lower one that stays does no harm.
        for other in there:
            if other < max([mark, *there]):
                self._place.remove(f"{folder}/{names.watermark_name(other)}")

    def _marks(self, folder: str) -> list[Seq]:
        return [mark for name in self._place.names(folder) if (mark := names.parse_watermark_name(name)) is not None]

    @abstractmethod
    def fence(self, token: str) -> None: ...

    @abstractmethod
    def sender(self, token: str) -> Sender: ...

    @abstractmethod
    def inspector(self) -> Inspector: ...

    def rehearsal(self, columns: Sequence[str]) -> Sender:
        return Rehearsal(partial(rehearse, self._how, tuple(columns)))

    def comparison(self, columns: Sequence[str]) -> Sender:
        return ObjectComparison(self._place, self._how, tuple(columns))

    def name_of(self, address: Address, rows: SeqRange) -> str:
        return f"{names.lane_folder(address)}/{names.object_name(rows, self._how.extension)}"

    def close(self) -> None:
        return None


def lane_listing(found: Iterable[tuple[str, int | None]], marks: Iterable[str]) -> LaneListing:
    """Ignores names that are not ours."""
    objects = [Object(rows, name, size) for name, size in found if (rows := names.object_range(name)) is not None]
    mark = max((m for name in marks if (m := names.parse_watermark_name(name)) is not None), default=None)
    return LaneListing(mark, tuple(sorted(objects, key=lambda o: (o.rows, o.name))))


# --- for `verify`: what an object would be, and whether the existing one has the same rows ---


class _Nowhere:
    def write(self, data: Any, /) -> int:
        return len(data)


def rehearse(how: ObjectFormat, header: tuple[str, ...], chunk: ChunkRows) -> Landed:
    encoded = encode(chunk.rows, how, header, identity_of(chunk.address, chunk.range), _Nowhere())
    return Landed(encoded.count, encoded.digest, encoded.size)


@dataclass(frozen=True, slots=True)
class ObjectComparison:
    """Encodes both sides again, with the libraries of today."""

    place: BlobStore
    how: ObjectFormat
    header: tuple[str, ...]

    def send(self, chunk: ChunkRows) -> Outcome:
        name = f"{names.lane_folder(chunk.address)}/{names.object_name(chunk.range, self.how.extension)}"
        try:
            body = self.place.read(name)
        except StorageError as e:
            return TryLater(e.message)
        if body is None:
            return TryLater(f"{name} is gone")
        mine = self._plain(chunk.rows, chunk)
        if (self._theirs(body, name, chunk)) != mine:
            return Conflict((chunk.range,))
        return Landed(chunk.rows.num_rows, "", len(body), repeat=True)

    def _plain(self, rows: pa.Table, chunk: ChunkRows) -> str:
        plain = replace(self.how, compression="none")
        return encode(rows, plain, self.header, identity_of(chunk.address, chunk.range), _Nowhere()).digest

    def _theirs(self, body: bytes, name: str, chunk: ChunkRows) -> str | None:
        if self.how.name == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:
                return self._plain(pq.read_table(pa.BufferReader(body), use_threads=False), chunk)
            except (pa.ArrowException, OSError):
                return None
        with decompressing(io.BytesIO(body), names.extension_of(name)) as plain:
            return digest_of(plain)[0]

    def close(self) -> None:
        return None
