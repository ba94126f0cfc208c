"""The words of the reconciler's record: what the ledger keeps of a run. No I/O. Those of a run itself are in
`reconcile/model.py`.

What happens to a file that a run acts on, and what each state says of the two places that it can be in:

    BEGUN ──moved──▶ HELD ──brought back──▶ RESTORED
      │                └───purge begun────▶ PURGING ──deleted──▶ PURGED
      └──stayed──▶ LEFT                        └──brought back──▶ RESTORED

BEGUN is written before anything moves, so that whatever a crash leaves, there is a record that names both places.
LEFT is what a look at storage said, not a promise: a run that was thought dead may yet move the file, and then says so.
Once it is as old as what is purged, it is done with: RESTORED.
LOST: the file is in neither place, and no record says who took it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

RunId = NewType("RunId", int)
SweptId = NewType("SweptId", int)


class FindingKind(StrEnum):
    MISSING = "missing"
    """An entry of a table whose file is gone."""
    ORPHAN = "orphan"
    """A file in a table's layout that nothing references."""
    FOREIGN = "foreign"
    """A file outside every layout."""
    SUPERSEDED = "superseded"
    """A metadata file that its dataset has gone past. A commit that loses a race leaves one, and is made again: that is
    no drift. It is set aside like an orphan."""


class AbortReason(StrEnum):
    COMMIT_FAILED = "commit_failed"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    REFERENCES_TOO_MANY = "references_too_many"
    GUARD = "guard"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


class StorageKind(StrEnum):
    LOCAL = "local"
    S3 = "s3"


class Event(StrEnum):
    """What the audit log says of runs."""

    RUN_STARTED = "run_started"
    RUN_COMPLETED = "run_completed"
    RUN_ABORTED = "run_aborted"
    ENTRIES_DROPPED = "entries_dropped"
    FILES_QUARANTINED = "files_quarantined"
    FILES_DELETED = "files_deleted"
    FILES_RESTORED = "files_restored"
    FILES_PURGED = "files_purged"
    CAP_HIT = "cap_hit"
    FILE_RELEASED = "file_released"
    """A person said that a file is an orphan which was probably that of a damaged entry."""
    RUN_SETTLED = "run_settled"
    """What a run that died had begun was looked at, and its record made true."""


class SweptState(StrEnum):
    BEGUN = "begun"
    HELD = "held"
    LEFT = "left"
    RESTORED = "restored"
    PURGING = "purging"
    PURGED = "purged"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Counts:
    missing: int = 0
    orphans: int = 0
    foreign: int = 0
    bytes: int = 0
    """Of all but missing files."""
    superseded: int = 0

    @property
    def total(self) -> int:
        return self.missing + self.orphans + self.foreign + self.superseded


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did, apart from what it planned."""

    missing: int = 0
    """Entries that were dropped."""
    orphans: int = 0
    """Files that were quarantined or deleted."""
    foreign: int = 0
    bytes: int = 0
    restored: int = 0
    """Missing files that were in quarantine and were brought back."""
    skipped_recheck: int = 0
    """Candidates that were no longer what was listed, just before they would have been acted on."""
    failed: int = 0
    recheck_failed: int = 0
    """Candidates that could not be looked at again, just before they would have been acted on: they stayed."""
    superseded: int = 0
    """Of a run that died: counted among the orphans."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person, or the schedule, asked of a run."""

    act: bool = False
    delete: bool = False
    accept_loss: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found and did."""

    partial: bool = False
    cap_hit: bool = False
    listed: int = 0
    referenced: int = 0
    found: Counts = Counts()
    planned: Counts = Counts()
    done: Done = Done()
    protected: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    """By table uuid: references, where all could be read."""
    failures: tuple[str, ...] = ()
    """Prefixes, tables and files that could not be read or acted on; bounded."""
    samples: tuple[Mapping[str, Any], ...] = ()
    """The first findings of each kind; bounded."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each."""
    sequences: Mapping[str, int] = field(default_factory=dict)
    """By table uuid: the highest sequence number of Iceberg's that its metadata ever had."""
    suspects: int = 0
    """Files that are probably those of entries whose path is damaged."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    """Tables that were left alone as a whole, and by which guard; bounded."""
    vanished: int = 0
    """Tables that the run before knew, and that the catalog does not have."""
    refusals: tuple[str, ...] = ()
    """Of a report: why a guard would refuse to act on it."""
    clock: Mapping[str, Any] | None = None
    """The moment by the clock that the run went by, if that was to be believed or was refused."""


_SUSPICIOUS = frozenset(("damaged", "nothing_listed"))
"""What protects findings of a table that is not left alone as a whole."""


class Doubt(StrEnum):
    """Why what a run says is not to be taken for the whole truth."""

    REFUSED = "refused"
    """A guard refused to act, or would."""
    PARTIAL = "partial"
    """Not everything could be read: there may be more than was found."""
    SUSPICIOUS = "suspicious"
    """Tables or storage are not what they were, or metadata is damaged."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as the ledger has it."""

    id: RunId
    asked: Asked
    storage: StorageKind
    started_at: datetime
    ended_at: datetime | None
    """None while it runs, and of a run that died until the next one begins."""
    aborted: AbortReason | None
    why: str | None
    outcome: Outcome
    held: int = 0
    """Files that it set aside and that are still there."""
    folder: str | None = None
    """The id of the folder that it looked at, where other machines may have one of their own under its path."""

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """None in a run that looked at everything and has nothing against acting on it."""
        found = self.outcome
        held = {
            Doubt.REFUSED: bool(found.refusals) or self.aborted is AbortReason.GUARD,
            Doubt.PARTIAL: found.partial,
            Doubt.SUSPICIOUS: bool(found.stopped or found.suspects or found.vanished)
            or not _SUSPICIOUS.isdisjoint(found.protected),
        }
        return tuple(doubt for doubt, is_held in held.items() if is_held)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An orphan that is probably the file of an entry whose path is damaged."""

    path: str
    table: str
    entry: str
    """The path that the entry has."""
    released: bool
    """A person said that it is an orphan all the same."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A file that a run acted on, or was about to."""

    id: SweptId
    run: RunId
    kind: FindingKind
    table: str | None
    path: str
    kept_at: str
    """Where it is set aside, as a path of the same storage."""
    size: int
    modified_ns: int | None
    state: SweptState
    begun_at: datetime
    changed_at: datetime
    why: str | None
