"""Handles a request from its first header to its answer.

The event loop only reads bodies. A bounded number of threads does what blocks (ledger, disk, Spark), so that one
request does not delay others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request

from strandline.core import failpoints, forward_protocol
from strandline.core.errors import (
    BadRow,
    LeaseOver,
    NoSuchDataset,
    NotLeader,
    ResyncNeeded,
    SchemaError,
    StrandlineError,
    UsageError,
)
from strandline.core.roles import Role, allows
from strandline.core.text.bounded_text import check_text
from strandline.core.types import Dataset, DatasetId
from strandline.http.content_length import exceeds
from strandline.http.verified_callers import SharedQuestions, VerifiedCallers, bearer_secret
from strandline.iceberg.metadata.identifier import full_name
from strandline.ledger.ingest import datasets
from strandline.ledger.receive import receive_holds, received, spool_files, tokens
from strandline.ledger.receive.receipts import Note
from strandline.ledger.receive.received import UnrecordedBody
from strandline.ledger.replicate import sites
from strandline.receive.body.decompress import TooLarge
from strandline.receive.body.parse import Packed, read_body
from strandline.receive.committer import Committer
from strandline.receive.context import ReceiverContext
from strandline.receive.http import answers
from strandline.receive.http.admission import AdmissionGate
from strandline.receive.http.answers import EarlyReply, Reply
from strandline.receive.http.caches import DatasetSchema, ReceiverCaller, SchemaCache
from strandline.receive.ledger_watch import LedgerWatch
from strandline.receive.record_found import FoundBodies
from strandline.receive.sqlite_lock import LedgerAccess

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_ASKING_THREADS = 4
_WORKING_THREADS_MIN = 8
_INSPECTING_THREADS = 2  # they mostly wait for Spark, and must not use the threads for bodies

_UNAVAILABLE = "the receiver cannot do this right now; nothing is lost, and the same request can be sent again"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A body in memory, with what its headers say."""

    caller: ReceiverCaller
    identity: forward_protocol.BodyIdentity
    packed: Packed
    digest_header: str | None


class RequestHandler:
    def __init__(self, parts: ReceiverContext) -> None:
        self.parts = parts
        self.settings = parts.config.settings.receive
        self.gate = AdmissionGate(self.settings)
        self.ledger = LedgerAccess(parts.ledger)
        self.committer = Committer(self.ledger, parts.spool)
        self._targets = SchemaCache(parts.tables)
        self._callers = VerifiedCallers[ReceiverCaller]()
        self._measuring = SharedQuestions[None]()
        adoption = FoundBodies(parts.ledger, parts.spool, parts.receipts)
        self.watch = LedgerWatch(self.ledger, parts.witness, adoption, parts.on_behind)
        threads = max(_WORKING_THREADS_MIN, 2 * (os.cpu_count() or 1))
        self._working = ThreadPoolExecutor(min(threads, self.settings.requests_at_once_max), "strandline-body")
        self._asking = ThreadPoolExecutor(_ASKING_THREADS, "strandline-ask")
        self._inspecting = ThreadPoolExecutor(_INSPECTING_THREADS, "strandline-inspect")

    def close(self) -> None:
        for pool in (self._asking, self._inspecting, self._working):
            pool.shutdown(wait=True)
        self.committer.close()

    async def caller(self, request: Request, name: str, *, recently: bool = False) -> ReceiverCaller:
        """Raises EarlyReply unless the token may use the dataset. With `recently`, a cached caller is enough: only for
        requests that the ledger decides in the end."""
        secret = bearer_secret(request.headers.get("authorization"))
        if secret is None:
            raise EarlyReply(answers.NO_TOKEN)
        key = (secret, name)

        def ask() -> Awaitable[ReceiverCaller | None]:
            return self.in_thread(lambda: self._find(secret, name))

        caller = await (self._callers.find_or_ask(key, ask) if recently else ask())
        if caller is None:
            raise EarlyReply(answers.NO_TOKEN)
        return caller

    def _find(self, secret: str, name: str) -> ReceiverCaller | None:
        """None if the token is not valid."""
        try:
            full = full_name(check_text("the dataset's name", name))
        except SchemaError:
            full = name
        except UsageError as e:
            raise EarlyReply(answers.bad_request(e.message)) from None
        self._check_ledger(secret)
        with self.ledger.read() as connection:
            token = tokens.find(connection, secret)
            if token is None:
                return None
            if not allows(token.role, Role.WRITE):
                raise EarlyReply(answers.wrong_role(token.role))
            if not token.allows(full):
                raise EarlyReply(answers.NOT_ALLOWED)
            dataset = datasets.find(connection, full)
            if dataset is None:
                raise EarlyReply(answers.NO_DATASET)
            if dataset.id in receive_holds.list_holds(connection):
                raise EarlyReply(answers.ON_HOLD)
            return ReceiverCaller(token, dataset, tokens.fingerprint_of(connection, token.owner))

    def _check_ledger(self, secret: str) -> None:
        try:
            self.watch.check()
        except NotLeader as e:
            # Before the token is checked: a site that follows does not know its leader's tokens.
            raise self._not_leading(e, secret) from e
        except ResyncNeeded as e:
            log.warning("a request is answered with Retry-After: %s", e.message)
            raise EarlyReply(answers.behind(self.settings.retry_after_seconds)) from e

    def _not_leading(self, error: NotLeader, secret: str | None = None) -> EarlyReply:
        """The reply of a site that does not lead. Names the leader only to callers with a token of this site."""
        log.warning("a request is answered with Retry-After: %s", error.message)
        with self.ledger.read() as connection:
            named = secret is None or tokens.find(connection, secret) is not None
            site = sites.get(connection)
        return EarlyReply(answers.not_leading(site, self.settings.retry_after_seconds, named=named))

    async def _measure(self) -> None:
        def waiting_bytes() -> dict[DatasetId, int]:
            with self.ledger.read() as connection:
                return spool_files.waiting_bytes(connection)

        self.gate.measured(await self.in_thread(waiting_bytes))

    async def in_thread(self, ask: Callable[[], _T]) -> _T:
        return await self._in(self._asking, ask)

    async def inspect(self, ask: Callable[[], _T]) -> _T:
        return await self._in(self._inspecting, ask)

    async def _in(self, pool: ThreadPoolExecutor, do: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, do)
        except EarlyReply:
            raise
        except NoSuchDataset as e:
            raise EarlyReply(answers.NO_DATASET) from e
        except Exception as e:
            raise self.unavailable(e) from e

    def unavailable(self, error: Exception) -> EarlyReply:
        if isinstance(error, StrandlineError):
            log.warning("a request is answered with Retry-After: %s", error.message)
        else:
            log.error("a request failed with an unexpected error", exc_info=error)
        if isinstance(error, LeaseOver):
            return EarlyReply(answers.lease_over(self.settings.retry_after_seconds))
        return EarlyReply(answers.busy(_UNAVAILABLE, self.settings.retry_after_seconds, status=503))

    async def handle(self, request: Request, name: str) -> Reply:
        caller = await self.caller(request, name, recently=True)
        headers = _headers(request)
        try:
            identity = forward_protocol.parse_identity(headers)
        except UsageError as e:
            raise EarlyReply(answers.bad_request(e.message if e.hint is None else f"{e.message}. {e.hint}")) from e
        form, encoding = _form(headers.get("content-type")), _encoding(headers.get("content-encoding"))
        key = (
            (caller.dataset.id, caller.token.owner, identity.key)
            if isinstance(identity, forward_protocol.KeyIdentity)
            else None
        )
        if self.gate.wants_measure:
            await self._measuring.ask(None, self._measure)
        with self.gate.entered(caller.dataset.id), self.gate.alone(key):
            data = await self.read(request, self.settings.body_bytes_max)
            numbers = identity.rows if isinstance(identity, forward_protocol.RangeIdentity) else None
            packed = Packed(data, form, encoding, numbers)
            arrival = Arrival(caller, identity, packed, headers.get(forward_protocol.DIGEST.lower()))
            made = await self._in(self._working, lambda: self._spool(arrival))
            if isinstance(made, Reply):
                return made
            return await self._record(made, caller)

    async def read(self, request: Request, limit: int) -> bytes:
        """The whole body. Raises EarlyReply if it has more than `limit` bytes, or if its Content-Length says so."""
        large = EarlyReply(answers.too_large(limit, f"a body has at most {limit:,} bytes as it is sent"))
        if exceeds(request.headers.get("content-length"), limit):
            raise large
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_seconds_max):
                async for piece in request.stream():
                    size += len(piece)
                    if size > limit:
                        raise large
                    pieces.append(piece)
        except TimeoutError as e:
            slow = answers.busy("the body takes too long", self.settings.retry_after_seconds, status=408)
            raise EarlyReply(slow) from e
        except ClientDisconnect as e:
            raise EarlyReply(answers.bad_request("the body was truncated")) from e
        return b"".join(pieces)

    def _spool(self, arrival: Arrival) -> UnrecordedBody | Reply:
        """Runs in a thread. Parses and spools the body; returns a Reply if there is nothing to commit."""
        data, caller = arrival.packed.data, arrival.caller
        if arrival.digest_header is not None and not forward_protocol.digest_fits(arrival.digest_header, data):
            return answers.BAD_DIGEST
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        try:
            rows, dataset = self._rows(arrival)
        except BadRow as e:
            return self._known(arrival, digest) or answers.bad_body(e.line, e.message)
        except TooLarge as e:
            return self._known(arrival, digest) or answers.too_large(e.limit, str(e))
        failpoints.hit("receive.before_spool")
        name, size = None, 0
        if rows.num_rows:
            note = Note(arrival.identity, caller.fingerprint, rows.num_rows, digest, len(data))
            name, size = self.parts.spool.write(dataset.table_uuid, rows, note)
        failpoints.hit("receive.after_spool")
        return UnrecordedBody(
            dataset.id, arrival.identity, caller.token.id, rows.num_rows, digest, len(data), name, size
        )

    def _known(self, arrival: Arrival, digest: str) -> Reply | None:
        """The stored answer to a repeat of a body that no longer fits the table."""
        caller = arrival.caller
        with self.ledger.read() as connection:
            found = received.find_decision(connection, caller.dataset.id, arrival.identity, caller.token.id, digest)
        return None if found is None else answers.decided(found, 0, digest)

    def _rows(self, arrival: Arrival) -> tuple[pa.Table, Dataset]:
        """Parses again with fresh columns if the body does not fit: a column may have been added since they were read,
        and a sender that knows it must not be refused."""
        arrived_at = monotonic()
        target = self._targets.of(arrival.caller.dataset)
        try:
            return self._read(arrival.packed, target), target.dataset
        except BadRow:
            if target.read_at >= arrived_at:
                raise
            newer = self._targets.of(arrival.caller.dataset, newer_than=target)
            if newer.columns == target.columns:
                raise
        return self._read(arrival.packed, newer), newer.dataset

    def _read(self, packed: Packed, target: DatasetSchema) -> pa.Table:
        return read_body(packed, target.columns, self.settings.rows_bytes_max, self.parts.read_lines)

    async def _record(self, body: UnrecordedBody, caller: ReceiverCaller) -> Reply:
        try:
            decision = await asyncio.wrap_future(self.committer.submit(body))
        except (NotLeader, LeaseOver) as e:  # since the request began
            self._callers.forget(caller)  # the next request is checked again, which may renew the lease
            if isinstance(e, LeaseOver):
                raise self.unavailable(e) from e
            raise await self.in_thread(partial(self._not_leading, e)) from e
        except Exception as e:
            raise self.unavailable(e) from e
        if isinstance(decision, received.New):
            self.gate.added(body.dataset, body.spool_bytes)
        elif isinstance(decision, received.BodyGone | received.OnHold):
            self._callers.forget(caller)
        return answers.decided(decision, body.rows, body.digest)


def _headers(request: Request) -> dict[str, str]:
    """Decodes as UTF-8, because names of lakes and datasets may contain any letter."""
    found: dict[str, str] = {}
    for name, value in request.headers.raw:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found.setdefault(name.decode("latin-1").lower(), text.strip())
    return found


def _form(header: str | None) -> str:
    kind = (header or "").partition(";")[0].strip().lower()
    if kind not in (forward_protocol.JSON_LINES, forward_protocol.ARROW):
        raise EarlyReply(
            answers.not_understood(f"Content-Type is {forward_protocol.JSON_LINES} or {forward_protocol.ARROW}")
        )
    return kind


def _encoding(header: str | None) -> str:
    encoding = (header or "").strip().lower() or "identity"
    if encoding not in forward_protocol.ENCODINGS:
        raise EarlyReply(answers.not_understood(f"Content-Encoding is one of: {', '.join(forward_protocol.ENCODINGS)}"))
    return encoding
