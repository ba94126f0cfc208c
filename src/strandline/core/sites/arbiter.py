"""The record of a lake's arbiter, which says who leads. No I/O.

All sites of a lake reach the arbiter. Its record is changed only by a conditional put: a put that names an older
version changes nothing. The rules are those of docs/adr/0071."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from strandline.core.documents import fields_of
from strandline.core.errors import FailedError, StorageError

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A site that may be promoted. One that was made again under the same number is another one."""

    number: int
    instance: str


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    lake: str
    term: int
    site: int  # the number of the site that has the term
    name: str
    address: str | None  # where others reach that site; None: not set
    leads: bool  # False: it has taken the term, and does not lead yet
    before: int | None  # the term that this one replaced; None: there was no leader before
    members: frozenset[Member]  # they have every row that a sink was promised
    lease_seconds: float
    beat: int = 0  # raised with each put: a record whose beat does not rise is no longer renewed
    claim: str | None = None  # of the promotion that took the term; None: none did


class RecordUnreadable(FailedError):
    pass


def encode(record: LeaderRecord, nonce: str) -> bytes:
    """`nonce` identifies a put whose answer was lost."""
    members = [[m.number, m.instance] for m in sorted(record.members)]
    document = {"version": VERSION} | fields_of(record) | {"members": members, "nonce": nonce}
    return json.dumps(document, indent=1).encode()


def decode(body: bytes) -> tuple[LeaderRecord, str]:
    """The record and its nonce. Raises `RecordUnreadable`."""
    hint = "Restore what the arbiter held. Until then nobody can be promoted, and the leader refuses rows."
    try:
        found = json.loads(body)
        version = found["version"]
        record = LeaderRecord(
            lake=str(found["lake"]),
            term=int(found["term"]),
            site=int(found["site"]),
            name=str(found["name"]),
            address=None if found["address"] is None else str(found["address"]),
            leads=bool(found["leads"]),
            before=None if found["before"] is None else int(found["before"]),
            members=frozenset(Member(int(number), str(instance)) for number, instance in found["members"]),
            lease_seconds=float(found["lease_seconds"]),
            beat=int(found["beat"]),
            claim=None if found.get("claim") is None else str(found["claim"]),
        )
        nonce = str(found["nonce"])
    except (ValueError, KeyError, TypeError) as e:
        raise RecordUnreadable("the arbiter's record is damaged", hint=hint) from e
    if version != VERSION:
        raise RecordUnreadable(
            f"the arbiter's record has version {version}, and this program knows {VERSION}",
            hint="Use the newer version of Strandline that wrote it.",
        )
    return record, nonce


@dataclass(frozen=True, slots=True)
class StoredRecord:
    body: bytes
    # What a conditional put names. It includes a digest of the body: an arbiter that is restored repeats counts.
    version: str


def version_of(count: int, body: bytes) -> str:
    return f"{count}-{sha256(body).hexdigest()}"


def count_and_digest(version: str) -> tuple[int, str]:
    count, _, digest = version.partition("-")
    return int(count), digest


class CellMoved(Exception):
    """Refused: the cell no longer has the version that the put named. Nothing was written."""


class CellUnclear(StorageError):
    """Unknown: the put was sent and not answered. It may have landed, or land later."""


class Cell(Protocol):
    """One small object that is replaced by conditional put. Raises `StorageError` if it cannot be reached; then nothing
    was written."""

    @property
    def place(self) -> str:
        """For messages: without secrets."""

    def read(self) -> StoredRecord | None:
        """None: nothing was ever written."""

    def write(self, body: bytes, *, over: str | None) -> str:
        """Replaces the version `over`; None: there must be nothing yet. Returns the new version, durable. Raises
        `CellMoved`, `CellUnclear`."""
