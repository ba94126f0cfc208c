"""The HTTP contract between sender and receiver: headers, outcomes, and the identity of a body. No I/O.

A Strandline sender identifies its rows by a range, any other client by a key (`Idempotency-Key`). The receiver
recognizes a repeat by it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

from strandline.core.errors import UsageError
from strandline.core.text.bounded_text import check_text
from strandline.core.types import Seq, SeqRange

RECEIVER = "Strandline-Receiver"  # in every response of a receiver, with `VERSION`; senders can ask it what it holds
VERSION = "1"

LAKE = "Strandline-Lake"
INSTANCE = "Strandline-Sink"
GENERATION = "Strandline-Generation"
TERM = "Strandline-Term"
DATASET = "Strandline-Dataset"
PARTITION = "Strandline-Partition"
RANGE = "Strandline-Range"
KEY = "Idempotency-Key"
DIGEST = "Content-Digest"

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
ENCODINGS = ("identity", "gzip", "zstd")

KEY_CHARS_MAX = 255
_ALGORITHMS = {"sha-256": "sha256", "sha-512": "sha512"}
PARTITION_BYTES_MAX = 16 << 10  # what servers accept as a header


class Answer(StrEnum):
    """The `outcome` in the body of every response."""

    ACCEPTED = "accepted"
    CONFLICT = "conflict"  # 409, with `held`: the ranges that overlap
    IN_FLIGHT = "in_flight"  # 409: a request with the same key is in progress
    OTHER_BODY = "other_body"  # 422, with the stored `digest`: the key was used for another body
    TERM_PASSED = "term_passed"  # 409, with `term`: another site leads the sender's lake since then
    NOT_CLAIMED = "not_claimed"  # 409, with the last claimed `generation` or None: the sender must claim the next first
    BAD_BODY = "bad_body"  # 400, with `why` and `line` (from 1; None if it is not about one line)
    BAD_DIGEST = "bad_digest"  # 400: the body was damaged in transit, so its digest differs; the rows are fine
    BAD_REQUEST = "bad_request"  # 400: invalid headers
    TOO_LARGE = "too_large"  # 413, with `limit`: bytes, before or after decompression
    NOT_UNDERSTOOD = "not_understood"  # 415: an unknown type or encoding
    BUSY = "busy"  # 429 or 503, with Retry-After
    NO_TOKEN = "no_token"  # 401
    NOT_ALLOWED = "not_allowed"  # 403: the token is not for this dataset, or not for this sender's lanes
    NO_DATASET = "no_dataset"  # 404


@dataclass(frozen=True, slots=True)
class LaneName:
    """The name of a sender's lane: unique among all senders."""

    lake: str
    instance: str
    generation: int
    dataset: str
    partition: str  # encoded injectively; empty for a dataset without logical partitions


@dataclass(frozen=True, slots=True)
class RangeIdentity:
    lane: LaneName
    rows: SeqRange
    term: int | None = None  # in which the sender leads its lake; None: it does not say, or it was checked before


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    key: str


BodyIdentity = RangeIdentity | KeyIdentity


def chunk_key(identity: RangeIdentity) -> str:
    """The chunk's stable idempotency key, for servers that know no ranges."""
    lane = identity.lane
    name = "\0".join((lane.lake, lane.instance, str(lane.generation), lane.dataset, lane.partition))
    return f"sl-{hashlib.sha256(name.encode()).hexdigest()[:32]}-{identity.rows.lo}-{identity.rows.hi}"


def identity_headers(identity: RangeIdentity) -> dict[str, str]:
    """All values are ASCII: partitions are encoded already, and the name of an adopted table, any text, is quoted."""
    lane = identity.lane
    term = {} if identity.term is None else {TERM: str(identity.term)}
    return term | {
        LAKE: lane.lake,
        INSTANCE: lane.instance,
        GENERATION: str(lane.generation),
        DATASET: quote(lane.dataset, safe=""),
        PARTITION: lane.partition,
        RANGE: f"{identity.rows.lo}-{identity.rows.hi}",
        KEY: chunk_key(identity),
    }


def parse_identity(headers: Mapping[str, str]) -> BodyIdentity:
    """Parses headers with lower-case names. `UsageError` has a message for the client."""
    given = {name: headers.get(name.lower()) for name in (LAKE, INSTANCE, GENERATION, DATASET, RANGE)}
    if any(value is not None for value in given.values()):
        if missing := [name for name, value in given.items() if not value]:
            raise UsageError(f"the header {missing[0]} is missing")
        lane = LaneName(
            check_text(LAKE, given[LAKE] or ""),
            check_text(INSTANCE, given[INSTANCE] or ""),
            _positive(GENERATION, given[GENERATION]),
            check_text(DATASET, _unquoted(given[DATASET] or "")),
            check_text(PARTITION, headers.get(PARTITION.lower()) or "", PARTITION_BYTES_MAX),
        )
        term = headers.get(TERM.lower())
        return RangeIdentity(lane, parse_range(given[RANGE] or ""), None if term is None else _positive(TERM, term))
    key = headers.get(KEY.lower())
    if not key:
        raise UsageError(
            f"the header {KEY} is missing", hint="Any text that names this body, the same when it is sent again."
        )
    if len(key) > KEY_CHARS_MAX:
        raise UsageError(f"{KEY} is longer than {KEY_CHARS_MAX} characters")
    return KeyIdentity(check_text(KEY, key, 4 * KEY_CHARS_MAX))


def _unquoted(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UsageError(f"{DATASET} is not UTF-8: {text[:50]!r}") from None


def parse_range(text: str) -> SeqRange:
    found = re.fullmatch(r"([0-9]{1,19})-([0-9]{1,19})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) < 2**63:
        raise UsageError(f"{RANGE} is not a range: {text[:50]!r}", hint="`lo-hi`, both inclusive, from 1.")
    return SeqRange(Seq(int(found[1])), Seq(int(found[2])))


def _positive(name: str, text: str | None) -> int:
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise UsageError(f"{name} is not a number from 1 on: {(text or '')[:50]!r}")
    return int(text)


def content_digest(body: bytes | memoryview) -> str:
    """The digest of the bytes as they are sent, in the notation of RFC 9530."""
    return f"sha-256={_digest('sha256', body)}"


def _digest(algorithm: str, body: bytes | memoryview) -> str:
    return f":{base64.b64encode(hashlib.new(algorithm, body).digest()).decode()}:"


def digest_fits(header: str, body: bytes | memoryview) -> bool:
    """Whether all digests in the header that we can check match the body. Unknown algorithms are ignored."""
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        algorithm = _ALGORITHMS.get(name.strip().lower())
        if algorithm is not None and value.strip() != _digest(algorithm, body):
            return False
    return True
