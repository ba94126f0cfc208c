"""Checks a read request before Spark plans it: the ledger first, then the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.core import read_token as tokens
from strandline.core.errors import SchemaError, UsageError
from strandline.core.partition import choose_partition
from strandline.core.read_token import Continuation, ReadBounds
from strandline.core.types import INTERNAL_COLUMNS, PARTITION_COLUMN, Dataset, Seq
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks
from strandline.read.consumers import start_of


class Lines(Protocol):
    """Rows as JSON lines in sequence order, each with its token, and the token to continue with after all of them."""

    @property
    def continuation(self) -> str: ...

    def lines(self) -> Iterator[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request with its decoded token."""

    token: Continuation | None
    until: int | None
    partition: str | Mapping[str, str | None] | None
    columns: Sequence[str] | None
    limit: int | None
    internal: bool


def read_request(
    continuation: str | None,
    until: int | None,
    partition: str | Mapping[str, str | None] | None,
    columns: Sequence[str] | None,
    limit: int | None,
    internal: bool,
) -> ReadRequest:
    """Raises TokenError."""
    token = None if continuation is None else tokens.decode(continuation)
    return ReadRequest(token, until, partition, columns, limit, internal)


def bounds(ledger: Ledger, lake_id: str, target: Dataset, wanted: ReadRequest) -> ReadBounds:
    """The bounds to read. Raises UsageError or TokenError for a bad request, without starting a JVM."""
    until = wanted.until
    if until is not None and until < 1:
        raise UsageError(f"`until` is a sequence number, and the first one is 1, not {until}")
    after = None
    with ledger.read() as connection:
        seal = blocks.sealed(connection, target.id)
        if wanted.token is not None:
            after = start_of(connection, target, lake_id, wanted.token)
        if until is not None and (seal is None or until > seal):
            raise UsageError(f"`until` is above what is settled ({until}, sealed: {seal})")
    return ReadBounds(after, seal if until is None else Seq(until))


def partition_of(dataset: Dataset, wanted: ReadRequest, in_table: Sequence[str]) -> str | None:
    """The requested logical partition; None: all. `in_table` are the columns of the table. Raises SchemaError."""
    partition = wanted.partition
    if isinstance(partition, Mapping):
        partition = choose_partition(dataset.deliver_by, partition)
    if partition is not None and PARTITION_COLUMN not in in_table:
        raise SchemaError(f"{dataset.name} has no logical partitions", hint="It was made without --deliver-by.")
    return partition


def chosen_columns(wanted: ReadRequest, in_table: Sequence[str]) -> list[str]:
    """The requested columns; by default all of the table's but Strandline's own. Raises SchemaError, also for a limit
    below 1."""
    if wanted.limit is not None and wanted.limit < 1:
        raise SchemaError("a limit is at least 1")
    if wanted.columns is None:
        return [c for c in in_table if wanted.internal or c not in INTERNAL_COLUMNS]
    if len(set(wanted.columns)) != len(wanted.columns):
        raise SchemaError("a column is named twice")
    if unknown := [c for c in wanted.columns if c not in in_table]:
        raise SchemaError(f"there is no column {unknown[0]!r}", hint=f"Columns: {', '.join(in_table)}.")
    return list(wanted.columns)
