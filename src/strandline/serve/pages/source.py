"""The newest state of the lake for all pages, and what this process saw of it before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256

from strandline.ledger.engine import utc_now
from strandline.serve.api.status import seen_by
from strandline.serve.auth.caller import Caller
from strandline.serve.context import ServeContext
from strandline.serve.pages.history import History, sample_of
from strandline.serve.snapshot import StatusSnapshot
from strandline.status.report import LakeStatus


@dataclass(frozen=True, slots=True)
class Look:
    status: LakeStatus
    at: datetime
    version: str  # the same while nothing that is shown has changed

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
        status = self._context.status
        found = await status.newest()
        text = await status.text_of(found)
        if self._newest is None or self._newest[0] is not found:
            at = utc_now() - timedelta(seconds=status.age_seconds(found))
            look = Look(found.status, at, sha256(text.plain).hexdigest()[:16])
            self.history.add(sample_of(found.status, at))
            self._newest = found, look
        return self._newest[1]
