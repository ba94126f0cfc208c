"""Words of servers and drivers are stored without the passwords in them, wherever the ledger has such words."""

from __future__ import annotations

import sqlalchemy as sa

from strandline.core.records.audit_events import Event
from strandline.ledger import audit, tasks
from strandline.ledger.receive import receive_holds
from strandline.ledger.schema import applied, maintain, receive, reconcile, serve  # noqa: F401  # all tables
from strandline.ledger.schema.core import MaskedJson, MaskedText, metadata
from tests.ledger.conftest import LakeState

SAID = "no answer of postgresql://u:c4n4ry@h/d; tried host=h password='c4n4ry \"x\"'"
STORED = "no answer of postgresql://u:***@h/d; tried host=h password=***"
NAMED_FOR_WORDS = {"reason", "why", "doubt", "trouble", "detail", "result", "error"}
ONE_OF_A_FEW = {"loss.reason", "reconcile_run.reason"}  # names of our own, of which there are a few


def test_words_and_documents_are_stored_masked(sqlite_lake: LakeState) -> None:
    with sqlite_lake.ledger.write() as connection:
        audit.record(connection, Event.SINK_UPDATED, sink="s", options={"dsn": SAID}, tries=[SAID, 3])
        task, lease = tasks.begin(connection, "tick", "s", "node-1", lease_seconds=60)
        tasks.end(connection, lease, tasks.TaskOutcome.FAILED, error={"message": SAID, "hint": None})
        receive_holds.put(connection, sqlite_lake.dataset.id, SAID)
        stored = connection.execute(sa.text("SELECT detail FROM audit UNION SELECT error FROM task")).scalars().all()
        event = audit.newest(connection, Event.SINK_UPDATED)
        assert tasks.get(connection, task.id).error == {"message": STORED, "hint": None}
        assert list(receive_holds.list_holds(connection).values()) == [STORED]
    assert event is not None
    assert event.detail == {"sink": "s", "options": {"dsn": STORED}, "tries": [STORED, 3]}
    assert "c4n4ry" not in str(stored)


def test_every_column_for_words_masks_them() -> None:
    masks = {
        f"{table.name}.{column.name}": isinstance(column.type, MaskedText | MaskedJson)
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name in NAMED_FOR_WORDS
    }
    assert {name for name, is_masked in masks.items() if not is_masked} == ONE_OF_A_FEW
    assert len(masks) > 10
