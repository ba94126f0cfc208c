"""How many transactions of the ledger and requests to the bucket a piece of work makes."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from strandline.lake import Lake

_REQUEST = re.compile(rb" s3_(\w+) ")
_KINDS = (("List", "list"), ("Get", "get"), ("Head", "head"), ("Delete", "delete"))
_QUIET_SECONDS = 0.2  # the server logs a request when it has answered it


@dataclass
class Cost:
    transactions: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    @property
    def requests_made(self) -> int:
        return self.requests.total()


@dataclass
class Counted:
    lake: Lake
    log: Path | None
    """The server's log of requests."""
    _began: int = 0
    _read: int = 0

    def __post_init__(self) -> None:
        sa.event.listen(self.lake.ledger.engine, "begin", self._count)

    def _count(self, _: sa.Connection) -> None:
        self._began += 1

    def cost(self, work: Callable[[], object]) -> Cost:
        self._requests()
        began = self._began
        work()
        return Cost(self._began - began, self._requests())

    def _requests(self) -> Counter[str]:
        """Since this was last called."""
        if self.log is None:
            return Counter()
        size = -1
        while size != (size := self.log.stat().st_size):
            time.sleep(_QUIET_SECONDS)
        with self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read(size - self._read)
        self._read = size
        return Counter(_kind(name.decode()) for name in _REQUEST.findall(new))


def _kind(operation: str) -> str:
    return next((kind for start, kind in _KINDS if operation.startswith(start)), "put")
