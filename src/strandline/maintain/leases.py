"""A sink's lease, for as long as rows that it was meant to get are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strandline.delivery import Lease, SinkRecord
from strandline.errors import LeaseLost, StrandlineError
from strandline.heartbeat import beating
from strandline.ledger import sinks
from strandline.maintain.bench import MaintainBench

_WAIT_FOR_DELIVERER_SECONDS = 10.0
"""For one that is at work right now; then the sink is taken from it, and what it still records counts for nothing."""


@contextmanager
def alone(bench: MaintainBench, record: SinkRecord) -> Iterator[Lease]:
    """Nobody delivers meanwhile, so that what is counted as lost is really lost."""
    seconds = bench.config.settings.deliver.lease_seconds
    deadline = time.monotonic() + _WAIT_FOR_DELIVERER_SECONDS
    while (lease := sinks.take_lease(bench.ledger, record.id, seconds=seconds)) is None:
        if time.monotonic() > deadline:
            lease = sinks.seize_lease(bench.ledger, record.id, seconds=seconds)
            break
        time.sleep(0.2)
    if lease is None:
        raise LeaseLost(f"sink {record.name} was removed meanwhile", hint="Try again.")
    try:
        with beating(lambda: sinks.renew(bench.ledger, lease, seconds=seconds), lease_seconds=seconds):
            yield lease
    finally:
        with suppress(StrandlineError):  # it runs out by itself; what was done under it is done
            sinks.release(bench.ledger, lease)
