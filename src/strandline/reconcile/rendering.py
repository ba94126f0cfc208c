"""Renders a finding as a JSON object, for `--findings`, `--json` and a run's samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote_plus

from strandline.core.documents import iso
from strandline.reconcile.model import Finding

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def document(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "path": printable(finding.path),
        "table": finding.table,
        "size": finding.size,
        "modified": moment(finding.modified_ns),
        "protected": None if finding.protected is None else finding.protected.value,
        "content": finding.content.value,
        "partition": None if finding.partition is None else _partition_values(finding.partition),
        "rows": None if finding.rows is None else {"lo": finding.rows.lo, "hi": finding.rows.hi},
        "row_count": finding.row_count,
        "delivered_to": list(finding.delivered_to),
        "undelivered_to": list(finding.undelivered_to),
        "in_quarantine": finding.in_quarantine,
        "probably": None if finding.probably is None else printable(finding.probably),
    }


def _partition_values(partition: str) -> str:
    """Values as they are in rows; folder names escape them."""
    return printable(unquote_plus(partition, errors="surrogateescape"))


def printable(path: str) -> str:
    """Keeps a name that is not valid text readable, and the document valid JSON."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def moment(nanoseconds: int | None) -> str | None:
    """None if it is unknown, or out of range for a calendar."""
    if nanoseconds is None:
        return None
    try:
        found = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None
    return iso(found)
