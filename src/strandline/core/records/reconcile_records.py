"""The types of the reconciler's records in the ledger. No I/O. The types of a run itself are in `reconcile/model.py`.

The states of a file that a run acts on:

    BEGUN ──moved──▶ HELD ──brought back──▶ RESTORED
      │                └───purge begun────▶ PURGING ──deleted──▶ PURGED
      └──stayed──▶ LEFT                        └──brought back──▶ RESTORED

BEGUN is written before the file moves. So whatever a crash leaves, there is a record that names both places.
LEFT is what storage showed, not a promise: a run that was wrongly taken for dead may still move the file, and records
that then. When it is as old as files that are purged, it becomes RESTORED.
LOST: the file is in neither place, and no record says who removed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from strandline.core.actor import Actor

ReconcileRunId = NewType("ReconcileRunId", int)
SweptId = NewType("SweptId", int)


class FindingKind(StrEnum):
    MISSING = "missing"  # an entry of a table whose file is gone
    ORPHAN = "orphan"  # a file in a table's layout that nothing references
    FOREIGN = "foreign"  # a file outside every layout
    # An old metadata file of a dataset. A commit that loses a race and is retried leaves one, so it is no drift. It is
    # quarantined like an orphan file.
    SUPERSEDED = "superseded"


class AbortReason(StrEnum):
    COMMIT_FAILED = "commit_failed"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    REFERENCES_TOO_MANY = "references_too_many"
    GUARD = "guard"
    TIMEOUT = "timeout"
    DIED = "died"  # its process has stopped renewing its lease
    UNKNOWN = "unknown"


class StorageKind(StrEnum):
    LOCAL = "local"
    S3 = "s3"


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
    bytes: int = 0  # of all but missing files
    superseded: int = 0

    @property
    def total(self) -> int:
        return self.missing + self.orphans + self.foreign + self.superseded


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did, as opposed to what it planned."""

    missing: int = 0  # entries dropped
    orphans: int = 0  # files quarantined or deleted
    foreign: int = 0
    bytes: int = 0
    restored: int = 0  # missing files that were in quarantine and were brought back
    skipped_recheck: int = 0  # candidates that had changed since they were listed, when they were checked again
    failed: int = 0
    recheck_failed: int = 0  # candidates that could not be checked again, so they stayed
    superseded: int = 0

    @property
    def total(self) -> int:
        """Findings that were acted on."""
        return self.missing + self.orphans + self.foreign + self.restored + self.superseded


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person or the schedule requested."""

    act: bool = False
    delete: bool = False
    accept_loss: bool = False


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    partial: bool = False
    cap_hit: bool = False
    listed: int = 0
    referenced: int = 0
    found: Counts = Counts()
    planned: Counts = Counts()
    done: Done = Done()
    protected: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)  # references by table uuid, if all could be read
    failures: tuple[str, ...] = ()  # prefixes, tables and files that could not be read or acted on; bounded
    samples: tuple[Mapping[str, Any], ...] = ()  # the first findings of each kind; bounded
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds per phase
    sequences: Mapping[str, int] = field(default_factory=dict)  # the highest Iceberg sequence number by table uuid
    suspects: int = 0  # files that probably belong to entries with a damaged path
    stopped: Mapping[str, str] = field(default_factory=dict)  # tables that a guard excluded, and which guard; bounded
    vanished: int = 0  # tables that the previous run knew and the catalog does not have
    refusals: tuple[str, ...] = ()  # in a report: why a guard would refuse to act
    clock: Mapping[str, Any] | None = None  # the time that the run used, if it was trusted or refused
    settled: bool = False  # the run died or ended early, and another run has settled everything that it left


# The reasons that protect findings of a table which is not excluded as a whole.
_SUSPICIOUS = frozenset(("damaged", "nothing_listed"))


class Doubt(StrEnum):
    """Why the result of a run may be incomplete or wrong."""

    REFUSED = "refused"  # a guard refused to act, or would
    PARTIAL = "partial"  # not everything could be read: there may be more than was found
    SUSPICIOUS = "suspicious"  # tables or storage changed unexpectedly, or metadata is damaged


@dataclass(frozen=True, slots=True)
class ReconcileRun:
    id: ReconcileRunId
    asked: Asked
    storage: StorageKind
    started_at: datetime
    ended_at: datetime | None  # None while it runs
    aborted: AbortReason | None
    why: str | None
    outcome: SweepOutcome
    held: int = 0  # files of the run that are still in quarantine
    folder: str | None = None  # the id of its folder, if other machines may have another folder at the same path
    actor: Actor | None = None  # None: recorded by a version that did not store it
    stop_asked_at: datetime | None = None  # None: nobody has called it off

    @property
    def has_compared(self) -> bool:
        """Whether it is known what the run found. False for a run that is under way or ended early and has counted
        nothing yet."""
        is_complete = self.ended_at is not None and self.aborted is None
        return is_complete or bool(self.outcome.listed or self.outcome.referenced)

    @property
    def is_done_known(self) -> bool:
        """Whether `outcome.done` is all that the run did: it has ended or, if it died while it acted, another run has
        settled what it left."""
        if not self.asked.act:
            return True
        return self.ended_at is not None and (self.aborted is not AbortReason.DIED or self.outcome.settled)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Empty for a run that read everything and found no reason not to act."""
        found = self.outcome
        applies = {
            Doubt.REFUSED: bool(found.refusals) or self.aborted is AbortReason.GUARD,
            Doubt.PARTIAL: found.partial,
            Doubt.SUSPICIOUS: bool(found.stopped or found.suspects or found.vanished)
            or not _SUSPICIOUS.isdisjoint(found.protected),
        }
        return tuple(doubt for doubt, does_apply in applies.items() if does_apply)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An orphan file that probably belongs to an entry with a damaged path."""

    path: str
    table: str
    entry: str  # the path in the entry
    released: bool  # a person decided that it is an orphan file


@dataclass(frozen=True, slots=True)
class Swept:
    """A file that a run acted on, or was about to act on."""

    id: SweptId
    run: ReconcileRunId
    kind: FindingKind
    table: str | None
    path: str
    kept_at: str  # its place in quarantine, as a path of the same storage
    size: int
    modified_ns: int | None
    state: SweptState
    begun_at: datetime
    changed_at: datetime
    why: str | None
