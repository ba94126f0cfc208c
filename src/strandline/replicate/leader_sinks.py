"""A follower keeps what its leader says of its sinks, and goes on with them when it takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from strandline.core.replication import SinkDefinition
from strandline.deliver.sink_definitions import SinksTakenOver, take_over
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import leader_sinks
from strandline.replicate.answer_document import sink_definition

ASKED_EVERY_SECONDS = 60.0  # for a leader whose sinks are changed while no rows come


class LeaderSinks:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: str | None = None
        self._asked: float | None = None

    def are_due(self) -> bool:
        """Whether to ask for them in the next poll."""
        return self._asked is None or time.monotonic() - self._asked > ASKED_EVERY_SECONDS

    def keep(self, told: Sequence[SinkDefinition] | None) -> None:
        if told is None:
            return
        self._asked = time.monotonic()
        document = json.dumps([asdict(one) for one in told], sort_keys=True)
        if document == self._kept:
            return
        with self._ledger.write() as connection:
            if leader_sinks.read(connection) != document:
                leader_sinks.store(connection, document, told)
        self._kept = document


def take_over_sinks(connection: Connection) -> SinksTakenOver:
    """In the transaction that makes this site the leader."""
    document, lake = leader_sinks.read(connection), sequence.read(connection).lake
    return take_over(connection, lake, [sink_definition(one) for one in json.loads(document or "[]")])
