"""A follower keeps what its leader says of its sinks, and goes on with them when it takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from strandline.core.sites.replication import SinkDefinition
from strandline.deliver.sink_definitions import SinksTakenOver, keep_own, take_over
from strandline.ledger.engine import Connection, Ledger
from strandline.ledger.ingest import sequence
from strandline.ledger.replicate import leader_sinks
from strandline.replicate.follow.answer_document import sink_definition

ASKED_EVERY_SECONDS = 60.0  # how far sinks are, while no rows come; a sink that was changed is told of at once


class LeaderSinks:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._version: str | None = None
        self._asked: float | None = None

    def version(self) -> str | None:
        """What to name in the next poll. None: the leader shall tell of its sinks in any case."""
        is_due = self._asked is None or time.monotonic() - self._asked > ASKED_EVERY_SECONDS
        return None if is_due else self._version

    def keep(self, told: Sequence[SinkDefinition] | None, version: str | None) -> None:
        if told is None:
            return
        self._asked, self._version = time.monotonic(), version
        document = json.dumps([asdict(one) for one in told], sort_keys=True)
        if self._ledger.query(leader_sinks.read) == document:
            return
        with self._ledger.write() as connection:
            leader_sinks.store(connection, document, told)


def take_over_sinks(connection: Connection) -> SinksTakenOver:
    """In the transaction that makes this site the leader."""
    document, lake = leader_sinks.read(connection), sequence.read(connection).lake
    if document is None:  # it does not say that there are no sinks
        return keep_own(connection, lake)
    return take_over(connection, lake, [sink_definition(one) for one in json.loads(document)])
