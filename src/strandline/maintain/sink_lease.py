"""Holds a sink's lease while rows are deleted that were meant for the sink."""

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

_WAIT_FOR_DELIVERER_SECONDS = 10.0  # then we seize the lease, and the deliverer can record nothing more


@contextmanager
def alone(context: MaintainContext, record: SinkRecord) -> Iterator[Lease]:
    """Nobody delivers meanwhile, so that the counted losses are exact."""
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
