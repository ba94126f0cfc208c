"""A follower stores its leader's sink definitions, so that it can continue the sinks when it takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from strandline.core.sites.replication import SinkDefinition
from strandline.ledger.engine import Ledger
from strandline.ledger.replicate import leader_sinks

REFRESH_SECONDS = 60.0  # for the watermarks of sinks, while no rows come; a changed sink comes with the next poll


class LeaderSinks:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._version: str | None = None
        self._stored_at: float | None = None

    def version(self) -> str | None:
        """The version to name in the next poll. None: the leader sends its sinks in any case."""
        is_due = self._stored_at is None or time.monotonic() - self._stored_at > REFRESH_SECONDS
        return None if is_due else self._version

    def store(self, definitions: Sequence[SinkDefinition] | None, version: str | None) -> None:
        """`definitions`: None if they did not change since the version that the poll named."""
        if definitions is None:
            return
        self._stored_at, self._version = time.monotonic(), version
        document = json.dumps([asdict(one) for one in definitions], sort_keys=True)
        if self._ledger.query(leader_sinks.read) == document:
            return
        with self._ledger.write() as connection:
            leader_sinks.store(connection, document, definitions)
