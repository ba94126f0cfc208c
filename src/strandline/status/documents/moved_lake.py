"""The document of a lake that moves to another place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.documents import fields_of

if TYPE_CHECKING:
    from strandline.migrate.run import MoveReport


def move_report(report: MoveReport) -> dict[str, object]:
    places = {
        what: None if where is None else {"from": where[0], "to": where[1]}
        for what, where in (("ledger", report.ledger), ("catalog", report.catalog), ("warehouse", report.warehouse))
    }
    return fields_of(report) | places
