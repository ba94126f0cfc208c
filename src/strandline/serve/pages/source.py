"""The newest state of the lake for all pages, and what this process saw of it before."""

from __future__ import annotations

from datetime import timedelta

from strandline.ledger.engine import utc_now
from strandline.serve.api.status import seen_by, text_for
from strandline.serve.auth.caller import Caller
from strandline.serve.context import ServeContext
from strandline.serve.pages.history import FigureHistory, sample_of
from strandline.serve.snapshot import StatusSnapshot
from strandline.status.report import LakeStatus


class Source:
    """Shares the readings of the API: the lake is read for all who ask, and only while somebody does."""

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._newest: StatusSnapshot | None = None
        self.history = FigureHistory()

    async def newest(self, caller: Caller) -> LakeStatus:
        """What the caller may see. Raises StrandlineError if the lake cannot be read."""
        return seen_by(caller, (await self._snapshot()).status)

    async def version_for(self, caller: Caller) -> str:
        """The same while nothing has changed that is shown to the caller. Whoever is limited to some datasets is not to
        learn when others change. Raises StrandlineError if the lake cannot be read."""
        return (await text_for(self._context, caller, await self._snapshot())).version

    async def _snapshot(self) -> StatusSnapshot:
        found = await self._context.status.newest()
        if found is not self._newest:
            at = utc_now() - timedelta(seconds=self._context.status.age_seconds(found))
            self.history.add(sample_of(found.status, at, found.arrived_rows))
            self._newest = found
        return found
