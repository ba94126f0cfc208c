"""What the routes share: the lake, threads for what blocks, sessions, and long work."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, cast

from fastapi import Request, Response

from strandline.core.actor import acting_as
from strandline.core.calling_off import called_off_by
from strandline.core.documents import Document, json_text
from strandline.core.errors import StorageError, StrandlineError
from strandline.core.settings.serve import ServeSettings
from strandline.http.verified_callers import VerifiedCallers, bearer_secret
from strandline.jobs.loop import LoopStates
from strandline.jobs.tasks import Tasks
from strandline.ledger.engine import utc_now
from strandline.ledger.ingest.arrivals import Arrivals, count_arrivals
from strandline.ledger.receive import tokens
from strandline.ledger.receive.tokens import Token
from strandline.serve.auth.caller import Caller
from strandline.serve.auth.csrf import SAFE_METHODS
from strandline.serve.auth.login_limit import LoginLimit
from strandline.serve.auth.session_key import load_session_keys
from strandline.serve.auth.sessions import Sessions
from strandline.serve.limits import KnownCallers
from strandline.serve.problems import ledger_away
from strandline.serve.process_metrics import ProcessMetrics
from strandline.serve.snapshot import GaugesSnapshot, Snapshots, StatusSnapshots
from strandline.serve.work import LongWork
from strandline.status.attention import find_attention
from strandline.status.leadership import last_of_arbiter
from strandline.status.metrics import exposition, load_samples

if TYPE_CHECKING:
    from strandline.lake import Lake

_T = TypeVar("_T")
_IDENTIFIED_AT_ONCE = 4  # so that nobody keeps others from reading by asking with tokens that are none
_SHORT_AT_ONCE = 4
_FOR_FOLLOWERS_AT_ONCE = 4  # threads that read offers and rows for followers
_TABLES_AT_ONCE = 4
_STORAGE_AT_ONCE = 4
_CHECKS_AT_ONCE = 3  # each of `health.LakeChecks` has one at a time
# A client gets an answer, also while the catalog or the ledger gives none. The thread that asked it still waits.
TABLE_SECONDS_MAX = 15.0
LEDGER_SECONDS_MAX = 30.0
STORAGE_SECONDS_MAX = 5.0  # an answer shows what was read until then


class ServeContext:
    """One per application. `close` waits for requests that are under way in threads."""

    def __init__(self, lake: Lake, *, tls: bool, loops: LoopStates | None = None) -> None:
        self.lake = lake
        self.loops = loops or LoopStates()
        self.settings: ServeSettings = lake.config.settings.serve
        self.cookie_secure = tls or self.settings.cookie_secure
        self.ending = threading.Event()  # set when the server shall stop: streams without an end are ended then
        self._over = threading.Event()  # set when nobody is answered any more: what requests still do is called off
        self.streams: Counter[str] = Counter()  # open event streams by token; used from the event loop only
        self.segments = 0  # that are being sent to followers; used from the event loop only
        self.keys = load_session_keys(lake.config)
        self.sessions = Sessions(
            lake.ledger,
            self.keys,
            idle=timedelta(minutes=self.settings.session_idle_minutes),
            lasts_max=timedelta(hours=self.settings.session_hours_max),
        )
        self._verified = VerifiedCallers[Caller]()
        self.known = KnownCallers()
        self.logins = LoginLimit(self.settings.logins_per_minute_max)
        self._reading = ThreadPoolExecutor(self.settings.reads_at_once_max, "strandline-read")
        self._identifying = ThreadPoolExecutor(_IDENTIFIED_AT_ONCE, "strandline-identify")
        self._changing_shortly = ThreadPoolExecutor(_SHORT_AT_ONCE, "strandline-short-change")
        self._changing = ThreadPoolExecutor(self.settings.changes_at_once_max, "strandline-change")
        # A catalog on another machine may hang. Requests that ask it have their own threads, so only they wait for it.
        self._tables = ThreadPoolExecutor(_TABLES_AT_ONCE, "strandline-table")
        self._storage = ThreadPoolExecutor(_STORAGE_AT_ONCE, "strandline-storage")  # and so may a bucket
        self._checking = ThreadPoolExecutor(_CHECKS_AT_ONCE, "strandline-check")
        self._for_followers = ThreadPoolExecutor(_FOR_FOLLOWERS_AT_ONCE, "strandline-follower")
        self.metrics = ProcessMetrics()
        self._arrivals: Arrivals | None = None  # used by one reading of the status at a time
        self.status = StatusSnapshots(
            lake.status,
            self.in_thread,
            count_rows=self._count_rows,
            refresh_seconds=self.settings.refresh_seconds,
            measured=self.metrics.readings.observe,
        )
        self.gauges = Snapshots(
            self._load_gauges,
            self.in_thread,
            refresh_seconds=self.settings.refresh_seconds,
            measured=self.metrics.readings.observe,
        )
        tasks = Tasks(
            lake.ledger,
            lease_seconds=lake.config.settings.ingest.lease_seconds,
            at_once_max=self.settings.work_at_once_max,
            judge=find_attention,
        )
        self.work = LongWork(tasks, stop_seconds_max=lake.config.settings.run.part_seconds_max)

    def _load_gauges(self, began: float, last: GaugesSnapshot | None) -> GaugesSnapshot:
        lake = self.lake
        found = load_samples(lake.config, lake.ledger, lake.id, last_of_arbiter(lake.replication))
        return GaugesSnapshot(exposition(found).encode(), began)

    def _count_rows(self) -> int:
        with self.lake.ledger.read_consistent() as connection:
            self._arrivals = count_arrivals(connection, self._arrivals)
        return self._arrivals.rows

    def end(self) -> None:
        """Ends streams, and calls long work off. The server still answers."""
        self.ending.set()
        self.work.call_all_off()

    def close(self) -> None:
        self.work.close()
        self._over.set()
        reading = (self._identifying, self._reading, self._tables, self._storage, self._checking, self._for_followers)
        for pool in (*reading, self._changing_shortly, self._changing):
            pool.shutdown(wait=True, cancel_futures=True)
        self.metrics.close()

    async def find_caller(self, request: Request, *, only_reads: bool = False) -> Caller | None:
        """By the token in the header or, without one, by the cookie. A request that changes something asks the ledger
        each time. For one that only reads, a caller that was verified VERIFIED_SECONDS ago is enough."""
        header = request.headers.get("authorization")
        secret = bearer_secret(header)
        session = self.sessions.id_of(request) if header is None else None
        if secret is None and session is None:
            self.known.note(request.scope, verified=False)
            return None

        async def ask() -> Caller | None:
            named, find = (session, self.sessions.find) if secret is None else (secret, self._find_token)
            token = await self.identify(lambda: find(str(named)))
            return None if token is None else Caller(token, session)

        changes = request.method not in SAFE_METHODS and not only_reads
        found = await (ask() if changes else self._verified.find_or_ask((secret, session), ask))
        valid = None if found is None or found.token.is_expired(utc_now()) else found
        self.known.note(request.scope, verified=valid is not None)
        return valid

    def _find_token(self, secret: str) -> Token | None:
        return self.lake.ledger.query(tokens.find, secret)

    async def identify(self, ask: Callable[[], _T], *, logs_in: bool = False) -> _T:
        """Asks the ledger who sends a request. Raises Problem if it does not answer."""
        pool = self._changing_shortly if logs_in else self._identifying
        asked = asyncio.get_running_loop().run_in_executor(pool, ask)
        try:
            return await _answered(asked, "ledger", LEDGER_SECONDS_MAX)
        except StrandlineError as e:
            raise ledger_away(e, self.settings.retry_after_seconds) from e

    async def in_thread(self, ask: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, ask)

    async def in_check_thread(self, ask: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._checking, ask)

    async def in_follower_thread(self, ask: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._for_followers, ask)

    async def read(self, caller: Caller, ask: Callable[[], object]) -> Response:
        """Answers with the document that `ask` returns, in a thread."""
        return answer(await self.ask_ledger(caller, ask))

    async def ask_ledger(self, caller: Caller, ask: Callable[[], _T]) -> _T:
        """What `ask` returns. Raises StorageError if that takes longer than LEDGER_SECONDS_MAX."""
        return await _answered(self._acting(self._reading, caller, ask), "ledger", LEDGER_SECONDS_MAX)

    async def try_storage(self, caller: Caller, read: Callable[[threading.Event], None]) -> None:
        """Lets `read` run for STORAGE_SECONDS_MAX. Then its event is set, and its result is ignored."""
        late = threading.Event()
        reading = asyncio.ensure_future(self._acting(self._storage, caller, lambda: read(late)))
        try:
            await asyncio.wait({reading}, timeout=STORAGE_SECONDS_MAX)
            if reading.done():
                reading.result()
        finally:
            late.set()
            reading.cancel()

    async def read_for_follower(self, caller: Caller, ask: Callable[[], object]) -> Response:
        """The same for what may open tables and takes as long as they do."""
        return answer(await self._acting(self._for_followers, caller, ask))

    async def read_table(self, caller: Caller, ask: Callable[[], object]) -> Response:
        """The same for what opens one table. Raises StorageError if that takes longer than TABLE_SECONDS_MAX."""
        return answer(await _answered(self._acting(self._tables, caller, ask), "catalog", TABLE_SECONDS_MAX))

    async def change(
        self, caller: Caller, do: Callable[[], object], *, status: int = 200, is_short: bool = False
    ) -> Response:
        """The same for what changes something, in threads of its own: it may wait for a destination. `is_short`: it
        does not, and must not wait for one that does."""
        return answer(await self._changed(caller, do, is_short=is_short), status=status)

    async def note(self, caller: Caller, do: Callable[[], object]) -> Response:
        """The same for what programs say every second: a short change that the next reading of the lake shows."""
        return answer(await self._acting(self._changing_shortly, caller, do))

    async def start(self, caller: Caller, begin: Callable[[], Document]) -> Response:
        """Answers 202 with the document of what was begun; its `place` shows it."""
        document = await self._changed(caller, begin)
        return answer(document, status=202, headers={"Location": document["place"]})

    async def _changed(self, caller: Caller, do: Callable[[], _T], *, is_short: bool = False) -> _T:
        try:
            return await self._acting(self._changing_shortly if is_short else self._changing, caller, do)
        finally:
            self.status.outdate()
            self.gauges.outdate()
            self._verified.clear()  # a token or a session may have ended

    async def _acting(self, pool: ThreadPoolExecutor, caller: Caller, do: Callable[[], _T]) -> _T:
        def run() -> _T:
            with acting_as(caller.actor), called_off_by(self._over):
                return do()

        return await asyncio.get_running_loop().run_in_executor(pool, run)


async def _answered(asking: Awaitable[_T], whom: str, seconds_max: float) -> _T:
    asked = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({asked}, timeout=seconds_max)
        if not asked.done():
            raise StorageError(
                f"the {whom} has not answered for {seconds_max:g} s",
                hint=f"Check that the {whom} can be reached from the server.",
            )
        return asked.result()
    finally:
        asked.cancel()  # what has not begun yet does not begin


def context_of(request: Request) -> ServeContext:
    return cast("ServeContext", request.app.state.context)


def is_limited(request: Request) -> bool:
    """Whether its caller sees only some datasets. False as long as nobody knows who sent it."""
    return getattr(request.state, "is_limited", False)


def answer(document: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json_text(document).encode("utf-8", "replace")  # a stored name may be no valid text
    return Response(text, status, dict(headers or {}), "application/json")


def address_of(request: Request) -> str:
    return "unknown" if request.client is None else request.client.host
