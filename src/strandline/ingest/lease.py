"""A writer's sign of life."""

from __future__ import annotations

from contextlib import AbstractContextManager

from strandline.heartbeat import beating
from strandline.ingest.workbench import Workbench
from strandline.ledger import blocks
from strandline.types import Reserved


def renewed(work: Workbench, held: Reserved) -> AbstractContextManager[None]:
    """Renew the block's lease while its writer works."""
    seconds = work.settings.lease_seconds
    return beating(lambda: blocks.renew(work.ledger, held, lease_seconds=seconds), lease_seconds=seconds)
