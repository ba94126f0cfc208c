"""The newest state of the lake for all pages, and what this process saw of it before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from strandline.ledger.engine import utc_now
from strandline.serve.api.status import seen_by, text_for
from strandline.serve.auth.caller import Caller
from strandline.serve.context import ServeContext
from strandline.serve.pages.history import History, sample_of
from strandline.serve.snapshot import StatusSnapshot
from strandline.status.report import LakeStatus


@dataclass(frozen=True, slots=True)
class Look:
    status: LakeStatus
    at: datetime

    def seen_by(self, caller: Caller) -> LakeStatus:
        return seen_by(caller, self.status)


class Source:
    """Shares the readings of the API: the lake is read for all who ask, and only while somebody does."""

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._newest: tuple[StatusSnapshot, Look] | None = None
        self.history = History()

    async def newest(self) -> Look:
        """Raises StrandlineError if the lake cannot be read."""
        return self._look(await self._context.status.newest())

    async def version_for(self, caller: Caller) -> str:
        """The same while nothing has changed that is shown to the caller. Whoever is limited to some datasets is not to
        learn when others change. Raises StrandlineError if the lake cannot be read."""
        found = await self._context.status.newest()
        self._look(found)
        return (await text_for(self._context, caller, found)).version

    def _look(self, found: StatusSnapshot) -> Look:
        if self._newest is None or self._newest[0] is not found:
            at = utc_now() - timedelta(seconds=self._context.status.age_seconds(found))
            self.history.add(sample_of(found.status, at, found.arrived_rows))
            self._newest = found, Look(found.status, at)
        return self._newest[1]
