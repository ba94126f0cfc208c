"""New ledgers in a tenth of the time: a SQLite file that the migrations made once in this process, and copies of it.

That the migrations make what a lake needs is what `tests/ledger` is about; tests elsewhere only need a lake.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from strandline.ledger.engine import Ledger, utc_now
from strandline.ledger.schema import core


@contextmanager
def quick_ledgers() -> Iterator[None]:
    real = Ledger._upgrade

    def upgrade(self: Ledger, new_lake: str | None = None) -> None:
        if self.path is None or new_lake is None:
            real(self, new_lake)
            return
        template = Path(_folder().name) / "ledger.db"
        if template.exists():
            _copy(template, self.path)
        else:
            real(self)
            _copy(self.path, template)
        with self.write() as connection:
            new = {"id": 1, "lake": new_lake, "last": 0, "epoch": 1, "created_at": utc_now()}
            connection.execute(core.sequence.insert().values(new))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "_upgrade", upgrade)
        yield


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """For each folder whose conftest.py imports it."""
    with quick_ledgers():
        yield


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)
