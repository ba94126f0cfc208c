"""Serializes the access of a receiver's threads to a SQLite ledger.

SQLite blocks a commit while another connection reads, and a connection that must wait sleeps between attempts, longer
each time. With this lock, only other processes wait there, but no threads. PostgreSQL needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from strandline.ledger.engine import Connection, Ledger


class LedgerAccess:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._lock: AbstractContextManager[object] = threading.Lock() if ledger.is_sqlite else nullcontext()

    @contextmanager
    def alone(self) -> Iterator[Ledger]:
        with self._lock:
            yield self.ledger

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._lock, self.ledger.read() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._lock, self.ledger.write() as connection:
            yield connection
