"""A sink's lease, for as long as rows that it was meant to get are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.core.delivery_types import SinkRecord
from strandline.core.errors import LeaseLost
from strandline.core.types import Lease
from strandline.jobs.heartbeat import holding_lease
from strandline.ledger.deliver import sinks
from strandline.maintain.context import MaintainContext

_WAIT_FOR_DELIVERER_SECONDS = 10.0
"""For one that is at work right now; then the sink is taken from it, and what it still records counts for nothing."""


@contextmanager
def alone(context: MaintainContext, record: SinkRecord) -> Iterator[Lease]:
    """Nobody delivers meanwhile, so that what is counted as lost is really lost."""
    seconds = context.config.settings.deliver.lease_seconds
    deadline = time.monotonic() + _WAIT_FOR_DELIVERER_SECONDS
    while (lease := sinks.leases.take(context.ledger, record.id, seconds=seconds)) is None:
        if time.monotonic() > deadline:
            lease = sinks.leases.seize(context.ledger, record.id, seconds=seconds)
            break
        time.sleep(0.2)
    if lease is None:
        raise LeaseLost(f"sink {record.name} was removed meanwhile", hint="Try again.")
    with holding_lease(context.ledger, sinks.leases, lease, seconds=seconds):
        yield lease
