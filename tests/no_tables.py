"""The tables of a lake that cannot be read, or that a test must not read."""

from __future__ import annotations

from typing import NoReturn


class NoTables:
    """An `iceberg/lake_tables.LakeTables` whose uses raise `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error or AssertionError("this test reads no table")

    @property
    def catalog(self) -> NoReturn:
        raise self._error

    settled = unsettled = catalog
