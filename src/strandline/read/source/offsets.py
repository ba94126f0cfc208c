"""Offsets of a stream: the sequence number up to which a query has all rows, with lake and dataset.

A checkpoint stores them. They name no file and no snapshot, so a checkpoint stays valid through compaction and expiry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from strandline.core.errors import TokenError
from strandline.core.types import SEQ_MAX, DatasetUuid, Seq

VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    lake: str
    dataset: DatasetUuid
    # Where the query began. Spark stores the end of the first batch but not its start. If that batch is repeated, Spark
    # asks for the start again, and by then `earliest` or `latest` may have moved.
    begin: Seq | None
    after: Seq | None  # None: the query has no row yet

    @property
    def first(self) -> Offset:
        return replace(self, after=self.begin)

    def up_to(self, end: Seq) -> Offset:
        return replace(self, after=end)

    def to_json(self) -> dict[str, Any]:
        """The keys are always in this order: Spark compares the text."""
        return {
            "version": VERSION, "lake": self.lake, "dataset": self.dataset, "begin": self.begin or 0,
            "after": self.after or 0,
        }  # fmt: skip


def from_json(found: Mapping[str, Any], *, lake: str, dataset: DatasetUuid, name: str) -> Offset:
    """Raises TokenError for an offset of another dataset, or of a newer program."""
    version, begin, after = found.get("version"), found.get("begin"), found.get("after")
    if not isinstance(version, int) or not _is_number(begin) or not _is_number(after):
        raise TokenError("the checkpoint has offsets of another source", hint="Each query has a checkpoint of its own.")
    if version > VERSION:
        raise TokenError(
            f"the checkpoint has offsets of version {version}, this program knows up to {VERSION}",
            hint="Use the newer version of Strandline that made it.",
        )
    if (found.get("lake"), found.get("dataset")) != (lake, dataset):
        raise TokenError(
            f"the checkpoint is of another dataset than {name} is now",
            hint="The dataset was dropped and made again, or the checkpoint belongs to another query.",
        )
    return Offset(lake, dataset, Seq(begin) if begin else None, Seq(after) if after else None)


def _is_number(found: Any) -> TypeGuard[int]:
    return isinstance(found, int) and 0 <= found <= SEQ_MAX
