"""The guards: what must not be touched, and why. Each is a pure function that refuses by returning its reason.

All guards are asked. Of those that refuse, the first in the order of `Protection` is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.core.types import SeqRange
from strandline.ledger.receive.receipts import BODY_SUFFIX
from strandline.reconcile.model import FileContent, LastPublished, LedgerContext, Lineage, Protection, TableSeal
from strandline.reconcile.paths import is_under

if TYPE_CHECKING:
    from strandline.reconcile.references.missing_entries import Entry

SPOOL_IN_HAND_SECONDS = 3_600
_ORDER = {protection: n for n, protection in enumerate(Protection)}


def first(reasons: Iterable[Protection | None]) -> Protection | None:
    return min((reason for reason in reasons if reason is not None), key=_ORDER.__getitem__, default=None)


# ---- time ------------------------------------------------------------------------------------------------------------


def by_time(modified_ns: int | None, ledger_context: LedgerContext) -> Protection | None:
    """Exact: a file is old enough at the age of the grace window plus the clock skew, and no younger. A file without a
    time, with time zero or with a future time counts as young."""
    if modified_ns is None or modified_ns <= 0:
        return Protection.NO_TIME
    if modified_ns > ledger_context.now_ns:
        return Protection.FUTURE_TIME
    if modified_ns > ledger_context.young_after_ns:
        return Protection.YOUNG
    # A file of a block or job that has been open for long may be as old as that.
    for began_ns, reason in (
        (ledger_context.oldest_open_block_ns, Protection.OPEN_BLOCK),
        (ledger_context.oldest_job_ns, Protection.OPEN_JOB),
    ):
        if began_ns is not None and modified_ns >= began_ns - ledger_context.clock_skew_seconds * 1_000_000_000:
            return reason
    return None


def by_spool(modified_ns: int | None, table_uuid: str, name: str, ledger_context: LedgerContext) -> Protection | None:
    """A body is written before it is recorded. A ledger that does not know the dataset cannot know its bodies. A file
    with a note belongs to the receiver: the ledger may have forgotten an acknowledged body."""
    if name.endswith(BODY_SUFFIX):
        return Protection.ACKNOWLEDGED
    if table_uuid not in ledger_context.spool_tables:
        return Protection.NOT_A_DATASET
    in_hand = modified_ns is None or modified_ns > ledger_context.now_ns - SPOOL_IN_HAND_SECONDS * 1_000_000_000
    return Protection.YOUNG if in_hand else None


# ---- tables ----------------------------------------------------------------------------------------------------------


def by_emptiness(*, references: int, contents: int, listed: int) -> Protection | None:
    """A table that references no content while its folder has files: its metadata was replaced, or belongs to something
    else. `listed` counts the files in its folder."""
    return Protection.REFERENCES_EMPTY if contents == 0 and listed > references else None


def by_shrinking(*, contents: int, before: int | None, listed: int, shrink_max: float) -> Protection | None:
    """The same for a table that references much less than at the last run. Only data and delete files count, on both
    sides: every table keeps old metadata files, and expiry removes most references to them."""
    least = 0 if before is None else before * (1 - shrink_max)
    return Protection.REFERENCES_SHRUNK if contents < least <= listed else None


def by_lineage(
    lineage: Lineage | None, *, before: int | None, published: Sequence[LastPublished], skew_seconds: int
) -> Protection | None:
    """A table that is behind what an earlier run saw, or behind the ledger: the catalog is an older copy, and
    everything committed since then looks like garbage. Iceberg's sequence numbers never go back, not even when somebody
    rolls main back. A rollback shows in what was published, until a person says that it is meant."""
    if lineage is None:
        return None
    has_gone_back = before is not None and lineage.sequence is not None and lineage.sequence < before
    newest_ns = max((block.reserved_ns for block in published if block.reserved_ns is not None), default=0)
    is_older = lineage.updated_ns < newest_ns - skew_seconds * 1_000_000_000
    is_without = any(lineage.contains(block.snapshot) is False for block in published)
    return Protection.ROLLED_BACK if has_gone_back or is_older or is_without else None


def by_identity(uuid: str, expected: str | None) -> Protection | None:
    """Table ids are random: two that differ in one bit are one id, of which one copy is damaged. A different id is a
    different table, and `LedgerContextLoader.gate` checks the catalog as a whole for that."""
    return Protection.DAMAGED if expected is not None and is_one_bit_off(uuid, expected) else None


def is_one_bit_off(one: str, other: str) -> bool:
    if len(one) != len(other):
        return False
    return sum((ord(a) ^ ord(b)).bit_count() for a, b in zip(one, other, strict=True)) == 1


def by_absence(*, expected: int, found: int) -> Protection | None:
    """Unavailable storage shows nothing at all; missing files leave others behind. Data and delete files are also
    judged alone: they may be on other storage than the metadata, or have been removed as a whole, and existing metadata
    says nothing about that. Entries of such a table are not dropped."""
    return Protection.NOTHING_LISTED if expected > 0 and found == 0 else None


def overlaps(folders: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Tables with a folder that equals, contains or is in a folder of another table; each with one such table."""
    by_folder: dict[str, list[str]] = {}
    for name in sorted(folders):
        for folder in set(folders[name]):
            by_folder.setdefault(folder.rstrip("/"), []).append(name)
    found: dict[str, str] = {}

    def meet(one: str, other: str) -> None:
        if one != other:
            found.setdefault(one, other)
            found.setdefault(other, one)

    # Sorted by segments, so that a folder is followed at once by what is in it.
    open_folders: list[str] = []
    for folder in sorted(by_folder, key=lambda f: f.split("/")):
        while open_folders and not is_under(folder, open_folders[-1]):
            open_folders.pop()
        for name in by_folder[folder]:
            for outer in (*open_folders, folder):
                for other in by_folder[outer]:
                    meet(name, other)
        open_folders.append(folder)
    return found


# ---- entries ---------------------------------------------------------------------------------------------------------


def by_seal(rows: SeqRange | None, seal: TableSeal) -> Protection | None:
    """Only a range that is wholly at or below the seal is settled, whatever its age."""
    if rows is None or seal.sealed is None or rows.hi > seal.sealed:
        return Protection.UNSEALED
    return None


def delivered(rows: SeqRange | None, seal: TableSeal) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The active sinks that certainly hold the whole range, and those that may not."""
    holding = [
        sink for sink, mark in sorted(seal.holds.items()) if rows is not None and mark is not None and mark >= rows.hi
    ]
    return tuple(holding), tuple(sink for sink in sorted(seal.holds) if sink not in holding)


def by_delivery(rows: SeqRange | None, seal: TableSeal, *, accept_loss: bool) -> Protection | None:
    lacking = delivered(rows, seal)[1]
    return Protection.UNDELIVERED if lacking and not accept_loss else None


def by_content(content: FileContent) -> Protection | None:
    """Without a delete file, deleted rows would come back; without a manifest, nobody knows what is lost."""
    return None if content is FileContent.DATA else Protection.NOT_DATA


def of_missing(
    ledger_context: LedgerContext, table: str, entry: Entry, *, stopped: Protection | None, shared: bool
) -> Protection | None:
    """All guards for an entry whose file is missing."""
    reasons = [
        stopped,
        by_content(entry.content),
        by_time(entry.added_ns, ledger_context),
        None if entry.in_main else Protection.NOT_IN_MAIN,
        Protection.SHARED_FILE if shared else None,
        None if ledger_context.own_origin else Protection.ORIGIN,
    ]
    seal = ledger_context.seals.get(table)
    if seal is None:
        reasons.append(Protection.NOT_A_DATASET)
    elif entry.content is FileContent.DATA:
        reasons.append(by_seal(entry.rows, seal))
        reasons.append(by_delivery(entry.rows, seal, accept_loss=ledger_context.accept_loss))
    return first(reasons)


def by_place(
    ledger_context: LedgerContext,
    *,
    stopped: Protection | None,
    in_layout: bool,
    known_root: bool,
    failed_prefix: bool,
    any_unread: bool,
    vanished: bool = False,
) -> Protection | None:
    """All guards for an unreferenced file, except its age. Under a root that no table owns, an unread table may
    reference everything. On a disk that other machines may not share, the owner of a file is unknown. Files in a
    table's folder are this machine's if the whole table is here: otherwise something of it is unread or missing, which
    protects them."""
    return first(
        (
            stopped,
            Protection.PREFIX_FAILED if failed_prefix else None,
            None if in_layout else Protection.LAYOUT,
            Protection.VANISHED_TABLE if vanished else None,
            Protection.UNKNOWN_ROOT if not known_root and not ledger_context.delete_foreign else None,
            Protection.TABLE_UNREAD if not known_root and any_unread else None,
            None if ledger_context.own_origin or known_root else Protection.ORIGIN,
        )
    )


# ---- the run ---------------------------------------------------------------------------------------------------------


def share_refused(planned: int, listed: int, *, share_max: float, floor_files: int) -> bool:
    """A run that would act on so large a share of everything is not repairing drift."""
    return listed >= floor_files and planned > listed * share_max
