"""The kind `files`: Parquet, JSON lines or CSV in a local folder, or in one that every executor has mounted.

A chunk is written to a temporary file, fsynced, and linked to its name without replacing. The temporary file is in a
folder that belongs to one deliverer. The next deliverer removes that folder before it does anything else, so a
deliverer that was paused and continues later can no longer make anything visible.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core import failpoints
from strandline.core.errors import StorageError, UsageError
from strandline.core.types import Seq, SeqRange
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Held,
    Inspected,
    Inspector,
    Landed,
    Option,
    Outcome,
    Sender,
    Sink,
    SinkContext,
    SinkKind,
    TryLater,
)
from strandline.deliver.sinks.blobs import decode, names
from strandline.deliver.sinks.blobs.blob_sink import (
    FORMAT_OPTIONS,
    SUPERSEDED,
    LaneListing,
    Object,
    ObjectSink,
    repeat_of_missing_object,
)
from strandline.deliver.sinks.blobs.encode import Encoded, ObjectFormat, digest_of, encode, identity_of
from strandline.deliver.sinks.chunk_rows import check_rows
from strandline.deliver.sinks.files.folder import Folder, rename_into_place
from strandline.storage.durable import describe, new_file


class FilesSink(ObjectSink[Folder]):
    def __init__(self, folder: Folder, context: SinkContext) -> None:
        super().__init__(folder, context)
        # What each lane that was asked for since the fence has beyond its watermark. The senders of one token get it,
        # so that not each of them lists the lane.
        self._listings: dict[str, LaneListing] = {}
        self._token: str | None = None

    def fence(self, token: str) -> None:
        self._listings.clear()
        self._place.fence(token)

    def held(self, lanes: Sequence[tuple[Address, Seq | None]]) -> list[Held]:
        self._forget_unless(None)
        return super().held(lanes)

    def _list_lane(self, lane: str, after: Seq | None) -> LaneListing:
        listing = super()._list_lane(lane, after)
        self._listings[lane] = listing.above_watermark()
        return listing

    def _forget_unless(self, token: str | None) -> None:
        """Drops the listings if another token's senders were made since: they add to the lanes."""
        if self._token is not None and self._token != token:
            self._listings.clear()
        self._token = token

    def sender(self, token: str) -> Sender:
        self._forget_unless(token)
        return FilesSender(self._place, self._how, self._header(), token, dict(self._listings))

    def inspector(self) -> Inspector:
        return FilesInspector(self._place)


@dataclass(slots=True)
class FilesSender:
    folder: Folder
    how: ObjectFormat
    header: tuple[str, ...]
    token: str
    # What each lane has beyond its watermark, as the driver or this sender listed it. Nobody else adds to it while this
    # deliverer's temporary folder exists.
    _lanes: dict[str, LaneListing] = field(default_factory=dict, repr=False)
    _made: set[str] = field(default_factory=set, repr=False)

    def send(self, chunk: ChunkRows) -> Outcome:
        check_rows(chunk)
        lane = names.lane_folder(chunk.address)
        try:
            return self._send(lane, chunk)
        except StorageError as e:
            return TryLater(e.message)
        except FileNotFoundError as e:
            if not self.folder.temporary(self.token).is_dir():
                return TryLater(SUPERSEDED)
            return TryLater(describe(e, self.folder.path(lane)))
        except OSError as e:
            return TryLater(describe(e, self.folder.path(lane)))

    def _send(self, lane: str, chunk: ChunkRows) -> Outcome:
        listing = self._lanes.get(lane)
        if lane not in self._made:
            # Before any folder is made: the destination may not be mounted any more.
            if not self.folder.temporary(self.token).is_dir():
                return TryLater(SUPERSEDED)
            listing = self.folder.list_lane(lane, Seq(0)).above_watermark() if listing is None else listing
            self.folder.make_lane(lane)
            self._lanes[lane] = listing
            self._made.add(lane)
        if listing is None:
            raise ValueError(f"nobody listed {lane}")
        if listing.settles(chunk.range):
            return self._repeat(lane, chunk, listing)
        if (conflict := listing.conflict(chunk.range)) is not None:
            return conflict
        name = names.object_name(chunk.range, self.how.extension)
        encoded = self._write(self.folder.path(f"{lane}/{name}"), chunk)
        listing = LaneListing(listing.mark, (*listing.objects, Object(chunk.range, name)))
        self._lanes[lane] = listing
        if encoded is None:
            return self._repeat(lane, chunk, listing)
        return Landed(encoded.count, encoded.digest, encoded.size)

    def _write(self, path: Path, chunk: ChunkRows) -> Encoded | None:
        """None if another object has the name."""
        temporary = self.folder.temporary(self.token) / uuid.uuid4().hex
        try:
            with new_file(temporary) as file:
                encoded = encode(chunk.rows, self.how, self.header, identity_of(chunk.address, chunk.range), file)
            failpoints.hit("files.before_link")
            created = rename_into_place(temporary, path)
            failpoints.hit("files.after_link")
            return encoded if created else None
        finally:
            temporary.unlink(missing_ok=True)

    def _repeat(self, lane: str, chunk: ChunkRows, listing: LaneListing) -> Landed:
        """Reports what landed under the range: that is the delivery."""
        there = listing.exactly(chunk.range)
        known = [there.name] if there is not None else (names.object_name(chunk.range, e) for e in names.EXTENSIONS)
        for name in known:
            try:
                with self.folder.path(f"{lane}/{name}").open("rb") as file:
                    digest, size = digest_of(file)
                    file.seek(0)
                    count = decode.count_rows(file, name)
            except FileNotFoundError:
                continue
            return Landed(chunk.rows.num_rows if count is None else count, digest, size, repeat=True)
        return repeat_of_missing_object(chunk)

    def close(self) -> None:
        self._lanes.clear()
        self._made.clear()


@dataclass(frozen=True, slots=True)
class FilesInspector:
    folder: Folder

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        lane = names.lane_folder(address)
        for extension in names.EXTENSIONS:
            name = names.object_name(rows, extension)
            path = self.folder.path(f"{lane}/{name}")
            try:
                with path.open("rb") as file:
                    return decode.inspect(file, name, rows, identity_of(address, rows))
            except FileNotFoundError:
                continue
            except OSError as e:
                raise StorageError(describe(e, path)) from e
        return decode.GONE

    def close(self) -> None:
        return None


def _open(context: SinkContext) -> Sink:
    given = context.options["path"]
    if not given.strip() or "\0" in given:
        raise UsageError("path is empty", hint="Name the folder that the objects go to: --option path=FOLDER.")
    if "://" in given and not given.startswith("file://"):
        raise UsageError(f"path is a folder, and {given} is not", hint="For s3://… use the kind s3.")
    path = (context.home / Path(given.removeprefix("file://")).expanduser()).resolve()
    if names.names_a_generation(path.as_posix()):
        raise UsageError(
            f"{path} lies inside a folder `generation=N`", hint="Sinks keep their later generations in such folders."
        )
    return FilesSink(Folder(str(path), names.dataset_folder(context.dataset)), context)


KIND = SinkKind(
    options=(
        Option("path", "The folder; relative to the settings file.", required=True),
        *FORMAT_OPTIONS,
    ),
    open=_open,
)
