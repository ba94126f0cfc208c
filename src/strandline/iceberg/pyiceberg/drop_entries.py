"""Removes the entries of missing data files from main in one commit, through PyIceberg. Importing this imports
PyIceberg.

The commit of a batch of entries has the batch's token in its summary, and requires that the table has no tag that voids
the token. A process that takes a batch over voids the token first. Then the table shows the final outcome: the commit
landed, or it never will.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId

from strandline.core.errors import CommitUnknown, NoSuchDataset, StorageError
from strandline.core.text.wording import plural
from strandline.iceberg.commit_retry import COMMIT_RETRY
from strandline.iceberg.metadata.table_metadata import BATCH_SUMMARY, DROPPED_SUMMARY, VOID_PREFIX
from strandline.iceberg.pyiceberg.catalog import PyIcebergCatalog
from strandline.iceberg.pyiceberg.errors import explained
from strandline.iceberg.pyiceberg.internals import keep_written_files, removal_from_main
from strandline.iceberg.pyiceberg.repeat_commit import repeat_commit

VOID_TAG_MS = 30 * 86_400_000  # longer than a process with a prepared commit may be paused; then expiry removes the tag
FORMAT_VERSION_MAX = 2


def can_drop_entries(catalog: PyIcebergCatalog, name: str) -> bool:
    """Whether PyIceberg can write the table's format version."""
    return int(catalog.load(name).metadata.format_version) <= FORMAT_VERSION_MAX


def drop_data_files(
    catalog: PyIcebergCatalog,
    name: str,
    wanted: Collection[str],
    key: Callable[[str], str],
    *,
    token: str,
    summary: Mapping[str, str],
    before_commit: Callable[[], None],
) -> int:
    """Removes the entries of the wanted files from main. Returns how many files that were. `before_commit` is the last
    check: if it raises, nothing is committed. Raises CommitUnknown or StorageError."""
    for now in COMMIT_RETRY.attempts():
        table = catalog.load(name)
        if (landed := _landed(table, token)) is not None:
            return landed
        if not (files := _entries(table, wanted, key)):
            return 0
        count = len({key(file.file_path) for file in files})
        before_commit()
        try:
            with explained(name):
                _commit(table, files, count, token, summary, keep_files=catalog.is_remote)
        except CommitFailedException as e:
            if VOID_PREFIX + token in catalog.load(name).metadata.refs:
                raise CommitUnknown(f"{name}: another run has voided this batch of entries") from e
            if now.is_last:
                failure = f"entries could not be dropped in {plural(now.number, 'attempt')}"
                raise CommitUnknown(f"{name}: {failure}: {e}") from e
            continue
        except (CommitStateUnknownException, StorageError) as e:
            raise CommitUnknown(f"{name}: it is unknown whether entries were dropped: {e}") from e
        except ValidationException as e:
            raise StorageError(f"{name}: entries cannot be dropped: {e}") from e
        return count
    raise AssertionError("unreachable")


def landed(catalog: PyIcebergCatalog, name: str, token: str) -> int | None:
    """How many entries the commit of a batch removed; None if the table does not have that commit."""
    try:
        return _landed(catalog.load(name), token)
    except NoSuchDataset:
        return None


def has_entries(catalog: PyIcebergCatalog, name: str, wanted: Collection[str], key: Callable[[str], str]) -> bool:
    """Whether main has an entry for any of these files."""
    return bool(_entries(catalog.load(name), wanted, key))


def void(catalog: PyIcebergCatalog, name: str, token: str) -> None:
    """Voids the token of a batch: from now on, no commit of the batch can land. Raises CommitUnknown."""

    def attempt() -> None:
        try:
            table = catalog.load(name)
        except NoSuchDataset:
            return
        main = table.current_snapshot()
        if main is None or VOID_PREFIX + token in table.metadata.refs:
            return  # main has no entry to drop, or the token was voided before
        with table.manage_snapshots() as change:
            change.create_tag(main.snapshot_id, VOID_PREFIX + token, max_ref_age_ms=_until(main.timestamp_ms))

    repeat_commit(name, attempt, "a batch of entries could not be voided")


def _until(tagged_ms: int) -> int:
    """The tag's maximum age in milliseconds. Iceberg takes the age of the tagged snapshot, not of the tag."""
    return max(0, int(time.time() * 1000) - tagged_ms) + VOID_TAG_MS


def _landed(table: Table, token: str) -> int | None:
    for snapshot in reversed(table.metadata.snapshots):
        summary = snapshot.summary
        if summary is not None and summary.additional_properties.get(BATCH_SUMMARY) == token:
            return int(summary.additional_properties.get(DROPPED_SUMMARY, "0"))
    return None


def _entries(table: Table, wanted: Collection[str], key: Callable[[str], str]) -> list[DataFile]:
    if (main := table.current_snapshot()) is None:
        return []
    files: list[DataFile] = []
    with explained(".".join(table.name())):
        for manifest in main.manifests(table.io):
            if manifest.content != ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file = entry.data_file
                if file.content == DataFileContent.DATA and key(file.file_path) in wanted:
                    files.append(file)
    return files


def _commit(
    table: Table, files: list[DataFile], count: int, token: str, summary: Mapping[str, str], *, keep_files: bool
) -> None:
    """`keep_files`: files that were written for a refused commit stay. Over a network, a commit that a gateway sent
    twice conflicts with itself, and PyIceberg would delete the manifests of the commit that landed."""
    # One attempt: the lease must be checked again before the next one, and PyIceberg's own retries would not do that.
    once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    transaction = table.transaction()
    not_void = AssertRefSnapshotId.model_validate({"ref": VOID_PREFIX + token, "snapshot-id": None})
    own = {**summary, BATCH_SUMMARY: token, DROPPED_SUMMARY: str(count)}
    drop = removal_from_main(table, transaction, own, not_void)
    for file in files:
        drop.delete_data_file(file)
    drop.commit()
    if keep_files:
        keep_written_files(transaction)
    transaction.commit_transaction()
