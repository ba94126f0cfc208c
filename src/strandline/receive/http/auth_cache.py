"""Caches callers that were authorized a moment ago.

SQLite blocks readers during a commit. A client that sends one body after another need not wait for that each time,
because the commit point checks its token and its dataset again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from strandline.core.types import Dataset
from strandline.ledger.receive.receipts import TokenMark
from strandline.ledger.receive.tokens import Token

_KEPT_SECONDS = 1.0
_KEPT_MAX = 1024


@dataclass(frozen=True, slots=True)
class Caller:
    token: Token
    dataset: Dataset
    mark: TokenMark  # of the token's owner, for the note in the spool


class AuthCache:
    """Used from one event loop only, so it needs no locks."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[Caller, float]] = OrderedDict()

    def find(self, secret: str, name: str) -> Caller | None:
        found = self._kept.get((secret, name))
        if found is not None and monotonic() - found[1] > _KEPT_SECONDS:
            del self._kept[secret, name]
            return None
        return None if found is None else found[0]

    def forget(self, caller: Caller) -> None:
        for key in [key for key, (kept, _) in self._kept.items() if kept == caller]:
            del self._kept[key]

    def keep(self, secret: str, name: str, caller: Caller) -> None:
        self._kept.pop((secret, name), None)
        self._kept[secret, name] = (caller, monotonic())
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
