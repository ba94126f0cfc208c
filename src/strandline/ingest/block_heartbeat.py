"""A writer's heartbeat."""

from __future__ import annotations

from contextlib import AbstractContextManager

from strandline.core.types import Reserved
from strandline.ingest.context import IngestContext
from strandline.jobs.heartbeat import Heartbeat, beating
from strandline.ledger.ingest import blocks


def renewed(work: IngestContext, held: Reserved) -> AbstractContextManager[Heartbeat]:
    """Renews the block's lease while its writer works."""
    seconds = work.settings.lease_seconds
    return beating(lambda: blocks.renew(work.ledger, held, lease_seconds=seconds), lease_seconds=seconds)
