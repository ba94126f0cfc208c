"""The kind `s3`: the same objects under the same names as `files`, in a bucket of any S3-compatible store.

A put carries `If-None-Match: *`, so the second writer of a name changes nothing; the object's metadata says which chunk
it is. A bucket has no folder whose removal stops an older deliverer. So a deliverer reads the lane's watermark before
and after each put. If another deliverer had passed the object before the put, its writer removes it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from strandline.core import failpoints
from strandline.core.errors import RefusedError, StorageError, UsageError
from strandline.core.text.whole_number import whole_number
from strandline.core.types import Seq, SeqRange, before
from strandline.deliver.sink import (
    Address,
    ChunkRows,
    Conflict,
    Cut,
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
    Unknown,
)
from strandline.deliver.sinks.blobs import decode, names
from strandline.deliver.sinks.blobs.blob_sink import (
    FORMAT_OPTIONS,
    RECORD_VERSION,
    SUPERSEDED,
    LaneListing,
    ObjectSink,
    repeat_of_missing_object,
    side_by_side,
)
from strandline.deliver.sinks.blobs.encode import Encoded, ObjectFormat, encode, identity_of
from strandline.deliver.sinks.chunk_rows import check_rows
from strandline.deliver.sinks.s3.bucket import SinkBucket, parse_endpoint, parse_url
from strandline.storage.s3_client import RequestFailed, RequestFailure
from strandline.storage.s3_settings import S3Settings

METADATA = "strandline-"
_MIB = 1 << 20
_PART_BYTES = 16 * _MIB
_PART_BYTES_MIN = 5 * _MIB  # S3's own limit, for all parts but the last
_PARTS_MAX = 9_000
_PUT_BYTES_MAX = 5 << 30
_MULTIPART_BYTES = 32 * _MIB
_CLOCKS_DIFFER_MAX = timedelta(seconds=5)  # between the machines of one store, with times in whole seconds


class S3Sink(ObjectSink[SinkBucket]):
    def __init__(self, bucket: SinkBucket, context: SinkContext) -> None:
        super().__init__(bucket, context)
        self._multipart_bytes = _parse_bytes(context.options["multipart_bytes"])

    def fence(self, token: str) -> None:
        """Aborts multipart uploads that an older deliverer has begun. A single put cannot be aborted."""
        generation = "" if self._generation == 1 else f"generation={self._generation}/"
        prefix = self._place.key(f"{generation}{self._folder}/")
        try:
            more = True
            while more:
                page = self._place.retry("list_multipart_uploads", Prefix=prefix)
                for upload in page.get("Uploads", ()):
                    self._place.retry("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
                more = bool(page.get("IsTruncated") and page.get("Uploads"))
        except RequestFailed as e:
            # Not every store lists uploads, and not every key may: the watermark is the check for a late put.
            if e.is_passing or e.failure in (RequestFailure.CONDITION, RequestFailure.CONFLICT):
                raise

    def pin(self, cuts: Sequence[tuple[Address, Seq | None, Cut]]) -> list[Cut]:
        return side_by_side(self._pin, cuts)

    def _pin(self, one: tuple[Address, Seq | None, Cut]) -> Cut:
        address, mark, cut = one
        lane = names.lane_folder(address)
        name = f"{lane}/{names.CUTS}/{names.watermark_name(mark or Seq(0))}"
        record = {
            "version": RECORD_VERSION,
            "until": cut.until,
            "ranges": [[r.lo, r.hi] for r in cut.ranges],
            "extension": self._how.extension,
        }
        if not self._place.create(name, json.dumps(record).encode() + b"\n"):
            cut = self._pinned(name)
        now = self._place.mark(lane)
        if (None if now is None else now[0]) != mark:
            raise StorageError(f"{self.destination}: another deliverer has moved the watermark of {lane}")
        return cut

    def _pinned(self, name: str) -> Cut:
        body = self._place.read(name)
        if body is None:
            raise StorageError(f"{self.destination}: {name} was there and is not: another deliverer is active")
        try:
            record = json.loads(body)
            found = Cut(Seq(record["until"]), tuple(SeqRange(Seq(lo), Seq(hi)) for lo, hi in record["ranges"]))
            extension = record["extension"]
        except (ValueError, KeyError, TypeError) as e:
            raise RefusedError(
                f"{name} at {self.destination} cannot be read", hint="Remove it if it is damaged."
            ) from e
        if extension != self._how.extension:
            raise RefusedError(
                f"{self.destination}: chunks up to {found.until} were promised as .{extension}, and the sink writes "
                f".{self._how.extension} now",
                hint="Set its format back until they are delivered.",
            )
        return found

    def _mark(self, one: tuple[Address, Seq]) -> None:
        super()._mark(one)
        address, mark = one
        folder = f"{names.lane_folder(address)}/{names.CUTS}"
        for name in self._place.names(folder):  # nobody plans below a durable watermark any more
            if (pinned := names.parse_watermark_name(name, least=0)) is not None and pinned < mark:
                self._place.remove(f"{folder}/{name}")

    def sender(self, token: str) -> Sender:
        return S3Sender(self._place, self._how, self._header(), self._multipart_bytes)

    def inspector(self) -> Inspector:
        return S3Inspector(self._place)


@dataclass(slots=True)
class S3Sender:
    bucket: SinkBucket
    how: ObjectFormat
    header: tuple[str, ...]
    multipart_bytes: int
    # each lane's watermark when last read: objects are listed from there
    _marks: dict[str, Seq | None] = field(default_factory=dict, repr=False)

    def send(self, chunk: ChunkRows) -> Outcome:
        check_rows(chunk)
        offered = _EncodedChunk(self, chunk)
        maybe_under_way = False
        failed: RequestFailed | None = None
        for _ in self.bucket.limits.attempts():
            try:
                return offered.offer()
            except RequestFailed as e:
                failed = e
                if e.is_final:
                    break
                maybe_under_way |= e.failure is RequestFailure.UNKNOWN
                if not (e.is_passing or e.failure is RequestFailure.CONDITION):
                    break
        if failed is None:
            return TryLater("there was no time to ask the store")
        if maybe_under_way:
            return Unknown(failed.message)
        return TryLater(failed.message, failed.wait_seconds)

    def list_lane(self, lane: str) -> LaneListing:
        """What is held beyond the watermark. The listing begins there, so its length does not depend on history."""
        if lane not in self._marks:
            found = self.bucket.mark(lane)
            self._marks[lane] = None if found is None else found[0]
        listing = self.bucket.list_lane(lane, self._marks[lane])
        mark = max((m for m in (listing.mark, self._marks[lane]) if m is not None), default=None)
        self._marks[lane] = mark
        return LaneListing(mark, listing.objects)

    def close(self) -> None:
        self._marks.clear()


class _EncodedChunk:
    """One chunk to send: encoded when it is clear that it is needed, and kept for the next attempt."""

    def __init__(self, sender: S3Sender, chunk: ChunkRows) -> None:
        self._sender = sender
        self._bucket = sender.bucket
        self._chunk = chunk
        self._lane = names.lane_folder(chunk.address)
        self._name = f"{self._lane}/{names.object_name(chunk.range, sender.how.extension)}"
        self._identity = identity_of(chunk.address, chunk.range)
        self._body = io.BytesIO()
        self._encoded: Encoded | None = None

    def offer(self) -> Outcome:
        """One attempt. It begins with a listing, which finds an earlier attempt whose response was lost."""
        listing = self._sender.list_lane(self._lane)
        rows = self._chunk.range
        if listing.settles(rows):
            there = listing.exactly(rows)
            return (
                repeat_of_missing_object(self._chunk) if there is None else self._repeat(f"{self._lane}/{there.name}")
            )
        if (conflict := listing.conflict(rows)) is not None:
            return conflict
        encoded = self._encode()
        try:
            failpoints.hit("s3.before_put")
            if encoded.size > self._sender.multipart_bytes:
                self._put_in_parts(encoded)
            else:
                self._put(encoded)
            failpoints.hit("s3.after_put")
        except RequestFailed as e:
            if e.failure is RequestFailure.NO_UPLOAD:
                return self._called_off()
            if e.failure is RequestFailure.CONDITION:
                return self._repeat(self._name)
            raise
        return self._confirm(encoded)

    def _encode(self) -> Encoded:
        if self._encoded is None:
            self._encoded = encode(self._chunk.rows, self._sender.how, self._sender.header, self._identity, self._body)
        return self._encoded

    def _metadata(self, encoded: Encoded) -> dict[str, str]:
        values = {**self._identity, "rows": str(encoded.count), "digest": encoded.digest}
        return {METADATA + key: value for key, value in values.items()}

    def _put(self, encoded: Encoded) -> None:
        self._body.seek(0)
        self._bucket.call(
            "put_object",
            Key=self._bucket.key(self._name),
            Body=self._body,
            IfNoneMatch="*",
            Metadata=self._metadata(encoded),
        )

    def _put_in_parts(self, encoded: Encoded) -> None:
        """A multipart upload is invisible until it is completed, and completed only if the name is free."""
        key = self._bucket.key(self._name)
        upload: str | None = None
        # Nothing is visible after these requests, so one whose response is lost is simply repeated.
        try:
            upload = self._bucket.retry("create_multipart_upload", Key=key, Metadata=self._metadata(encoded))[
                "UploadId"
            ]
            parts = self._send_parts(key, upload, encoded.size)
        except RequestFailed:
            if upload is not None:
                self._call_off(key, upload)
            raise
        try:
            self._bucket.call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
        except RequestFailed as e:
            if e.failure is not RequestFailure.UNKNOWN:  # UNKNOWN: it may be completing right now
                self._call_off(key, upload)
            raise

    def _send_parts(self, key: str, upload: str, size: int) -> list[dict[str, Any]]:
        part_bytes = max(min(_PART_BYTES, self._sender.multipart_bytes), _PART_BYTES_MIN, math.ceil(size / _PARTS_MAX))
        parts: list[dict[str, Any]] = []
        for number, start in enumerate(range(0, size, part_bytes), 1):
            self._body.seek(start)
            body = self._body.read(part_bytes)
            answer = self._bucket.retry("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=body)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        return parts

    def _call_off(self, key: str, upload: str) -> None:
        try:
            self._bucket.call("abort_multipart_upload", Key=key, UploadId=upload)
        except RequestFailed:
            return  # the next fence aborts it; nobody sees it until then

    def _called_off(self) -> Outcome:
        """The upload was aborted by another deliverer's fence, or an attempt of ours was completed after all."""
        listing = self._sender.list_lane(self._lane)
        there = listing.exactly(self._chunk.range)
        if there is not None:
            return self._repeat(f"{self._lane}/{there.name}")
        return repeat_of_missing_object(self._chunk) if listing.settles(self._chunk.range) else TryLater(SUPERSEDED)

    def _confirm(self, encoded: Encoded) -> Outcome:
        """The watermark was below the range before the put. If it is not any more, another deliverer has delivered
        these rows: with an object of its own, which a consumer has removed, or because it found ours. In the first case
        ours must not be seen a second time; in the second it is the only one. Only a watermark that is clearly older
        than the object proves the first case; in doubt the object stays, because consumers ignore what is below their
        cursor."""
        landed = Landed(encoded.count, encoded.digest, encoded.size)
        try:
            found = self._bucket.mark(self._lane)
            if found is None or found[0] < self._chunk.range.hi:
                return landed
            ours = self._bucket.head(self._name)
            if ours is None or ours["LastModified"] - found[1] < _CLOCKS_DIFFER_MAX:
                return landed
            self._bucket.remove(self._name)
        except RequestFailed as e:
            return Unknown(f"it landed, and whether it was still wanted could not be asked: {e.message}")
        return TryLater(SUPERSEDED)

    def _repeat(self, name: str) -> Outcome:
        found = self._bucket.head(name)
        if found is None:
            # Removed since it was listed: the next attempt finds the watermark, or sends the chunk.
            raise RequestFailed(RequestFailure.CONDITION, "an object was there and is gone")
        said = found["Metadata"]
        if any(said.get(METADATA + key) != value for key, value in self._identity.items()):
            return Conflict((self._chunk.range,))
        rows = whole_number(said.get(METADATA + "rows"))
        count = self._chunk.rows.num_rows if rows is None else rows
        return Landed(count, said.get(METADATA + "digest", ""), int(found["ContentLength"]), repeat=True)


@dataclass(frozen=True, slots=True)
class S3Inspector:
    bucket: SinkBucket

    def inspect(self, address: Address, rows: SeqRange) -> Inspected:
        lane = names.lane_folder(address)
        there = self.bucket.list_lane(lane, before(rows.lo)).exactly(rows)
        found = None if there is None else self.bucket.fetch(f"{lane}/{there.name}")
        if there is None or found is None:
            return decode.GONE
        body, metadata = found
        identity = identity_of(address, rows)
        inspected = decode.inspect(body, there.name, rows, identity)
        for key, expected in identity.items():
            if inspected.problem is None and metadata.get(METADATA + key) != expected:
                said = metadata.get(METADATA + key, "nothing")
                problem = f"its metadata says {said} for {key}, where {expected} should be"
                return Inspected(inspected.count, inspected.digest, problem)
        return inspected

    def close(self) -> None:
        return None


def _open(context: SinkContext) -> Sink:
    options = context.options
    bucket, prefix = parse_url(options["url"])
    access_key, secret_key = options.get("access_key"), options.get("secret_key")
    if (access_key is None) != (secret_key is None):
        raise UsageError(
            "access_key and secret_key go together", hint="Give both, or neither: then AWS's usual chain is asked."
        )
    settings = S3Settings(parse_endpoint(options.get("endpoint")), options.get("region"), access_key, secret_key)
    return S3Sink(SinkBucket(bucket, prefix, settings), context)


def _parse_bytes(text: str) -> int:
    size = whole_number(text)
    if size is None or not _PART_BYTES_MIN <= size <= _PUT_BYTES_MAX:
        raise UsageError(
            f"multipart_bytes cannot be {text}",
            hint=f"It is a number of bytes from {_PART_BYTES_MIN} to {_PUT_BYTES_MAX}.",
        )
    return size


KIND = SinkKind(
    options=(
        Option("url", "`s3://bucket/prefix`.", required=True),
        Option("endpoint", "The address of a store that is not Amazon's."),
        Option("region", "The bucket's region. Without: what AWS's usual chain says, or `us-east-1`."),
        Option("access_key", "`env:NAME`. Without both keys AWS's usual chain is asked.", secret=True),
        Option("secret_key", "`env:NAME`.", secret=True),
        Option("multipart_bytes", "Objects larger than this are sent in parts.", default=str(_MULTIPART_BYTES)),
        *FORMAT_OPTIONS,
    ),
    open=_open,
)
