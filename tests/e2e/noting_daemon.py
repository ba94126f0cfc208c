"""`strandline run` that notes its looks at work which another daemon may hold, and hangs where a test wants it to.

NOTES names the file: one JSON document per line. HANGS_AT names a failpoint: whoever reaches it waits there for good,
while the process lives on and renews its leases. The loops look for work several times a second.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

from strandline.cli.main import main
from strandline.core import failpoints
from strandline.jobs import heartbeat
from strandline.ledger.deliver import sinks
from strandline.ledger.engine import utc_now
from strandline.ledger.maintain import runs
from strandline.ledger.receive import batches
from strandline.ledger.reconcile import reconcile_runs
from strandline.maintain import facade as maintenance
from strandline.reconcile import facade as reconciler

POLL_SECONDS = 0.2


def note(**values: object) -> None:
    with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:  # one write per line, whichever thread it is
        notes.write(json.dumps(values) + "\n")


def note_looks(place: Any, name: str, work: str, *, only_in_vain: bool = False) -> None:
    """From now on each call of the function is a look: it asks whether the work is free, and takes it if it is. With
    `only_in_vain` it takes nothing: another function does."""
    look: Callable[..., Any] = getattr(place, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        asked_at = utc_now()
        found = look(*arguments, **options)
        if not (found and only_in_vain):
            times = {"asked_at": asked_at.isoformat(), "answered_at": utc_now().isoformat()}
            note(work=work, taken=bool(found), **times)
        return found

    setattr(place, name, noted)


def hang(name: str, hit: Callable[[str], None] = failpoints.hit) -> None:
    hit(name)
    if name == os.environ.get("HANGS_AT"):
        note(hangs=name)
        threading.Event().wait()


if __name__ == "__main__":
    note_looks(sinks.leases, "take", "delivery")
    note_looks(batches, "due", "intake", only_in_vain=True)
    note_looks(batches, "take", "intake")
    note_looks(runs, "begin", "maintenance")
    note_looks(reconcile_runs.leases, "take", "reconcile")
    heartbeat.BEATS_PER_LEASE = 30
    maintenance._POLL_SECONDS = reconciler._POLL_SECONDS = POLL_SECONDS
    failpoints.hit = hang
    main()
