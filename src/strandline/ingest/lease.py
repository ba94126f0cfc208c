"""A writer's sign of life."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.errors import StrandlineError
from strandline.ingest.workbench import Workbench
from strandline.ledger import blocks
from strandline.types import Reserved


@contextmanager
def renewed(work: Workbench, held: Reserved) -> Iterator[None]:
    """Renew the lease while the writer works. A stopped process renews nothing, and is fenced."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(work.settings.lease_seconds / 3):
            try:
                if not blocks.renew(work.ledger, held, lease_seconds=work.settings.lease_seconds):
                    return  # taken over; the compare-and-set will tell the writer
            except StrandlineError:
                continue  # the ledger is busy or away; the lease may yet run out, which is safe

    thread = threading.Thread(target=beat, name="strandline-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
