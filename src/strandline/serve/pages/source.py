"""The newest state of the lake for all pages, and what this process saw of it before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from strandline.core.documents import json_text
from strandline.ledger.engine import utc_now
from strandline.serve.api.status import seen_by
from strandline.serve.auth.caller import Caller
from strandline.serve.context import ServeContext
from strandline.serve.pages.history import History, sample_of
from strandline.status.report import LakeStatus

REFRESH_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Look:
    status: LakeStatus
    at: datetime
    version: str  # the same while nothing that is shown has changed

    def seen_by(self, caller: Caller) -> LakeStatus:
        return seen_by(caller, self.status)


class Source:
    """Reads the lake at most every few seconds, however many pages are open, and only while one is."""

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._reading = asyncio.Lock()
        self._newest: Look | None = None
        self.history = History()

    async def newest(self) -> Look:
        """Raises StrandlineError if the lake cannot be read."""
        async with self._reading:
            found = self._newest
            if found is None or (utc_now() - found.at).total_seconds() >= REFRESH_SECONDS:
                found = self._newest = await self._context.in_thread(self._load)
                self.history.add(sample_of(found.status, found.at))
            return found

    def _load(self) -> Look:
        status = self._context.lake.status()
        return Look(status, utc_now(), sha256(json_text(status).encode("utf-8", "replace")).hexdigest()[:16])
