"""What a follower asks of its leader: offers, the rows of a segment, and acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from strandline.core.documents import Document
from strandline.core.errors import UsageError
from strandline.core.forward_protocol import DIGEST, content_digest, digest_fits
from strandline.core.settings.follow import OFFER_ITEMS_MAX
from strandline.core.sites.terms import SITES_MAX
from strandline.core.types import SEQ_MAX, DatasetUuid, Seq, SeqRange, ShardId
from strandline.ledger.replicate.followers import Acknowledgement
from strandline.replicate.follow.bodies_document import to_document
from strandline.replicate.lead.leader import ITEMS_MAX
from strandline.replicate.segment_stream import MEDIA_TYPE, encode, request_name
from strandline.replicate.source import LeaderAnswer
from strandline.serve.api.inputs import Name, RequestInput
from strandline.serve.auth.needs import Access, FollowerAccess, OfferAccess
from strandline.serve.context import ServeContext
from strandline.serve.describe import (
    ALWAYS,
    CHANGES,
    NUMBER,
    OPEN,
    READS_A_TABLE,
    TEXT,
    documented,
    fields,
    list_of,
    of_value,
    or_null,
)
from strandline.serve.problems import too_many

router = APIRouter(prefix="/replication", tags=["replication"])

SEGMENTS_MAX = 16  # that are sent at once; a follower fetches few side by side
DATASETS_MAX = 100_000

WatermarkInput = Annotated[int, Field(ge=0, le=SEQ_MAX)]


_BODIES = fields(lo=NUMBER, hi=NUMBER, receipt=OPEN, claims=list_of(OPEN))


class OfferQuestion(RequestInput):
    after: dict[Name, WatermarkInput] = Field(
        default={}, max_length=DATASETS_MAX, description="By dataset id: up to where the follower has recorded offers."
    )
    items_max: int = Field(default=ITEMS_MAX, ge=1, le=OFFER_ITEMS_MAX, description="Items of one dataset in an offer.")
    sinks_version: str | None = Field(
        default=None,
        max_length=64,
        description="Of the sinks that the follower has. They are returned if this is not their present version, or if "
        "anything else is new.",
    )


class BatchName(RequestInput):
    dataset: Name = Field(description="The dataset's id.")
    batch_id: Name


class FollowerAcknowledgement(RequestInput):
    term: int = Field(ge=1, le=SEQ_MAX, description="That of the leader that the follower follows.")
    seals: dict[Name, WatermarkInput] = Field(
        default={}, max_length=DATASETS_MAX, description="By dataset id: up to where it has everything."
    )
    instance: Name = Field(description="Of the site: a site that is created again has another one, and starts anew.")
    number: int | None = Field(default=None, ge=0, lt=SITES_MAX, description="Of the site; null: it has none.")
    marks: dict[Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,9})$")], WatermarkInput] = Field(
        default={}, max_length=DATASETS_MAX, description="By shard: up to where its items are applied."
    )


@router.post(
    "/offer",
    summary="What is new above a follower's bounds",
    **documented(of_value(LeaderAnswer), problems=(400, *READS_A_TABLE)),
)
async def offer(access: OfferAccess, bounds: OfferQuestion) -> Response:
    """Every settled item with a number above the bound, up to `upto`, which lies below everything that is open. A long
    list is cut short, and `upto` with it: ask again behind it. Datasets that are not named are new to the follower."""

    def load() -> Document:
        after = {DatasetUuid(uuid): Seq(number) for uuid, number in bounds.after.items()}
        token, version = access.caller.token, bounds.sinks_version
        found = access.lake.leader.poll(
            after, items_max=bounds.items_max, only=token.datasets, sinks_version=version, owner=token.owner
        )
        return {name: getattr(found, name) for name in LeaderAnswer.__dataclass_fields__}

    # A number of an offer that was damaged on the way would be rows that nobody asks for again.
    answer = await access.context.read_for_follower(access.caller, load)
    answer.headers[DIGEST] = content_digest(answer.body)
    return answer


@router.get(
    "/segment",
    summary="The rows of a range, as they are now",
    **documented({"type": "string", "format": "binary"}, kind=MEDIA_TYPE, problems=READS_A_TABLE),
)
async def segment(
    access: FollowerAccess,
    dataset: Annotated[Name, Query(description="The dataset's id.")],
    lo: Annotated[int, Query(ge=1, le=SEQ_MAX)],
    hi: Annotated[int, Query(ge=1, le=SEQ_MAX)],
    behind: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Only rows with a higher sequence number.")] = 0,
    only_numbers: Annotated[bool, Query(description="Only the column of sequence numbers.")] = False,
) -> Response:
    """An Arrow IPC stream in the order of sequence numbers. Each batch carries the digest of all bytes before it, and
    the last one, which has no rows, how many there were. A stream that was cut off is asked for again behind the last
    row that arrived. Rows that retention or a purge has deleted are not in it."""
    context = access.context
    if context.segments >= SEGMENTS_MAX:
        raise too_many("too many segments are being sent", context.settings.retry_after_seconds)
    context.segments += 1
    parts: Iterator[bytes] | None = None
    try:
        parts = await context.in_follower_thread(lambda: _open(access, dataset, lo, hi, behind, only_numbers))
        first = await context.in_follower_thread(lambda: next(parts, b""))
    except BaseException:
        context.segments -= 1
        raise
    return _SegmentResponse(context, first, parts)


def _open(access: Access, dataset: str, lo: int, hi: int, behind: int, only_numbers: bool) -> Iterator[bytes]:
    if lo > hi:
        raise UsageError(f"{lo}..{hi} is no range")
    found = access.lake.leader.find(dataset, only=access.caller.token.datasets)
    wanted = SeqRange(Seq(lo), Seq(hi))
    rows = access.lake.leader.rows(found, wanted, behind=behind, only_numbers=only_numbers)
    return encode(rows.schema, rows.batches, request_name(dataset, lo, hi, behind, only_numbers))


class _SegmentResponse(StreamingResponse):
    """Gives its place back however it ends, also if the follower went away before the first part was sent: then nobody
    asks the iterator for anything, not even to end."""

    def __init__(self, context: ServeContext, first: bytes, parts: Iterator[bytes]) -> None:
        super().__init__(_sent(context, first, parts), media_type=MEDIA_TYPE)
        self._context, self._parts = context, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.segments -= 1
            await self._context.in_follower_thread(lambda: _close(self._parts))


async def _sent(context: ServeContext, first: bytes, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The connection is closed without an end if reading fails: the follower sees that something is missing."""
    part = first
    while part:
        yield part
        if context.ending.is_set():
            raise ConnectionAbortedError("the server stops")
        part = await context.in_follower_thread(lambda: next(parts, b""))


def _close(parts: Iterator[bytes]) -> None:
    close: Callable[[], None] | None = getattr(parts, "close", None)
    if close is not None:
        with suppress(ValueError):  # a thread still reads the part that nobody waits for any more
            close()


@router.post(
    "/bodies",
    summary="The bodies in a batch that a receiver made",
    **documented(fields(batch=or_null(_BODIES)), problems=(404, 409, *ALWAYS)),
)
async def bodies(access: OfferAccess, asked: BatchName) -> Response:
    """Which bodies clients and senders have sent in it, and which tokens they belong to, without secrets: the follower
    knows them again if it takes over. Null if nobody knows them, because the leader's ledger was restored."""

    def load() -> Document:
        leader = access.lake.leader
        found = leader.find(asked.dataset, only=access.caller.token.datasets)
        return to_document(leader.bodies(found, asked.batch_id))

    answer = await access.context.read_for_follower(access.caller, load)
    answer.headers[DIGEST] = content_digest(answer.body)
    return answer


@router.post(
    "/acknowledge",
    summary="How far a follower is",
    **documented(fields(follower=TEXT, term=NUMBER), problems=CHANGES, said="Recorded."),
)
async def acknowledge(access: FollowerAccess, given: FollowerAcknowledgement) -> Response:
    """Only higher numbers count. With a token of `strandline follower add`. A `Content-Digest` is checked, because
    retention goes by what is said here."""
    request = access.request
    if (digest := request.headers.get(DIGEST)) is not None and not digest_fits(digest, await request.body()):
        raise UsageError("the body is not what Content-Digest says: it was damaged on the way", hint="Send it again.")

    def record() -> Document:
        found = access.lake.leader.acknowledge(
            access.caller.token.owner,
            Acknowledgement(
                given.term,
                {DatasetUuid(uuid): Seq(number) for uuid, number in given.seals.items()},
                {ShardId(int(shard)): Seq(number) for shard, number in given.marks.items()},
                given.instance,
                given.number,
            ),
        )
        return {"follower": found.name, "term": given.term}

    return await access.context.note(access.caller, record)
