"""Checks a read request before Spark plans it: the ledger first, then the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core import read_token as tokens
from strandline.core.errors import UsageError
from strandline.core.read_token import Bounds, Continuation
from strandline.core.settings import LakeConfig
from strandline.core.types import Dataset, Seq
from strandline.ledger.engine import Ledger
from strandline.ledger.ingest import blocks
from strandline.read import scan
from strandline.read.settled_view import open_settled

if TYPE_CHECKING:
    from strandline.iceberg.spark.tables import SparkTables
    from strandline.read.scan import Rows


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request with its decoded token."""

    token: Continuation | None
    until: int | None
    partition: str | Mapping[str, str | None] | None
    columns: Sequence[str] | None
    limit: int | None
    internal: bool


def bounds(ledger: Ledger, lake_id: str, target: Dataset, wanted: ReadRequest) -> Bounds:
    """What to read. Raises UsageError or TokenError for a bad request, without starting a JVM."""
    until = wanted.until
    if until is not None and until < 1:
        raise UsageError(f"`until` is a sequence number, and the first one is 1: {until} is none")
    after = None
    with ledger.read() as connection:
        seal = blocks.sealed(connection, target.id)
        if wanted.token is not None:
            after = tokens.check(wanted.token, lake=lake_id, dataset=target.uuid, name=target.name, sealed=seal)
        if until is not None and (seal is None or until > seal):
            raise UsageError(f"`until` is above what is settled ({until}, sealed: {seal})")
    return Bounds(after, seal if until is None else Seq(until))


def rows(
    config: LakeConfig, ledger: Ledger, lake_id: str, tables: SparkTables, target: Dataset, wanted: ReadRequest
) -> Rows:
    settled = open_settled(config, ledger, tables, lake_id, target, bounds(ledger, lake_id, target, wanted))
    return scan.bounded(settled, lake_id, wanted)
