"""Serializes the access of a receiver's threads to a SQLite ledger.

SQLite lets nobody commit while somebody reads, and whoever has to wait sleeps between attempts, longer each time. With
this lock, threads never wait there; only other processes do. PostgreSQL needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from strandline.ledger.engine import Connection, Ledger


class LedgerAccess:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._turn: AbstractContextManager[object] = threading.Lock() if ledger.is_sqlite else nullcontext()

    @contextmanager
    def mine(self) -> Iterator[Ledger]:
        with self._turn:
            yield self.ledger

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._turn, self.ledger.read() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._turn, self.ledger.write() as connection:
            yield connection
