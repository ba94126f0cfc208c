"""Fetches the rows of a range from a leader's API, in a Spark task. Yields verified batches only. After a broken
connection or a changed byte, it requests the rows after the last verified one.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from strandline.core.errors import FailedError, SegmentDamaged, StorageError
from strandline.core.retry import RetryPolicy
from strandline.core.text.whole_number import whole_number
from strandline.core.types import SEQ_COLUMN

if TYPE_CHECKING:
    import httpx
    import pyarrow as pa

ATTEMPTS_MAX = 5  # in a row, without a verified batch in between
CONNECT_SECONDS_MAX = 10.0
SILENCE_SECONDS_MAX = 60.0
BUSY_SECONDS_MAX = 900.0  # of waiting for a busy leader, without a verified batch in between
BUSY_PAUSE_SECONDS_MAX = 30.0
_PAUSE_SECONDS = 0.4


@dataclass(frozen=True)
class LeaderAddress:
    url: str  # without a slash at the end
    token: str | None = field(repr=False, default=None)

    def client(self) -> httpx.Client:
        import httpx

        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        timeout = httpx.Timeout(SILENCE_SECONDS_MAX, connect=CONNECT_SECONDS_MAX)
        return httpx.Client(
            base_url=f"{self.url}/api/v1/replication/", headers=headers, timeout=timeout, verify=_trusted()
        )


@cache
def _trusted() -> ssl.SSLContext:
    """Once per process: it reads the certificates of all authorities, which takes longer than most requests."""
    import httpx

    return httpx.create_ssl_context()


@dataclass(frozen=True)
class WantedRange:
    """A range of a dataset."""

    dataset: str
    lo: int
    hi: int
    only_numbers: bool = False


class _Body:
    """The bytes of an answer as they arrive, as a file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = b""

    def read(self, size: int) -> bytes:
        parts, length = [self._left], len(self._left)
        while length < size and (more := next(self._parts, b"")):
            parts.append(more)
            length += len(more)
        whole = b"".join(parts)
        self._left = whole[size:]
        return whole[:size]


def fetch_schema(leader: LeaderAddress, wanted: WantedRange) -> pa.Schema:
    """The Arrow schema of the range, with the ids of the leader's columns; no rows are read. Raises as `fetch_rows`."""
    # Read to the end, which verifies the schema: a column name could have been changed on the way.
    rows = _SegmentFetch(leader, wanted, wanted.hi)
    for _ in rows:
        pass
    assert rows.schema is not None
    return rows.schema


def fetch_rows(leader: LeaderAddress, wanted: WantedRange) -> Iterator[pa.RecordBatch]:
    """All rows of the range once, in the order of numbers. Raises SegmentDamaged or StorageError if retries did not
    help, and FailedError if the leader refuses."""
    return iter(_SegmentFetch(leader, wanted, wanted.lo - 1))


class _SegmentFetch:
    """The rows above a number. `schema` is that of the last answer."""

    def __init__(self, leader: LeaderAddress, wanted: WantedRange, behind: int) -> None:
        self._leader = leader
        self._wanted = wanted
        self._behind = behind
        self.schema: pa.Schema | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        import httpx

        waited = 0.0
        with self._leader.client() as client:
            for attempt in RetryPolicy(_PAUSE_SECONDS, attempts_max=ATTEMPTS_MAX).attempts():
                try:
                    for batch in self._answer(client):
                        self._behind, waited = int(batch.column(SEQ_COLUMN)[-1].as_py()), 0.0
                        attempt.has_progressed = True
                        yield batch
                    return
                except Busy as e:
                    if waited >= BUSY_SECONDS_MAX:
                        raise StorageError(
                            f"the leader at {self._leader.url} sends too many other segments: {e}",
                            hint="The follower tries again. Lower `follow.items_at_once_max`, here or elsewhere.",
                        ) from e
                    waited += e.seconds
                    time.sleep(random.uniform(e.seconds / 2, e.seconds))
                    attempt.has_progressed = attempt.at_once = True  # 429 counts as an answer, not as a failure
                except (SegmentDamaged, httpx.TransportError, TryAgain) as e:
                    if attempt.is_last and not attempt.has_progressed:
                        if isinstance(e, SegmentDamaged):
                            raise
                        raise StorageError(
                            f"the leader at {self._leader.url} does not answer: {str(e) or type(e).__name__}",
                            hint="The follower tries again. Check the network, and that `strandline serve` runs there.",
                        ) from e

    def _answer(self, client: httpx.Client) -> Iterator[pa.RecordBatch]:
        from strandline.replicate.segment_stream import SegmentReader, request_name

        wanted, behind = self._wanted, self._behind
        request = request_name(wanted.dataset, wanted.lo, wanted.hi, behind, wanted.only_numbers)
        with _segment(client, wanted, behind) as answer:
            reader = SegmentReader(_Body(answer.iter_bytes()), behind=behind, request=request)
            self.schema = reader.schema
            yield from reader


def column_ids(schema: pa.Schema) -> frozenset[tuple[str, int | None]]:
    """Each column of the stream, also nested ones, as its path and its id in the leader's table."""
    return frozenset(_ids_in(list(schema), ""))


def _ids_in(fields: Sequence[pa.Field[Any]], above: str) -> Iterator[tuple[str, int | None]]:
    from strandline.iceberg.arrow_nested import field_id

    for column in fields:
        path, kind = f"{above}.{column.name}", cast("Any", column.type)
        yield path, field_id(column)
        yield from _ids_in([kind.field(i) for i in range(kind.num_fields)], path)


def with_text_uuids(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Spark reads Iceberg's uuids as text; Arrow has them as 16 bytes."""
    import pyarrow as pa

    from strandline.iceberg.arrow_nested import uuid_texts

    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        at = wanted.get_field_index(name)
        is_bytes = pa.types.is_fixed_size_binary(_storage(column).type) and _storage(column).type.byte_width == 16
        is_uuid = at >= 0 and is_bytes and pa.types.is_string(wanted.field(at).type)
        columns.append(uuid_texts(column) if is_uuid else column)
    return pa.record_batch(columns, names=rows.schema.names)


def _storage(column: Any) -> Any:
    return getattr(column, "storage", column)


class TryAgain(Exception):
    """The leader, or a proxy before it, cannot answer now."""


class Busy(TryAgain):
    """The leader sends as many segments at once as it allows. Other fetches progress meanwhile, so this is no
    failure."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


@contextmanager
def _segment(client: httpx.Client, wanted: WantedRange, behind: int) -> Iterator[httpx.Response]:
    params: dict[str, str | int | bool] = {
        "dataset": wanted.dataset, "lo": wanted.lo, "hi": wanted.hi, "behind": behind,
        "only_numbers": wanted.only_numbers,
    }  # fmt: skip
    with client.stream("GET", "segment", params=params) as answer:
        check_answer(answer)
        yield answer


def check_answer(answer: httpx.Response) -> None:
    """Raises FailedError if the leader refuses, and `TryAgain` if it may answer later."""
    if answer.is_success:
        return
    answer.read()
    if answer.status_code == 429:
        raise Busy("it answered 429", _busy_seconds(answer.headers.get("Retry-After")))
    if answer.status_code >= 500:
        raise TryAgain(f"it answered {answer.status_code}")
    raise FailedError(f"the leader refuses: {_reason(answer)}", hint=_HINTS.get(answer.status_code))


def _busy_seconds(retry_after: str | None) -> float:
    asked = whole_number(retry_after or "")
    return min(BUSY_PAUSE_SECONDS_MAX, max(0.5, float(asked or 0)))


def lacks_path(answer: httpx.Response) -> bool:
    """Whether the leader lacks this path. For a dataset that it does not have, it answers 404 with another type."""
    return answer.status_code == 404 and _problem(answer).get("type") == _NOT_FOUND


_NOT_FOUND = "urn:strandline:problem:not-found"
_HINTS = {
    401: "It does not know the token, or has revoked it: `strandline follower add NAME` at the leader makes one.",
    403: "The token is not a follower's: `strandline follower add NAME` at the leader makes one.",
}


def _reason(answer: httpx.Response) -> str:
    document = _problem(answer)
    return str(document.get("detail") or document.get("title") or f"it answered {answer.status_code}")


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
